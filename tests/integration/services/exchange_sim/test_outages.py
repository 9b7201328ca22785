"""Faults that last for a time, stay at a connection or a replica, or begin late, as unmodified ccxt sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.services.exchange_sim.conftest import NOW_NS, Exchange, Start

MINUTE_MS = 60_000
SINCE = 1_699_200_000_000
"""A midnight, eight days before now."""
NOW_MINUTE_MS = NOW_NS // 1_000_000 // MINUTE_MS * MINUTE_MS
SPAN_NS = [(SINCE + 10 * MINUTE_MS) * 1_000_000, (SINCE + 40 * MINUTE_MS) * 1_000_000]


async def minutes(client: Any, since: int = SINCE, limit: int = 60) -> list[int]:
    """Return the minutes after SINCE that one call of ccxt brings."""
    rows = await client.fetch_ohlcv("BTC/USDT", "1m", since, limit)
    return [(row[0] - SINCE) // MINUTE_MS for row in rows]


def left(*hidden: int) -> Sequence[int]:
    return [minute for minute in range(60 + len(hidden)) if minute not in hidden]


async def test_a_block_is_absent_for_as_long_as_the_rule_says(exchange: Exchange) -> None:
    await exchange.client.load_markets()
    await exchange.faults({"kind": "absent", "span": SPAN_NS, "lasts_s": 60})
    assert await minutes(exchange.client) == left(*range(10, 40))
    await exchange.clock(advance_ns=59_000_000_000)
    assert await minutes(exchange.client) == left(*range(10, 40))
    await exchange.clock(advance_ns=1_000_000_000)
    assert await minutes(exchange.client) == left()


async def test_everything_is_empty_for_a_while(exchange: Exchange) -> None:
    await exchange.faults({"kind": "empty", "lasts_s": 5})
    assert await minutes(exchange.client) == []
    await exchange.clock(advance_ns=5_000_000_000)
    assert await minutes(exchange.client) == left()


@pytest.mark.parametrize(("coarser", "hours"), [("kept", [0, 1]), ("absent", [0, 1]), ("computed", [0, 1])])
async def test_coarser_candles_of_an_absent_block(exchange: Exchange, coarser: str, hours: list[int]) -> None:
    good = await exchange.client.fetch_ohlcv("BTC/USDT", "1h", SINCE, 2)
    quarters = await exchange.client.fetch_ohlcv("BTC/USDT", "15m", SINCE, 4)
    await exchange.faults({"kind": "absent", "span": SPAN_NS, "coarser": coarser})
    rows = await exchange.client.fetch_ohlcv("BTC/USDT", "1h", SINCE, 2)
    assert [(row[0] - SINCE) // (60 * MINUTE_MS) for row in rows] == hours
    assert (rows == good) == (coarser != "computed")
    found = await exchange.client.fetch_ohlcv("BTC/USDT", "15m", SINCE, 4, {"until": SINCE + 60 * MINUTE_MS - 1})
    opens = {"kept": [0, 15, 30, 45], "absent": [0, 45], "computed": [0, 30, 45]}[coarser]
    assert [(row[0] - SINCE) // MINUTE_MS for row in found] == opens
    assert (found[0] == quarters[0]) == (coarser != "computed")


async def test_a_connection_stays_at_the_replica_that_lacks_a_block(start: Start) -> None:
    async with start({"fetchMarkets": {"types": ["spot"]}}) as exchange:
        client = exchange.client
        await client.load_markets()  # the first connection, which is the faulty replica's
        await exchange.faults({"kind": "absent", "span": SPAN_NS, "replicas": 2})
        assert await minutes(client) == await minutes(client) == left(*range(10, 40))
        client.headers = {"Connection": "close"}
        answers = [await minutes(client) for _ in range(5)]
        assert answers[0] == left(*range(10, 40)), "still on the first connection"
        assert answers[1:] == [left(), left(*range(10, 40)), left(), left(*range(10, 40))]


@pytest.mark.nightly
async def test_a_world_turns_bad_after_two_thousand_good_answers(exchange: Exchange) -> None:
    await exchange.client.load_markets()
    await exchange.faults({"kind": "absent", "span": SPAN_NS, "after": 2_000})
    for _ in range(1_999):
        await exchange.klines(symbol="BTCUSDT", interval="1m", startTime=SINCE, limit=60)
    assert await minutes(exchange.client) == left()
    assert await minutes(exchange.client) == await minutes(exchange.client) == left(*range(10, 40))


async def test_a_replica_that_is_behind_lacks_the_newest_and_has_an_unfinished_candle(exchange: Exchange) -> None:
    since = NOW_MINUTE_MS - 5 * MINUTE_MS
    good = await exchange.client.fetch_ohlcv("BTC/USDT", "1m", since, 10)
    await exchange.faults({"kind": "behind", "lag_s": 90})
    late = await exchange.client.fetch_ohlcv("BTC/USDT", "1m", since, 10)
    assert [row[0] for row in late] == [row[0] for row in good[:-2]]
    assert late[:-1] == good[:-3]
    assert late[-1][1] == good[-3][1] and late[-1][5] < good[-3][5]


async def test_krakens_trades_of_an_absent_block_are_absent_too(exchange: Exchange) -> None:
    client = exchange.kraken
    await client.load_markets()
    since = str(SPAN_NS[0] - 60_000_000_000)
    good = await client.fetch_trades("ETH/USD", None, 1_000, {"since": since})
    await exchange.faults({"kind": "absent", "span": SPAN_NS})
    found = await client.fetch_trades("ETH/USD", None, 1_000, {"since": since})
    kept = [trade for trade in good if not SPAN_NS[0] <= trade["timestamp"] * 1_000_000 < SPAN_NS[1]]
    assert [trade["id"] for trade in found][: len(kept)] == [trade["id"] for trade in kept]
    assert 0 < len(kept) < len(good)
