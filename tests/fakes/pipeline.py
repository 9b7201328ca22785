"""Input of a pipeline under test, a receiver of its reports, and the expected content of its tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.coverage import decode_coverage
from dexorder_common.lake.tables import COVERAGE, OHLC
from dexorder_common.model.history import IssuedDispatch, PageResult
from dexorder_common.model.page import PageHeaders
from dexorder_common.model.periods import count_periods, total_periods
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_spark.records.reporter import FinalReport
from dexorder_spark.source.records import RAW_DDL
from tests.fakes.pages import MINUTE_NS, control, page, raw, span
from tests.fakes.source_server import FakeSource
from tests.rig.dispatches import issued

OTHER = "ETH/USDT.BINANCE"
Key = tuple[str, int]


@dataclass
class Recorder:
    """Receiver of reports; the n-th call can be made to fail, like a crash after the commit of the rows."""

    fail_calls: set[int] = field(default_factory=set)
    calls: int = 0
    snapshots: list[int | None] = field(default_factory=list)
    pages: list[PageResult] = field(default_factory=list)
    finals: list[FinalReport] = field(default_factory=list)

    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        return issued(dispatch_ids)

    def report(self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalReport]) -> None:
        self.calls += 1
        if self.calls in self.fail_calls:
            raise ConnectionError("crash before the report")
        self.snapshots.append(snapshot_id)
        self.pages += pages
        self.finals += finals


class Oracle:
    """Expected content of the tables after everything that was sent, whatever failed in between."""

    def __init__(self, source: FakeSource) -> None:
        self.source = source
        self.rows: dict[Key, tuple[int, int, float]] = {}
        self.claims: list[tuple[str, TimeRange, tuple[TimeRange, ...]]] = []
        self.sent = 0

    def send(self, head: PageHeaders, price: float = 100.0) -> None:
        payload, headers = page(head, price)
        self.source.add(self.sent % 2, payload, head.dispatch_id, headers)
        self.sent += 1
        for open_ns in range(head.span.start_ns, head.span.end_ns, MINUTE_NS):
            if not any(r.start_ns <= open_ns < r.end_ns for r in head.empty):
                key = (head.ticker, open_ns)
                self.rows[key] = max(self.rows.get(key, (0, 0, 0.0)), (head.dispatch, head.page, price))
        self.claims.append((head.ticker, head.span, head.empty))

    def send_history(self) -> None:
        """Send new and repeated ranges, newer and older copies, empty ranges, an empty page, two months and tickers."""
        for n in range(4):
            self.send(control(n * 20, 20, job=2, page=n))
        self.send(control(0, 40, job=3, ticker=OTHER, empty=(span(5, 10),)))
        self.send(control(40, 10, job=3, page=1, ticker=OTHER, empty=(span(40, 10),)))
        self.send(control(10, 20, job=4, fetched_s=1_600_000_000), price=200.0)
        self.send(control(15, 5, job=1, fetched_s=1_700_000_500), price=300.0)  # a clock that is ahead
        self.send(control(25, 5, job=4, page=1, fetched_s=1_500_000_000), price=400.0)

    def check(self, catalog: CatalogSettings) -> None:
        tables = catalog.load()
        found = tables.load_table(OHLC.name).scan().to_arrow().to_pylist()
        rows = {(r["ticker"], ns(r["open_time"])): (r["dispatch"], r["page"], r["open"]) for r in found}
        assert len(rows) == len(found), "a key is duplicated"
        assert rows == self.rows
        rows_of_coverage = [decode_coverage(row) for part in read_coverage(tables) for row in COVERAGE.rows(part)]
        for row in rows_of_coverage:
            empty = total_periods(row.empty, row.series.period_seconds)
            assert row.rows + empty == count_periods(row.span, row.series.period_seconds), "it does not add up"
        assert by_ticker((row.series.ticker, row.span) for row in rows_of_coverage) == by_ticker(
            (ticker, claimed) for ticker, claimed, _ in self.claims
        )
        assert by_ticker((row.series.ticker, hole) for row in rows_of_coverage for hole in row.empty) == by_ticker(
            (ticker, hole) for ticker, _, empty in self.claims for hole in empty
        )


def by_ticker(ranges: Iterable[tuple[str, TimeRange]]) -> dict[str, list[TimeRange]]:
    """Return the ranges of each ticker, those that touch as one."""
    found: dict[str, list[TimeRange]] = {}
    for ticker, part in ranges:
        found[ticker] = merge([*found.get(ticker, ()), part])
    return found


def ns(moment: Any) -> int:
    micros: int = round(moment.timestamp() * 1_000_000)
    return micros * 1_000


def frame(spark: SparkSession, records: list[tuple[bytes, dict[str, str]]]) -> Any:
    return spark.createDataFrame(pa.Table.from_batches([raw(*records)]), RAW_DDL)


def wait_until(condition: Callable[[], bool], timeout_s: float = 240.0) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("the condition did not become true")
