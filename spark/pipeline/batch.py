"""One micro-batch, from raw records to rows, report and coverage, in crash-safe order.

1. Decode: the workers write the rows to files and return control rows to the driver. Then ask the relay for the
   dispatches; if a record does not count (``admission``), decode again without it.
2. Commit the dead letters; then the files of good pages, their claims of coverage and the offsets of the batch, with
   one snapshot.
3. Report every page and final with that snapshot, until the relay answers OK.

Then Spark writes its commit log, and only records in it are acked at the source. After a crash at any point the batch
is replayed: the upsert finds its own rows, the offsets say that the claims are there, and the relay knows the report.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog
from pyiceberg.manifest import DataFile

from services.common.clock import Clock, SystemClock
from services.common.lake.catalog import CatalogSettings
from services.common.lake.claims import claim_rows, write_claims
from services.common.lake.commit import CommitLost, remove_files
from services.common.lake.commit_state import state_of
from services.common.model.dispatch_id import number_of
from services.common.model.history import PageResult
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange
from spark.pipeline import upsert
from spark.pipeline.admission import Place, Refusal, refusal
from spark.pipeline.dead_letters import DeadLetter, append_dead_letters
from spark.pipeline.decode import DECODED_DDL, FILE_KIND, FINAL_KIND, PAGE_KIND, REFUSED_KIND, Rules
from spark.pipeline.fault import Fault, Moment
from spark.pipeline.files import Layout, stage, unpack
from spark.pipeline.reporter import FinalReport, Reporter
from spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class BatchResult:
    """Outcome of a batch, for logs and metrics."""

    rows: int = 0
    pages: int = 0
    finals: int = 0
    refused: int = 0
    path: str = upsert.Path.NONE
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By step: decode, write, report."""


class _StepTimer:
    """Seconds that each step of a batch took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step] = round(now - self._last, 3)
        self._last = now


class Pipeline:
    """Steps of a batch for one table; Spark calls ``process``, one batch at a time."""

    def __init__(
        self,
        table: PageTable,
        catalog: CatalogSettings,
        source: str,
        reporter: Reporter,
        *,
        clock: Clock | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Open the catalog, which Spark must have under the same name; ``source`` is named in the dead letters."""
        self._table = table
        self._catalog = catalog.load()
        self._catalog_name = catalog.name
        self._source = source
        self._reporter = reporter
        self._clock = clock or SystemClock()
        self._fault = fault

    def process(self, raw: DataFrame) -> BatchResult:
        """Run the steps on one batch of ``RAW``; safe to repeat."""
        timer = _StepTimer()
        session = raw.sparkSession
        layout = Layout.of(self._table, self._catalog.load_table(self._table.name))
        rules = Rules(self._clock.wall_ns())
        decoded = self._decode(raw, layout, rules)
        if refused := self._refusals(decoded, rules.now_ns):  # its rows are in files with those of others
            remove_files(layout.io, _files(decoded))
            decoded = self._decode(raw, layout, replace(rules, refusals=refused))
        timer.end("decode")
        result = self._commit(session, decoded, timer)
        log.info("batch", **vars(result))
        return result

    def _decode(self, raw: DataFrame, layout: Layout, rules: Rules) -> list[Row]:
        # Each task writes a file per partition, so there are no more tasks than run in parallel.
        tasks = raw.sparkSession.sparkContext.defaultParallelism
        return raw.coalesce(tasks).mapInArrow(stage(layout, rules), DECODED_DDL).collect()

    def _refusals(self, decoded: Sequence[Row], now_ns: int) -> dict[Place, Refusal]:
        """Return the well-formed pages and finals that do not count."""
        records = [row for row in decoded if row.kind in (PAGE_KIND, FINAL_KIND)]
        if not records:
            return {}
        issued = self._reporter.describe({row.control.dispatch_id for row in records})
        found = {}
        for row in records:
            series, span = _subject(row.control)
            is_page = row.kind == PAGE_KIND
            why = refusal(row.control.dispatch_id, series, span, issued, is_page=is_page, now_ns=now_ns)
            if why is not None:
                found[row.partition, row.offset] = why
        return found

    def _commit(self, session: SparkSession, decoded: Sequence[Row], timer: _StepTimer) -> BatchResult:
        pages = page_results(decoded)
        good = [page for page in pages if page.refused is None]
        finals = final_reports(decoded)
        letters = dead_letters(decoded)
        rows = sum(page.rows for page in good)
        self._pass(Moment.DECODED, rows)
        files = _files(decoded)
        for letter in letters:
            log.warning("record refused", partition=letter.partition, offset=letter.offset, reason=letter.reason)
        append_dead_letters(self._catalog, self._source, letters, now_ns=self._clock.wall_ns())
        path, snapshot_id = self._write(session, files, good, next_offsets(decoded))
        timer.end("write")
        self._pass(Moment.ROWS_COMMITTED, rows)
        if pages or finals:
            self._reporter.report(snapshot_id, pages, finals)
        timer.end("report")
        self._pass(Moment.REPORTED, rows)
        return BatchResult(rows, len(good), len(finals), len(letters), path, timer.seconds)

    def _write(
        self, session: SparkSession, files: Sequence[DataFile], good: Sequence[PageResult], ends: Mapping[int, int]
    ) -> tuple[upsert.Path, int | None]:
        """Commit rows, offsets and claims together, and look again as often as another writer is faster."""
        names = self._table.series_columns
        ranges = [upsert.KeyRange(tuple(getattr(p.series, name) for name in names), p.span) for p in good if p.rows]
        claims = ""
        while True:
            target = self._catalog.load_table(self._table.name)
            state = state_of(target.metadata)
            known = not good or state.includes(self._source, ends)
            if not (known or claims):
                claims = write_claims(target, claim_rows(good, now_ns=self._clock.wall_ns()))
            if self._fault:
                self._fault.commit_begins(target.location())
            number = max((number_of(page.dispatch_id) for page in good), default=0)
            after = state.after(self._source, ends, dispatch=number, claims="" if known else claims).encode()
            try:
                path, snapshot_id = upsert.write(
                    session, self._catalog_name, self._table, target, files, ranges, after, always=not known
                )
            except CommitLost as error:
                log.info("another writer was faster; looking again", table=self._table.name, error=str(error))
                continue
            if path is upsert.Path.MERGE:
                target = self._catalog.load_table(self._table.name)
            return path, snapshot_id or target.metadata.current_snapshot_id

    def _pass(self, moment: Moment, rows: int) -> None:
        if self._fault and rows:
            self._fault.passed(moment)


def _files(decoded: Iterable[Row]) -> list[DataFile]:
    return [unpack(row.file) for row in decoded if row.kind == FILE_KIND]


def _subject(control: Row) -> tuple[Series, TimeRange]:
    return Series(control.ticker, control.period_seconds), TimeRange(control.start_ns, control.end_ns)


def next_offsets(decoded: Iterable[Row]) -> dict[int, int]:
    """Return the next offset to read of each partition with records in the batch."""
    ends: dict[int, int] = {}
    for row in decoded:
        if row.partition is not None:
            ends[row.partition] = max(row.offset + 1, ends.get(row.partition, 0))
    return ends


def page_results(decoded: Iterable[Row]) -> list[PageResult]:
    """Return every page, good or refused, that names its dispatch; a record without readable headers does not."""
    return [
        PageResult(
            c.dispatch_id,
            *_subject(c),
            _ranges(c.empty or ()),
            c.reason,
            c.fetched_ns or 0,
            c.rows or 0,
        )
        for c in (row.control for row in decoded if row.kind in (PAGE_KIND, REFUSED_KIND))
        if c.dispatch_id is not None
    ]


def final_reports(decoded: Iterable[Row]) -> list[FinalReport]:
    """Return every final record."""
    return [
        FinalReport(c.dispatch_id, c.status, c.error_message, c.total_records)
        for c in (row.control for row in decoded if row.kind == FINAL_KIND)
    ]


def dead_letters(decoded: Iterable[Row]) -> list[DeadLetter]:
    """Return every refused record."""
    return [
        DeadLetter(
            partition=row.raw.partition,
            offset=row.raw.offset,
            reason=row.control.reason,
            key=row.raw.key,
            headers=row.raw.headers or {},
            payload=bytes(row.raw.payload or b""),
        )
        for row in decoded
        if row.kind == REFUSED_KIND
    ]


def _ranges(times_ns: Any) -> tuple[TimeRange, ...]:
    return tuple(TimeRange(start, end) for start, end in zip(times_ns[::2], times_ns[1::2], strict=True))
