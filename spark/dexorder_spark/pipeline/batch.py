"""One micro-batch, from raw records to rows and report, in crash-safe order.

1. Decode: the workers write the rows to files and return control rows to the driver. Then ask the relay for the
   dispatches; if a record does not count (``admission``), decode again without it.
2. Commit the dead letters; then the files of good pages, their claims of coverage and the offsets of the batch, with
   one snapshot.
3. Report every page and final with that snapshot, until the relay answers OK.

Only then are the records acked at the source. The snapshot also has the offsets before which everything is reported. A
query starts there, so after a crash at any point the batch is repeated: the upsert finds its own rows, the offsets say
that the claims are there, and the relay knows the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog
from pyiceberg.manifest import DataFile

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import join_pages
from dexorder_common.lake.commit import remove_files
from dexorder_common.lake.commit_state import state_of
from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_common.model.history import PageResult
from dexorder_common.model.time_range import TimeRange
from dexorder_spark.pipeline import upsert
from dexorder_spark.pipeline.controls import DECODED_DDL, MAX_REASON_LENGTH, Rules
from dexorder_spark.pipeline.decoded import Decoded
from dexorder_spark.pipeline.files import FileLayout, Stage
from dexorder_spark.pipeline.iceberg_batch import IcebergBatch
from dexorder_spark.pipeline.place import SourcePlace, finished
from dexorder_spark.pipeline.ranges import KeyRange
from dexorder_spark.pipeline.traces import BatchTimes, record_batch
from dexorder_spark.records.admission import Place, RecordRefusal, refusal
from dexorder_spark.records.dead_letters import LetterLayout, LetterWriter, append_dead_letters
from dexorder_spark.records.fault import Fault, Moment
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.records.reporter import BatchReporter
from dexorder_spark.source.client import SourceBroken, SourceClient
from dexorder_spark.source.offsets import OffsetRange, Offsets, SourceState, resume, share, to_json
from dexorder_spark.source.records import RAW, RAW_DDL, to_batch
from dexorder_spark.source.udsource import read_ranges
from dexorder_spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)
Attempt = Callable[[Sequence[OffsetRange]], None]
"""Processes the records of some ranges, or raises."""
_MAX_LOGGED = 300


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


@dataclass(frozen=True)
class DecodedBatch:
    """A batch with its files written and its refused records known."""

    session: SparkSession
    decoded: Decoded
    seconds: float
    began_ns: int = 0
    """Wall clock time at which decoding started."""
    epochs: Offsets = field(default_factory=dict)
    """Epochs of the partitions' leaders before and after the batch was read."""


class LeadersChanged(SuiteError):
    """Partitions changed their leaders while a batch of them was read: it is read again."""


class Pipeline:
    """Steps of a batch for one table. One batch is decoded, and one committed, at a time."""

    def __init__(
        self,
        table: PageTable,
        catalog: CatalogSettings,
        source: str,
        reporter: BatchReporter,
        *,
        clock: Clock | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Open the catalog, which Spark must have under the same name.

        Args:
            source: Address of the source, as ``SourceClient`` takes it.
        """
        self._table = table
        self._catalog = catalog.load()
        self._source = source
        self._reporter = reporter
        self._clock = clock or SystemClock()
        self._fault = fault
        self._place = SourcePlace(source)

    @property
    def position(self) -> dict[int, int]:
        """Next offset of each partition; the records before it are committed and reported."""
        return self._place.position

    def resume(self, log_state: SourceState) -> dict[int, int]:
        """Return the offsets at which a query starts: the table's, or the group's if the table has not stored one.

        If the table has read another log, which was deleted since, the log is read from its start.
        """
        state = state_of(self._catalog.load_table(self._table.name).metadata)
        place = self._place
        place.topic_id = log_state.topic_id
        known = to_json(state.offsets.get(self._source, {}), topic_id=state.topics.get(self._source, ""))
        lost = SourceClient(self._source).lost_logs(known, state.epochs.get(self._source, {}), log_state)
        if lost:
            log.error("the table has read another log; this one is read from its start", reasons=lost)
        place.begun_anew = {*lost}
        place.position = resume(state.without(self._source, place.begun_anew).position(self._source), log_state)
        return place.position

    def process(self, frame: DataFrame) -> BatchResult:
        """Run the steps of the two methods below on one batch; safe to repeat."""
        return self.commit(self.decode(frame))

    def decode(self, frame: DataFrame) -> DecodedBatch:
        """Write the files of a batch: of ``RAW``, or of ``page_source`` with decoding tasks."""
        started = time.perf_counter()
        session, now_ns = frame.sparkSession, self._clock.wall_ns()
        epochs = self._leader_epochs() if "kind" in frame.columns else {}
        staged = frame if "kind" in frame.columns else self._stage(frame, Rules(now_ns))
        decoded = Decoded(self._table, staged.collect())
        if refused := self._refusals(decoded, now_ns):  # its rows share files with rows of other pages
            self.discard(decoded)
            raw = read_ranges(session, self._source, decoded.ranges()) if "kind" in frame.columns else frame
            decoded = Decoded(self._table, self._stage(raw, Rules(now_ns, refused)).collect())
        if epochs and (changed := decoded.ends().keys() & _changes(epochs, self._leader_epochs())):
            self.discard(decoded)
            raise LeadersChanged(f"partitions {sorted(changed)} have other leaders than when the batch began")
        return DecodedBatch(session, decoded, round(time.perf_counter() - started, 3), now_ns, epochs)

    def _leader_epochs(self) -> Offsets:
        return SourceClient(self._source).state().epochs

    def _stage(self, raw: DataFrame, rules: Rules) -> DataFrame:
        layout = FileLayout.of(self._table, self._catalog.load_table(self._table.name))
        stage = Stage(layout, LetterLayout.of(self._source, self._catalog), rules)
        # Each task writes a file per partition, so the number of tasks is limited to the ones that run in parallel.
        tasks = raw.sparkSession.sparkContext.defaultParallelism
        return raw.coalesce(tasks).mapInArrow(stage.run, DECODED_DDL)

    def _refusals(self, decoded: Decoded, now_ns: int) -> dict[Place, RecordRefusal]:
        """Return the well-formed pages and finals that do not count."""
        records = decoded.candidates()
        if not records:
            return {}
        issued = self._reporter.describe({record.dispatch_id for record in records})
        found = {}
        for each in records:
            why = refusal(each.dispatch_id, each.series, each.span, issued, is_page=each.is_page, now_ns=now_ns)
            if why is not None:
                found[each.place] = why
        return found

    def discard(self, decoded: Decoded) -> None:
        """Delete the files of a batch that is not committed."""
        remove_files(self._catalog.load_table(self._table.name).io, [*decoded.files(), *decoded.letters()])

    def commit(self, batch: DecodedBatch) -> BatchResult:
        """Commit and report a decoded batch, and move the position."""
        decoded, seconds = batch.decoded, {"decode": batch.seconds}
        started, decoded_ns = time.perf_counter(), self._clock.wall_ns()
        pages, finals, refused = decoded.pages(), decoded.finals(), decoded.refused()
        good = {place: page for place, page in pages.items() if page.refused is None}
        rows = sum(page.rows for page in good.values())
        self._pass(Moment.DECODED, rows)
        for (partition, offset, *_), reason in refused.items():
            log.warning("record refused", partition=partition, offset=offset, reason=reason)
        append_dead_letters(self._catalog, self._source, refused, decoded.letters())
        row_ranges = decoded.row_ranges(self._table.tolerance_ns)
        ranges = [self._key_range(good[place], span) for place, span in row_ranges.items()]
        path, snapshot_id = self._write(
            batch.session, decoded.files(), good, ranges, decoded.ends(), epochs=batch.epochs
        )
        committed, committed_ns = time.perf_counter(), self._clock.wall_ns()
        self._pass(Moment.ROWS_COMMITTED, rows)
        if pages or finals:
            reported = [*pages.values()]
            self._reporter.report(snapshot_id, join_pages(reported) if self._table.joins_pages else reported, finals)
        self._pass(Moment.REPORTED, rows)
        times = BatchTimes(batch.began_ns or decoded_ns, decoded_ns, committed_ns, self._clock.wall_ns())
        name, topic = self._table.name, self._table.topic
        record_batch(topic, name, good.values(), finals, times, operation=path, snapshot_id=snapshot_id)
        self._place.reported(decoded.ends())
        seconds |= {"write": round(committed - started, 3), "report": round(time.perf_counter() - committed, 3)}
        result = BatchResult(rows, len(good), len(finals), len(refused), path, seconds)
        log.info("batch", **vars(result))
        return result

    def quarantine(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> int:
        """Process ranges and keep each record that fails alone as a dead letter; return the number of these.

        Any error means that something else than a record is at fault.
        """

        def attempt(parts: Sequence[OffsetRange]) -> None:
            self.process(read_ranges(session, self._source, parts))

        def check() -> None:
            SourceClient(self._source).state()
            staged = self._stage(session.createDataFrame(self._sample(), RAW_DDL), Rules())
            decoded = Decoded(self._table, staged.collect())
            self.discard(decoded)

        return isolate(ranges, attempt, check, partial(self._skip, session))

    def _sample(self) -> pa.Table:
        """Return a good page in the columns of ``RAW``."""
        headers, payload = self._table.sample()
        given = {"payload": payload, "key": "sample", "headers": list(headers.encode().items())}
        return pa.Table.from_pylist([given | {"event_time": 0, "partition": 0, "offset": 0}], schema=RAW)

    def _key_range(self, page: PageResult, span: TimeRange) -> KeyRange:
        return KeyRange(tuple(getattr(page.series, name) for name in self._table.series_columns), span)

    def _skip(self, session: SparkSession, part: OffsetRange, reason: str) -> None:
        """Commit a record as a dead letter, and the offset after it."""
        log.error("record fails every batch", partition=part.partition, offset=part.start, reason=reason)
        writer = LetterWriter(LetterLayout.of(self._source, self._catalog), now_ns=self._clock.wall_ns())
        for record in self._read(part):
            writer.add(record, reason[:MAX_REASON_LENGTH])
        writer.flush()
        append_dead_letters(self._catalog, self._source, {(part.partition, part.start)}, writer.written)
        self._write(session, (), {}, (), {part.partition: part.end}, always=True)
        self._place.reported({part.partition: part.end})

    def _read(self, part: OffsetRange) -> list[dict[str, Any]]:
        try:
            batches = [to_batch(results) for results in SourceClient(self._source).read(part)]
        except SourceBroken:  # the source cannot send the record
            return [{"partition": part.partition, "offset": part.start, "key": None, "payload": None, "headers": None}]
        return [record for batch in batches for record in batch.select(RAW.names).to_pylist()]

    def _write(
        self,
        session: SparkSession,
        files: Sequence[DataFile],
        good: Mapping[Place, PageResult],
        ranges: Sequence[KeyRange],
        ends: Offsets,
        *,
        always: bool = False,
        epochs: Offsets = MappingProxyType({}),
    ) -> tuple[upsert.Path, int | None]:
        """Commit rows, offsets and claims together; return how, and the snapshot that has them."""
        table = IcebergBatch(self._catalog.load_table, self._table, session, files, ranges, self._clock, self._fault)
        path, snapshot_id, current_id = finished(self._place.commit(table, good, ends, epochs=epochs, always=always))
        if snapshot_id or path is upsert.Path.MERGE:
            self._place.committed(ends)
        return path, snapshot_id or current_id

    def _pass(self, moment: Moment, rows: int) -> None:
        if self._fault and rows:
            self._fault.passed(moment)


def isolate(
    ranges: Sequence[OffsetRange], attempt: Attempt, check: Callable[[], None], skip: Callable[[OffsetRange, str], None]
) -> int:
    """Process the ranges, in order, and pass each record that fails alone to ``skip``; return the number of these.

    This is the last resort, for a record that ends the worker itself: the decoder refuses all that it can. Ever smaller
    parts are processed, each committed at once. A record is at fault only if it fails a second time, after a check that
    everything else works, and if everything else still works then: a source, a disk or a catalog that is lost for a
    minute fails any record.

    Args:
        check: Raises unless the source answers and a record that is known to be good can be processed.
        skip: Receives the record's range, and the error.

    Raises:
        Unavailable: A required part cannot be reached, independent of the record.
    """
    try:
        attempt(ranges)
        return 0
    except (Stopped, Unavailable):
        raise
    except Exception as error:
        log.info("a part of the batch failed", ranges=[str(each) for each in ranges], error=repr(error)[:_MAX_LOGGED])
    halves = share(ranges, 2)
    if len(halves) > 1:
        return sum(isolate(half, attempt, check, skip) for half in halves)
    check()
    try:
        attempt(halves[0])
        return 0
    except (Stopped, Unavailable):
        raise
    except Exception as error:
        check()
        skip(halves[0][0], f"{type(error).__name__}: {error}")
        return 1


def _changes(before: Offsets, after: Offsets) -> set[int]:
    return {partition for partition, epoch in before.items() if after.get(partition) != epoch}
