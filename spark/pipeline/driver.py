"""Life cycle of the streaming query, in its own thread: start, watch, ack, restart, stop.

A query starts at the offsets that the table has, so it needs no checkpoint of Spark's. While it decodes a batch, a
thread commits and reports the one before.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from services.common.lake.catalog import CatalogSettings
from services.common.model.errors import SuiteError, Unavailable
from spark.config import SparkSettings
from spark.maintenance.runner import MaintenanceRunner
from spark.metrics import Metrics
from spark.pipeline.batch import DecodedBatch, Pipeline
from spark.pipeline.commit_thread import CommitThread
from spark.pipeline.fault import Fault, kill_driver
from spark.pipeline.page_source import PAGES, page_source
from spark.pipeline.reporter import RelayReporter, Reporter
from spark.runtime.locks import WriterLock
from spark.runtime.session import build_session, jvm_pid
from spark.source.client import SourceClient
from spark.source.offsets import SourceState, cap, plan, to_json
from spark.source.replay import ack_before
from spark.tables.table import PageTable, ensure_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger(__name__)
_WATCH_SECONDS = 0.25
_PROBE_SECONDS = 2.0
_MAX_BACKOFF_S = 5.0
_FAILURES_BEFORE_QUARANTINE = 3
_READING = ("Waiting for data to arrive", "Waiting for next trigger")
"""Status messages of an idle query that has polled its source."""


class QueryFailed(SuiteError):
    """The query failed repeatedly; only a new process may help."""


class BatchFailed(SuiteError):
    """A batch failed; the query ends, and the next one repeats the batch."""


def start_query(
    session: SparkSession,
    settings: SparkSettings,
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
        session.readStream.format(PAGES)
        .option("address", settings.source)
        .option("replay", "always")
        .option("ack", "false")
        .option("startingOffsets", json.dumps(to_json(start)))
        .option("minPartitions", str(session.sparkContext.defaultParallelism))
        .option("maxRecordsPerBatch", str(settings.max_records_per_batch))
        .load()
    )
    return stream.writeStream.foreachBatch(batch).trigger(processingTime="0 seconds").start()


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


class Driver:
    """Runner of the query until ``stop`` is set."""

    def __init__(
        self,
        settings: SparkSettings,
        catalog: CatalogSettings,
        table: PageTable,
        *,
        stop: threading.Event,
        on_ready: Callable[[bool], None],
        registry: CollectorRegistry,
        writer_lock: WriterLock | None = None,
        maintenance: MaintenanceRunner | None = None,
    ) -> None:
        """Create the source client and the metrics.

        Args:
            on_ready: Called in the driver's thread whenever health changes.
            writer_lock: Shared with the maintenance; a batch holds it.
        """
        self._settings = settings
        self._catalog = catalog
        self._table = table
        self._stop = stop
        self._on_ready = on_ready
        self._metrics = Metrics(registry)
        self._writer_lock = writer_lock or WriterLock()
        self._maintenance = maintenance
        self._source = SourceClient(settings.source)
        self._state: SourceState | None = None
        self._acked: dict[int, int] = {}
        self._failed_attempts = 0
        self._ready = False
        self._progressed = False

    def run(self) -> None:
        """Build the session and run the query until ``stop``; QueryFailed after more failures than allowed in a row."""
        session = build_session(self._settings, self._catalog)
        reporter = RelayReporter(self._settings.relay, self._stop, self.on_report_attempt)
        try:
            ensure_tables(self._catalog.load())
            self.drive(session, reporter)
        finally:
            reporter.close()
            session.stop()

    def drive(self, session: SparkSession, reporter: Reporter) -> None:
        """Keep the query running in a session whose tables exist; the last part of ``run``, separate for tests."""
        fault = Fault.parse(self._settings.fault, partial(kill_driver, jvm_pid(session)))
        pipeline = Pipeline(self._table, self._catalog, self._settings.source, reporter, fault=fault)
        if self._maintenance is not None:
            threading.Thread(target=self._maintenance.run, args=(self._stop,), name="maintenance", daemon=True).start()
        session.dataSource.register(page_source(self._table, self._catalog))
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
            self._metrics.report_failures.labels(code).inc()

    def _wait_for_source(self) -> None:
        if self._stop.is_set() or self._source_answers():
            return
        log.info("waiting for the source", address=self._settings.source)
        while not self._stop.wait(0.5) and not self._source_answers():
            pass

    def _source_answers(self) -> bool:
        try:
            self._state = self._source.state()
        except Unavailable:
            return False
        return True

    def _keep_running(self, session: SparkSession, pipeline: Pipeline) -> None:
        commits = CommitThread(partial(self._commit, pipeline))
        failures = 0
        while not self._stop.is_set():
            error = self._run_query(session, pipeline, commits)
            if self._stop.is_set():
                return
            failures = 1 if self._progressed else failures + 1
            if failures > self._settings.restarts:
                raise QueryFailed(f"the query failed {failures} times in a row: {error}")
            self._metrics.restarts.inc()
            backoff_s = min(2.0 ** (failures - 1), _MAX_BACKOFF_S)
            log.error("query failed; restarting it", error=str(error)[:2_000], backoff_s=backoff_s)
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
            query = start_query(session, self._settings, partial(self._process, pipeline, commits), start)
            if self._maintenance is not None:
                self._maintenance.attach(session)
            self._watch(query, pipeline, commits)
            commits.wait()
        except Exception as error:
            return error
        finally:
            if self._maintenance is not None:
                self._maintenance.detach()
            if query is not None:
                query.stop()
            commits.close()
        return query.exception()

    def _quarantine(self, session: SparkSession, pipeline: Pipeline) -> None:
        """Process the next batch record by record, as far as necessary; only a record's own failure is its fault."""
        try:
            state = self._source.state()
            start = pipeline.resume(state)
            ranges = plan(start, cap(start, state.ends, self._settings.max_records_per_batch))
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
            self._metrics.step_seconds.labels("lock").observe(time.perf_counter() - started)
            self._metrics.add(pipeline.commit(batch))
        self._progressed = True

    def _watch(self, query: StreamingQuery, pipeline: Pipeline, commits: CommitThread) -> None:
        """Ack batches and update health while the query runs and no commit has failed."""
        reachable = True
        probe_in_s = 0.0
        while query.isActive and not commits.has_failed and not self._stop.is_set():
            if query.status["message"] in _READING and commits.is_idle:
                self._progressed = True
                self._metrics.progress.set_to_current_time()
            self._ack(pipeline.position)
            probe_in_s -= _WATCH_SECONDS
            if self._progressed and probe_in_s <= 0:
                probe_in_s = _PROBE_SECONDS
                reachable = self._source_answers()
                self._show_lag()
            self._set_ready(self._progressed and reachable and self._failed_attempts < self._settings.report_attempts)
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
