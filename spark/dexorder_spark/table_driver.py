"""Life cycle of a table's streaming query, in its own thread: start, watch, ack, restart, stop.

A query starts at the offsets that the table has, so it needs no checkpoint of Spark's. While it decodes a batch, a
thread commits and reports the one before. Where records may not come for long, a query runs only while they come: one
that waits costs processor time and a process.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_spark.config import SparkSettings
from dexorder_spark.metrics import TableMetrics
from dexorder_spark.pipeline.batch import DecodedBatch, Pipeline
from dexorder_spark.pipeline.page_source import Pace, format_of, page_source
from dexorder_spark.records.fault import Fault
from dexorder_spark.records.reporter import BatchReporter
from dexorder_spark.runtime.locks import WriterLock
from dexorder_spark.source.client import SourceClient
from dexorder_spark.source.offsets import SourceState, cap, plan, to_json
from dexorder_spark.source.replay import ack_before
from dexorder_spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger(__name__)
_WATCH_SECONDS = 0.25
_PROBE_SECONDS = 2.0
_MAX_BACKOFF_S = 5.0
_FAILURES_BEFORE_QUARANTINE = 3
_LOOK_SECONDS = 2.0
"""Time between two looks for records while no query runs."""
_IDLE_SECONDS = 300.0
"""Time without a record after which a query ends that does not always run. A quiet market has one a minute."""
_PAGE_SECONDS = 0.04
"""Time for which each page of a batch lets the next one collect: batches grow while over 25 pages a second come."""
_READING = ("Waiting for data to arrive", "Waiting for next trigger")
"""Status messages of an idle query that has polled its source."""


class QueryFailed(SuiteError):
    """The query failed repeatedly; only a new process may help."""


class BatchFailed(SuiteError):
    """A batch failed; the query ends, and the next one repeats the batch."""


@dataclass(frozen=True)
class QueryRules:
    """Reading of a table's topic.

    Attributes:
        source: Address with the topic, as ``SourceClient`` takes it.
        max_records: Largest number of records in a batch.
        pace: When a batch starts.
        always_runs: A query runs even without new records.
    """

    source: str
    max_records: int
    pace: Pace
    always_runs: bool

    @staticmethod
    def of(table: PageTable, settings: SparkSettings) -> QueryRules:
        """Return the rules of a table. Candles come by the source's own topic, and their query always runs."""
        if table.dataset is CANDLES:
            pace = Pace(settings.candle_batch_seconds, _PAGE_SECONDS)
            return QueryRules(settings.source, settings.max_records_per_batch, pace, always_runs=True)
        is_realtime = table.dataset.is_realtime
        max_records = settings.max_trade_records_per_batch if is_realtime else settings.max_records_per_batch
        pace = Pace(settings.batch_seconds, soonest_seconds=settings.batch_seconds / 2)
        return QueryRules(f"{settings.source}#{table.topic}", max_records, pace, always_runs=False)


def start_query(
    session: SparkSession,
    table: PageTable,
    rules: QueryRules,
    process: Callable[[DataFrame], None],
    start: Mapping[int, int],
) -> StreamingQuery:
    """Start the streaming query at these offsets.

    Its checkpoint is temporary: the table itself says where the next query starts, and ``process`` when to ack.
    """

    def batch(frame: DataFrame, batch_id: int) -> None:
        try:
            process(frame)
        except Exception as error:
            log.error("batch failed", batch_id=batch_id, error=_short(error))
            # Spark runs regular expressions on the text, which overflow its stack for a long Java trace.
            raise BatchFailed(_short(error)) from None

    stream = (
        session.readStream.format(format_of(table))
        .option("address", rules.source)
        .option("replay", "always")
        .option("ack", "false")
        .option("startingOffsets", json.dumps(to_json(start)))
        .option("minPartitions", str(session.sparkContext.defaultParallelism))
        .option("maxRecordsPerBatch", str(rules.max_records))
        .load()
    )
    return stream.writeStream.foreachBatch(batch).trigger(processingTime="0 seconds").start()


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


class CommitThread:
    """Commits of decoded batches, one after the other. An error is raised by the next call, and ends the query."""

    def __init__(self, commit: Callable[[DecodedBatch], None]) -> None:
        self._commit = commit
        self._executor = ThreadPoolExecutor(1, "commit")
        self._last: Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """True if every batch is committed."""
        return self._last is None or (self._last.done() and self._last.exception() is None)

    @property
    def has_failed(self) -> bool:
        """True if a commit has failed."""
        return self._last is not None and self._last.done() and self._last.exception() is not None

    def wait(self) -> None:
        """Wait until the batch before is committed; raise its error."""
        if self._last is not None:
            self._last.result()

    def submit(self, batch: DecodedBatch) -> None:
        """Commit a batch in the thread; ``wait`` must have returned."""
        self._last = self._executor.submit(self._commit, batch)

    def close(self) -> None:
        """Wait for the running commit to end in any way, and forget it."""
        if self._last is not None:
            wait([self._last])
        self._last = None


class TableDriver:
    """Runner of one table's query until ``stop`` is set."""

    def __init__(
        self,
        settings: SparkSettings,
        catalog: CatalogSettings,
        table: PageTable,
        *,
        stop: threading.Event,
        on_ready: Callable[[bool], None],
        metrics: TableMetrics,
        writer_lock: WriterLock | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Create the source client.

        Args:
            on_ready: Called in the driver's thread whenever health changes.
            writer_lock: Shared with the maintenance; a batch holds it.
            fault: For crash tests.
        """
        self._settings = settings
        self._catalog = catalog
        self._table = table
        self._stop = stop
        self._on_ready = on_ready
        self._metrics = metrics
        self._writer_lock = writer_lock or WriterLock()
        self._fault = fault
        self._rules = QueryRules.of(table, settings)
        self._source = SourceClient(self._rules.source)
        self._state: SourceState | None = None
        self._unavailable = ""
        self._acked: dict[int, int] = {}
        self._failed_attempts = 0
        self._ready = False
        self._progressed = False
        self._is_idle = False

    def drive(self, session: SparkSession, reporter: BatchReporter) -> None:
        """Keep the query running after the tables were created; QueryFailed after too many failures in a row."""
        pipeline = Pipeline(self._table, self._catalog, self._rules.source, reporter, fault=self._fault)
        session.dataSource.register(page_source(self._table, self._catalog, self._rules.pace))
        try:
            self._wait_for_source()
            self._keep_running(session, pipeline)
        finally:
            self._set_ready(False)

    def on_report_attempt(self, failed: int, code: str) -> None:
        """Record an attempt of the reporter; too many failures make health NOT_SERVING."""
        self._failed_attempts = failed
        self._metrics.report_attempts.set(failed)
        if failed:
            self._metrics.count_report_failure(code)

    def _wait_for_source(self) -> None:
        if self._stop.is_set() or self._source_answers():
            return
        log.info("waiting for the source", address=self._rules.source, reason=self._unavailable)
        while not self._stop.wait(0.5) and not self._source_answers():
            pass

    def _source_answers(self) -> bool:
        try:
            self._state = self._source.state()
        except (Unavailable, NotImplementedError) as error:
            self._unavailable = str(error)
            return False
        return True

    def _keep_running(self, session: SparkSession, pipeline: Pipeline) -> None:
        commits = CommitThread(partial(self._commit, pipeline))
        failures = 0
        while not self._stop.is_set():
            if not self._rules.always_runs:
                self._wait_for_records(pipeline)
            self._is_idle = False
            error = self._run_query(session, pipeline, commits)
            if self._is_idle and error is None:
                continue
            if self._stop.is_set():
                return
            failures = 1 if self._progressed else failures + 1
            if failures > self._settings.restarts:
                raise QueryFailed(f"{self._table.name}: the query failed {failures} times in a row: {error}")
            self._metrics.restarts.inc()
            backoff_s = min(2.0 ** (failures - 1), _MAX_BACKOFF_S)
            log.error(
                "query failed; restarting it", table=self._table.name, error=str(error)[:2_000], backoff_s=backoff_s
            )
            self._stop.wait(backoff_s)
            self._wait_for_source()
            if failures % _FAILURES_BEFORE_QUARANTINE == 0:
                self._quarantine(session, pipeline)

    def _run_query(self, session: SparkSession, pipeline: Pipeline, commits: CommitThread) -> Exception | None:
        """Run one query until it fails or ``stop`` is set; return the error."""
        self._progressed = False
        query = None
        try:
            start = pipeline.resume(self._source.state())
            process = partial(self._process, pipeline, commits)
            query = start_query(session, self._table, self._rules, process, start)
            self._watch(query, pipeline, commits)
            commits.wait()
        except Exception as error:
            return error
        finally:
            if query is not None:
                query.stop()
            commits.close()
        return query.exception()

    def _wait_for_records(self, pipeline: Pipeline) -> None:
        """Return once the source has records that are not committed, or ``stop`` is set."""
        known = None
        while not self._stop.is_set():
            if self._source_answers() and self._state is not None:
                if self._state != known:
                    known = self._state
                    if self._has_records_after(pipeline.resume(known)):
                        return
                self._acked = dict(pipeline.position)
                self._metrics.progress.set_to_current_time()
                self._show_lag()
                self._set_ready(True)
            else:
                self._set_ready(False)
            self._stop.wait(_LOOK_SECONDS)

    def _has_records_after(self, position: Mapping[int, int]) -> bool:
        """Return whether the source had records after a position when it was last asked."""
        ends = self._state.ends if self._state else {}
        return any(end > position.get(partition, 0) for partition, end in ends.items())

    def _quarantine(self, session: SparkSession, pipeline: Pipeline) -> None:
        """Process the next batch record by record, as far as necessary; only a record's own failure is its fault."""
        try:
            state = self._source.state()
            start = pipeline.resume(state)
            ranges = plan(start, cap(start, state.ends, self._rules.max_records))
            if ranges and (count := pipeline.quarantine(session, ranges)):
                self._metrics.quarantined.inc(count)
        except Exception as error:
            log.warning("no record is at fault", error=_short(error))

    def _process(self, pipeline: Pipeline, commits: CommitThread, frame: DataFrame) -> None:
        """Decode a batch beside the commit of the one before, and start its commit."""
        batch = pipeline.decode(frame)
        try:
            commits.wait()
        except Exception:
            pipeline.discard(batch.decoded)
            raise
        commits.submit(batch)

    def _commit(self, pipeline: Pipeline, batch: DecodedBatch) -> None:
        started = time.perf_counter()
        with self._writer_lock.batch():
            self._metrics.observe_step("lock", time.perf_counter() - started)
            self._metrics.add(pipeline.commit(batch))
        self._progressed = True

    def _watch(self, query: StreamingQuery, pipeline: Pipeline, commits: CommitThread) -> None:
        """Ack batches and update health while the query runs and no commit has failed."""
        reachable, was_ready = True, self._ready  # it was if the driver waited for records until now
        probe_in_s = 0.0
        quiet_since_s = time.monotonic()
        while query.isActive and not commits.has_failed and not self._stop.is_set():
            if query.status["message"] in _READING and commits.is_idle:
                self._progressed = True
                self._metrics.progress.set_to_current_time()
            self._ack(pipeline.position)
            if not commits.is_idle or self._has_records_after(pipeline.position):
                quiet_since_s = time.monotonic()
            if not self._rules.always_runs and time.monotonic() - quiet_since_s > _IDLE_SECONDS:
                log.info("no records; the query ends until there are some", table=self._table.name)
                self._is_idle = True
                return
            probe_in_s -= _WATCH_SECONDS
            if self._progressed and probe_in_s <= 0:
                probe_in_s = _PROBE_SECONDS
                reachable = self._source_answers()
                self._show_lag()
            is_reported = self._failed_attempts < self._settings.report_attempts
            self._set_ready((self._progressed or was_ready) and reachable and is_reported)
            self._stop.wait(_WATCH_SECONDS)
        self._set_ready(False)

    def _ack(self, position: Mapping[int, int]) -> None:
        """Ack the records that are committed and reported."""
        if position == self._acked:
            return
        end = dict(position)
        try:
            ack_before(self._source, end)
            self._acked = end
        except Unavailable as error:
            log.warning("ack postponed", error=str(error))

    def _show_lag(self) -> None:
        if self._state is not None:
            self._metrics.show_lag(self._state.ends, dict(self._state.committed) | self._acked)

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._metrics.ready.set(ready)
            self._on_ready(ready)
