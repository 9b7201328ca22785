"""Replicas that lack some time, against the whole market."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dexorder_exchange_sim.absent import without
from dexorder_exchange_sim.candles import CandleRequest, Candles
from dexorder_exchange_sim.instruments import INSTRUMENTS
from dexorder_exchange_sim.market import SyntheticMarket
from dexorder_exchange_sim.periods import HOUR, MINUTE, PERIODS
from dexorder_exchange_sim.trades import TradeSource

MARKET = SyntheticMarket(INSTRUMENTS[0], seed=9)
START_S = 1_700_000_000 // HOUR * HOUR
NOW_NS = (START_S + 100 * HOUR) * 1_000_000_000
SPAN = (START_S + 90 * MINUTE, START_S + 150 * MINUTE)
"""From half past one to half past two."""
SPAN_NS = (SPAN[0] * 1_000_000_000, SPAN[1] * 1_000_000_000)


def query(limit: int, start_s: int | None = START_S, end_s: int | None = None) -> CandleRequest:
    return CandleRequest(None if start_s is None else start_s * 1000, None if end_s is None else end_s * 1000, limit)


def rows(candles: Candles) -> list[tuple[float, ...]]:
    return list(zip(*(column.tolist() for column in candles.columns()), strict=True))


def whole(name: str, wanted: CandleRequest) -> list[tuple[float, ...]]:
    return rows(MARKET.candles(PERIODS[name], wanted, now_ns=NOW_NS))


@pytest.mark.parametrize("coarser", ["kept", "absent", "computed"])
def test_minutes_of_the_span_are_absent_and_the_answer_is_full(coarser: str) -> None:
    replica = without(MARKET, SPAN_NS, coarser)  # type: ignore[arg-type]
    found = rows(replica.candles(PERIODS["1m"], query(200), now_ns=NOW_NS))
    assert found == [row for row in whole("1m", query(260)) if not SPAN[0] <= row[0] < SPAN[1]]
    newest = rows(replica.candles(PERIODS["1m"], query(100, None, SPAN[1]), now_ns=NOW_NS))
    assert newest == [row for row in whole("1m", query(160, None, SPAN[1])) if not SPAN[0] <= row[0] < SPAN[1]]


def test_coarser_candles_stay_or_are_absent_where_they_open_in_the_span() -> None:
    hours = whole("1h", query(6))
    kept = without(MARKET, SPAN_NS, "kept").candles(PERIODS["1h"], query(6), now_ns=NOW_NS)
    assert rows(kept) == hours
    absent = without(MARKET, SPAN_NS, "absent").candles(PERIODS["1h"], query(5), now_ns=NOW_NS)
    assert rows(absent) == [*hours[:2], *hours[3:]]


def test_computed_coarser_candles_are_those_of_the_minutes_that_are_left() -> None:
    replica = without(MARKET, SPAN_NS, "computed")
    hours = rows(replica.candles(PERIODS["1h"], query(5), now_ns=NOW_NS))
    left = rows(replica.candles(PERIODS["1m"], query(240), now_ns=NOW_NS))
    expected: list[tuple[Any, ...]] = []
    for open_s in range(START_S, START_S + 5 * HOUR, HOUR):
        inside = [row for row in left if open_s <= row[0] < open_s + HOUR]
        volume = float(np.sum([row[5] for row in inside]))
        prices = inside[0][1], max(row[2] for row in inside), min(row[3] for row in inside), inside[-1][4]
        expected.append((open_s, *prices, pytest.approx(volume, rel=1e-12)))
    assert hours == expected


def test_an_hour_that_is_absent_as_a_whole_has_no_computed_candle() -> None:
    span_ns = (START_S * 1_000_000_000, (START_S + HOUR) * 1_000_000_000)
    replica = without(MARKET, span_ns, "computed")
    assert rows(replica.candles(PERIODS["1h"], query(2), now_ns=NOW_NS)) == whole("1h", query(3))[1:]


def test_trades_of_the_span_are_absent() -> None:
    replica = without(MARKET, SPAN_NS, "absent")
    assert isinstance(replica, TradeSource)
    first = MARKET.first_trade_at(SPAN[0] * 1000 - 5_000, now_ns=NOW_NS)
    assert replica.first_trade_at(SPAN[0] * 1000 - 5_000, now_ns=NOW_NS) == first
    trades = replica.trades(first, 100, now_ns=NOW_NS)
    there = MARKET.trades(first, 100, now_ns=NOW_NS)
    assert trades.id.tolist() == there.id[there.time_ms < SPAN[0] * 1000].tolist() and 0 < len(trades) < 100
