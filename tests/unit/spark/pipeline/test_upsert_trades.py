"""Trades of two drivers, of replays and of refills, compared with a dictionary by id. Without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from dexorder_common.lake.tables import TICKERS, TICKS, rows_in
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_spark.pipeline import upsert
from dexorder_spark.pipeline.ranges import KeyRange
from dexorder_spark.tables.tickers import SNAPSHOTS
from dexorder_spark.tables.ticks import TOLERANCE_NS, TRADES
from tests.examples import few
from tests.fakes.staged import commit_as_driver, load_new
from tests.fakes.trades import (
    MIDNIGHT_NS,
    MadeTrade,
    second,
    snapshot,
    snapshots_head,
    snapshots_record,
    trades_head,
    trades_record,
)

BOTH = ("BTC/USDT.SIM", "ETH/USDT.SIM")


@dataclass(frozen=True)
class Sent:
    """A record with the trades of some numbers; ``late_ms`` is what the sender's clock of them differs by."""

    ticker: str
    first: int
    count: int
    dispatch: int
    late_ms: int

    def trades(self) -> list[MadeTrade]:
        # Two a second, around midnight.
        late_ns = self.late_ms * 1_000_000
        numbers = range(self.first, self.first + self.count)
        return [MadeTrade(n, MIDNIGHT_NS - 10 * SECOND_NS + n * SECOND_NS // 2 + late_ns) for n in numbers]

    def record(self) -> tuple[PageHeaders, bytes]:
        head = trades_head(0, 100, job=self.dispatch, ticker=self.ticker)
        return head, trades_record(head, self.trades())[0]

    def key_range(self) -> KeyRange:
        times = [each.time_ns for each in self.trades()]
        return KeyRange((self.ticker,), TimeRange(min(times) - TOLERANCE_NS, max(times) + TOLERANCE_NS + 1_000))


def send(load: Callable[[], Table], batch: Sequence[Sent], between: Callable[[], object] = lambda: None) -> upsert.Path:
    ranges = [sent.key_range() for sent in batch]
    return commit_as_driver(load, TRADES, [sent.record() for sent in batch], ranges, between)[0]


def found(table: Table) -> dict[tuple[str, int], tuple[float, float, str | None]]:
    rows = TICKS.rows(table.scan().to_arrow())
    by_id = {
        (row["ticker"], int(row["trade_id"].removeprefix("t"))): (row["price"], row["amount"], row["side"])
        for row in rows
    }
    assert len(by_id) == len(rows), "a trade is doubled"
    return by_id


def test_a_correction_takes_the_place_of_its_trade_and_the_first_values_come_back_never(tmp_path: Path) -> None:
    load, sent = load_new(tmp_path, TICKS.name), Sent("BTC/USDT.SIM", 0, 3, 7, 0)
    head, value = sent.record()
    wrong = market_pb2.Trades.FromString(value)
    wrong.trades[1].price = 99.0
    corrected = market_pb2.Trades.FromString(value)
    corrected.trades[1].revision = 5
    prices = []
    for body in (wrong, corrected, wrong, corrected):
        commit_as_driver(load, TRADES, [(head, body.SerializeToString())], [sent.key_range()], lambda: None)
        prices.append(found(load())["BTC/USDT.SIM", 1][0])
    right = corrected.trades[1].price
    assert prices == [99.0, right, right, right] and len(found(load())) == 3


records_sent = st.builds(
    Sent,
    st.sampled_from(BOTH),
    st.integers(0, 40),  # two days
    st.integers(1, 30),
    st.integers(1, 4),
    st.sampled_from([0, 0, 1, 400]),
)
batches = st.lists(records_sent, min_size=1, max_size=4)


@settings(max_examples=few(5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(batches, batches, st.booleans()), min_size=1, max_size=4))
def test_two_drivers_replays_and_refills_leave_each_trade_once(
    steps: list[tuple[list[Sent], list[Sent], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        load = load_new(Path(folder), TICKS.name)
        expected = {}
        for batch, theirs, again in steps:
            send(load, batch, between=partial(send, load, theirs))
            if again:
                send(load, batch)
            for sent in (*batch, *theirs):
                for each in sent.trades():
                    expected[sent.ticker, each.number] = (each.price, each.amount, each.side)
        assert found(load()) == expected


def test_the_first_copy_stays_and_a_replay_writes_no_row(tmp_path: Path) -> None:
    load = load_new(tmp_path, TICKS.name)
    first, refill = Sent(BOTH[0], 0, 30, 1, 0), Sent(BOTH[0], 20, 20, 2, 400)
    assert send(load, [first]) is upsert.Path.APPEND
    assert send(load, [first]) is upsert.Path.NONE
    before = {task.file.file_path for task in load().scan().plan_files()}
    assert send(load, [refill]) is upsert.Path.REWRITE
    assert before < {task.file.file_path for task in load().scan().plan_files()}, "no file is written again"
    rows = TICKS.rows(load().scan().to_arrow())
    assert sorted((int(row["trade_id"][1:]), row["dispatch"]) for row in rows) == [
        (n, 1 if n < 30 else 2) for n in range(40)
    ]
    assert send(load, [first, refill]) is upsert.Path.NONE


def test_one_instruments_trades_in_a_range_are_read(tmp_path: Path) -> None:
    load = load_new(tmp_path, TICKS.name)
    send(load, [Sent(BOTH[0], 0, 30, 1, 0), Sent(BOTH[1], 0, 30, 1, 0)])
    where = rows_in(Series(BOTH[0], dataset=TRADES.dataset), TimeRange(second(5), second(10)))
    rows = TICKS.rows(load().scan(row_filter=where).to_arrow())
    assert sorted(row["trade_id"] for row in rows) == [f"t{n}" for n in range(10, 20)]
    assert {row["ticker"] for row in rows} == {BOTH[0]}


def test_snapshots_of_a_later_dispatch_replace_those_of_the_same_time(tmp_path: Path) -> None:
    load = load_new(tmp_path, TICKERS.name)

    def take(job: int, last: float, *places: tuple[str, int]) -> upsert.Path:
        head = snapshots_head(job=job)
        value, _ = snapshots_record(head, [snapshot(symbol, at_s, last=last) for symbol, at_s in places])
        span = TimeRange(second(0), second(20))
        return commit_as_driver(load, SNAPSHOTS, [(head, value)], [KeyRange((), span)])[0]

    assert take(2, 1.0, ("A", 0), ("B", 0), ("A", 15)) is upsert.Path.APPEND
    assert take(2, 1.0, ("A", 0), ("B", 0), ("A", 15)) is upsert.Path.NONE
    assert take(1, 9.0, ("A", 0)) is upsert.Path.NONE, "an older dispatch"
    assert take(3, 2.0, ("A", 15), ("C", 3)) is upsert.Path.REWRITE
    rows = TICKERS.rows(load().scan().to_arrow())
    assert sorted((row["ticker"], row["time"] * 1_000 == second(15), row["last"], row["dispatch"]) for row in rows) == [
        ("A.BINANCE", False, 1.0, 2),
        ("A.BINANCE", True, 2.0, 3),
        ("B.BINANCE", False, 1.0, 2),
        ("C.BINANCE", False, 2.0, 3),
    ]
