"""A backtest on the running candle reads the stored trades, and the closed candles before them."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dexorder_common.lake.commit import append_rows
from dexorder_common.lake.tables import TICKS, writable
from dexorder_common.model.errors import Exhausted
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.triggers import Trigger
from dexorder_common.rpc.trigger_messages import decode_event
from dexorder_relay.config import RelaySettings
from dexorder_relay.triggers.backtest import Backtest, Backtests, answers
from tests.unit.services.relay.harness import TICKER, at, catalog_settings, make_tables

SQL = "SELECT ts, close, high FROM ohlc WHERE high > 5"
GREEDY = """
import sys
from dexorder_relay.triggers import backtest
def greedy(*_, **__):
    held = [bytes(1 << 26) for _ in range(32)]  # 2 GiB of addresses, of which nothing is used
    return []
backtest._rows = lambda *_: []
backtest.backtest = greedy
backtest.main(sys.stdin.buffer, sys.stdout.buffer)
"""
ENDLESS = """
import sys
from dexorder_relay.triggers import backtest
def answers(work):
    while True:
        pass
    yield
backtest.answers = answers
backtest.main(sys.stdin.buffer, sys.stdout.buffer)
"""
PRICES = (4.0, 6.0, 7.0, 5.0, 4.5, 8.0)


def test_the_trades_of_the_range_form_the_candles(tmp_path: Path) -> None:
    settings = catalog_settings(tmp_path)
    catalog = settings.load()
    make_tables(catalog)
    rows = [
        {
            "ticker": TICKER,
            "trade_id": str(number),
            "time": (at(0) + number * 25 * SECOND_NS) // 1_000,
            "price": price,
            "amount": 1.0,
            "side": "buy",
            "received_at": None,
            "dispatch": 1,
        }
        for number, price in enumerate(PRICES)
    ]
    table = TICKS.load_or_create(catalog)
    table.metadata = writable(table.metadata)
    append_rows(table, pa.Table.from_pylist(rows, schema=TICKS.arrow))
    for on in ("tick", "bar"):
        trigger = Trigger("t", SQL, (TICKER,), parameters={"on": on})
        *events, last = answers(Backtest(settings, trigger, TimeRange(at(0), at(3)), 1_000))
        found = [decode_event(each.event) for answer in events for each in answer.events]
        assert [each.rows[0][1] for each in found] == [6.0, 8.0]
        assert [each.time_ns for each in found] == [at(0) + 25 * SECOND_NS, at(0) + 125 * SECOND_NS]
        (market,) = last.markets
        assert (market.rows, market.firings, last.period_seconds) == (len(PRICES), 2, 60)
    catalog.close()


async def test_a_backtest_that_takes_too_much_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the real limit; only its rows are few."""
    made = asyncio.create_subprocess_exec

    async def greedy(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        return await made(sys.executable, "-c", GREEDY, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", greedy)
    backtests = Backtests(catalog_settings(tmp_path), RelaySettings())
    with pytest.raises(Exhausted, match="more than 1024 MiB"):
        [answer async for answer in backtests.run(Trigger("t", SQL, (TICKER,)), TimeRange(at(0), at(3)))]


async def test_a_client_with_many_backtests_delays_another_one_by_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.create_subprocess_exec

    async def short(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        return await made(sys.executable, "-c", "pass", **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", short)
    backtests = Backtests(catalog_settings(tmp_path), RelaySettings(parallel_backtests=1))
    order: list[str] = []

    async def run(client_id: str) -> None:
        work = Trigger("t", SQL, (TICKER,)), TimeRange(at(0), at(3))
        with suppress(Exception):
            [answer async for answer in backtests.run(*work, client_id)]
        order.append(client_id)

    flood = [asyncio.create_task(run("flood")) for _ in range(6)]
    await asyncio.sleep(0)
    await run("honest")
    await asyncio.gather(*flood)
    assert order.index("honest") <= 2, order


async def test_a_backtest_that_takes_too_long_is_ended_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, processes, texts = asyncio.create_subprocess_exec, [], iter((ENDLESS, "pass"))

    async def endless(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        processes.append(await made(sys.executable, "-c", next(texts), **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", endless)
    backtests = Backtests(catalog_settings(tmp_path), RelaySettings(backtest_seconds=0.3, parallel_backtests=1))
    work = Trigger("t", SQL, (TICKER,)), TimeRange(at(0), at(3))
    with pytest.raises(Exhausted, match=r"longer than backtest_seconds, 0\.3"):
        [answer async for answer in backtests.run(*work)]
    assert await processes[0].wait() < 0, "nobody computes on"
    with suppress(Exception):  # it has the only place
        [answer async for answer in backtests.run(*work)]
    assert len(processes) == 2
