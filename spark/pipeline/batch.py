"""One micro-batch, from raw records to rows, report and coverage, in crash-safe order.

1. Decode: the workers write the candles into files and hand the control rows to the driver.
2. Commit the files of good pages, and the dead letters.
3. Report every page and final with the table's snapshot, until the relay has answered OK.
4. Commit the coverage of the good pages.
Then Spark writes its commit log, and only what is in there is acked at the source. A crash anywhere replays the batch:
the upsert and the ledger find their own rows, the relay knows the report.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from pyiceberg.manifest import DataFile

from services.common.clock import Clock, SystemClock
from services.common.lake.catalog import OHLC_TABLE, CatalogSettings
from services.common.model.time_range import TimeRange
from spark.pipeline import coverage_table, upsert
from spark.pipeline.columns import DECODED_DDL, FILE_KIND, FINAL_KIND, PAGE_KIND, REFUSED_KIND
from spark.pipeline.fault import Fault, Moment
from spark.pipeline.files import Layout, stage, unpack
from spark.pipeline.reporter import FinalReport, PageReport, Reporter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class BatchResult:
    """What a batch came to; for logs and metrics."""

    candles: int = 0
    pages: int = 0
    finals: int = 0
    refused: int = 0
    path: str = "none"
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By step: decode, write, report, coverage."""


class _Times:
    """Seconds each step of a batch took."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 3)
        self._last = now


class Pipeline:
    """Holds what a batch needs; ``process`` is called by Spark, one batch at a time."""

    def __init__(
        self,
        catalog: CatalogSettings,
        source: str,
        reporter: Reporter,
        *,
        clock: Clock | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Take the parts.

        Args:
            catalog: Spark must know it under the same name.
            source: Name of the source in the dead letters.
            reporter: Gets every batch's pages and finals.
            fault: Kills the process at a moment of a batch; for crash tests.
        """
        self._catalog = catalog.load()
        self._table_name = f"`{catalog.name}`.{OHLC_TABLE}"
        self._source = source
        self._reporter = reporter
        self._clock = clock or SystemClock()
        self._fault = fault

    def process(self, raw: DataFrame) -> BatchResult:
        """Run the four steps on one batch of ``spark.pipeline.columns.RAW``; safe to repeat."""
        times = _Times()
        session = raw.sparkSession
        layout = Layout.of(self._catalog.load_table(OHLC_TABLE))
        # Each task writes a file a partition: no more tasks than can run at once.
        staged = raw.coalesce(session.sparkContext.defaultParallelism).mapInArrow(stage(layout), DECODED_DDL)
        rows = staged.collect()
        times.lap("decode")
        result = self._commit(session, rows, times)
        log.info("batch", **vars(result))
        return result

    def _commit(self, session: SparkSession, rows: Sequence[Row], times: _Times) -> BatchResult:
        reports = page_reports(rows)
        finals = final_reports(rows)
        good = good_pages(rows)
        refused = sum(row.kind == REFUSED_KIND for row in rows)
        candles = sum(page.rows for page in good)
        self._pass(Moment.DECODED, candles)
        files = [unpack(row.file) for row in rows if row.kind == FILE_KIND]
        path = self._write(session, files, good) if candles else "none"
        if refused:
            self._dead_letter(rows)
        times.lap("write")
        self._pass(Moment.ROWS_COMMITTED, candles)
        if reports or finals:
            self._reporter.report(self._snapshot_id(), reports, finals)
        times.lap("report")
        coverage_table.append_coverage(self._catalog, good, now_ns=self._clock.wall_ns())
        times.lap("coverage")
        self._pass(Moment.REPORTED, candles)
        return BatchResult(candles, len(good), len(finals), refused, path, times.laps)

    def _write(self, session: SparkSession, files: Sequence[DataFile], good: Sequence[coverage_table.GoodPage]) -> str:
        ranges = [upsert.KeyRange(p.ticker, p.period_seconds, p.span) for p in good if p.rows]
        target = self._catalog.load_table(OHLC_TABLE)
        if self._fault:
            self._fault.commit_begins(target.location())
        return upsert.write(session, self._table_name, target, files, ranges)

    def _dead_letter(self, rows: Iterable[Row]) -> None:
        letters = [
            coverage_table.DeadLetter(
                partition=row.raw.partition,
                offset=row.raw.offset,
                reason=row.control.reason,
                key=row.raw.key,
                headers=row.raw.headers or {},
                payload=bytes(row.raw.payload or b""),
            )
            for row in rows
            if row.kind == REFUSED_KIND
        ]
        for letter in letters:
            log.warning("record refused", partition=letter.partition, offset=letter.offset, reason=letter.reason)
        coverage_table.append_dead_letters(self._catalog, self._source, letters, now_ns=self._clock.wall_ns())

    def _pass(self, moment: Moment, candles: int) -> None:
        if self._fault and candles:
            self._fault.passed(moment)

    def _snapshot_id(self) -> int | None:
        snapshot = self._catalog.load_table(OHLC_TABLE).current_snapshot()
        return snapshot.snapshot_id if snapshot else None


def good_pages(rows: Iterable[Row]) -> list[coverage_table.GoodPage]:
    """The pages whose candles are to be written."""
    return [
        coverage_table.GoodPage(c.ticker, c.period_seconds, _span(c), c.fetched_ns, c.rows, _empty(c))
        for c in (row.control for row in rows if row.kind == PAGE_KIND)
    ]


def page_reports(rows: Iterable[Row]) -> list[PageReport]:
    """Every page, good or refused, that says whose it is; a record without readable headers has no job to report to."""
    return [
        PageReport(c.job_id, c.ticker, c.period_seconds, _span(c), c.rows or 0, _empty(c), c.reason, c.fetched_ns or 0)
        for c in (row.control for row in rows if row.kind in (PAGE_KIND, REFUSED_KIND))
        if c.job_id is not None
    ]


def final_reports(rows: Iterable[Row]) -> list[FinalReport]:
    """Every final record."""
    return [
        FinalReport(c.job_id, c.status, c.error_message, c.total_records)
        for c in (row.control for row in rows if row.kind == FINAL_KIND)
    ]


def _span(control: Any) -> TimeRange:
    return TimeRange(control.start_ns, control.end_ns)


def _empty(control: Any) -> tuple[TimeRange, ...]:
    times = control.empty or []
    return tuple(TimeRange(start, end) for start, end in zip(times[::2], times[1::2], strict=True))
