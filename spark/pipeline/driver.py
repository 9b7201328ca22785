"""Life cycle of the streaming query, in its own thread: start, watch, ack, restart, stop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from services.common.lake.catalog import CatalogSettings
from services.common.model.errors import SuiteError, Unavailable
from services.common.model.times import from_datetime
from spark.config import SparkSettings
from spark.maintenance.runner import MaintenanceRunner
from spark.metrics import Metrics
from spark.pipeline.batch import Pipeline
from spark.pipeline.fault import Fault, kill_driver
from spark.pipeline.reporter import RelayReporter, Reporter
from spark.runtime.locks import WriterLock, checkpoint_lock
from spark.runtime.session import build_session, jvm_pid
from spark.runtime.warm_up import warm_up
from spark.source.client import SourceClient
from spark.source.offsets import SourceState, from_json
from spark.source.replay import ack_before
from spark.tables.table import PageTable, ensure_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger(__name__)
_WATCH_SECONDS = 0.25
_PROBE_SECONDS = 2.0
_MAX_BACKOFF_S = 5.0
_READING = ("Waiting for data to arrive", "Waiting for next trigger")
"""Status messages of an idle query that has polled its source."""


class QueryFailed(SuiteError):
    """The query failed repeatedly; only a new process may help."""


class BatchFailed(SuiteError):
    """A batch failed; the query ends, and its restart replays the batch."""


def start_query(
    session: SparkSession,
    settings: SparkSettings,
    process: Callable[[DataFrame], None],
    *,
    drain: bool = False,
) -> StreamingQuery:
    """Start the streaming query; with ``drain`` it reads all present records in one batch and ends."""

    def batch(raw: DataFrame, batch_id: int) -> None:
        try:
            process(raw)
        except Exception as error:
            log.error("batch failed", batch_id=batch_id, error=_short(error))
            # Spark runs regular expressions on the text, which overflow its stack for a long Java trace.
            raise BatchFailed(_short(error)) from None

    stream = (
        session.readStream.format("udsource")
        .option("address", settings.source)
        .option("replay", "always")
        .option("minPartitions", str(session.sparkContext.defaultParallelism))
        .option("maxRecordsPerBatch", str(settings.max_records_per_batch))
        .option("drain", str(drain).lower())
        .load()
    )
    writer = stream.writeStream.foreachBatch(batch).option("checkpointLocation", settings.checkpoint)
    return (writer.trigger(availableNow=True) if drain else writer.trigger(processingTime="0 seconds")).start()


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
        self._acked: dict[str, int] = {}
        self._failed_attempts = 0
        self._ready = False

    def run(self) -> None:
        """Build the session and run the query until ``stop``; QueryFailed after more failures than allowed in a row."""
        with checkpoint_lock(self._settings.checkpoint) as record_jvm:
            session = build_session(self._settings, self._catalog)
            reporter = RelayReporter(self._settings.relay, self._stop, self.on_report_attempt)
            try:
                record_jvm(jvm_pid(session))
                ensure_tables(self._catalog.load())
                if self._settings.warm_up and self._settings.is_local and not self.has_backlog():
                    warm_up(session)
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

    def has_backlog(self) -> bool:
        """Return whether records are pending: they warm the session up as well, and are committed earlier."""
        if not self._source_answers() or self._state is None:
            return False
        return any(
            end > self._state.committed.get(p, self._state.starts.get(p, 0)) for p, end in self._state.ends.items()
        )

    def _source_answers(self) -> bool:
        try:
            self._state = self._source.state()
        except Unavailable:
            return False
        return True

    def _keep_running(self, session: SparkSession, pipeline: Pipeline) -> None:
        failures = 0
        while not self._stop.is_set():
            process = partial(self._process, pipeline)
            query = start_query(session, self._settings, process)
            if self._maintenance is not None:
                self._maintenance.attach(session)
            try:
                progressed = self._watch(query)
            finally:
                if self._maintenance is not None:
                    self._maintenance.detach()
                query.stop()
            if self._stop.is_set():
                return
            failures = 1 if progressed else failures + 1
            if failures > self._settings.restarts:
                raise QueryFailed(f"the query failed {failures} times in a row: {query.exception()}")
            self._metrics.restarts.inc()
            backoff_s = min(2.0 ** (failures - 1), _MAX_BACKOFF_S)
            log.error("query failed; restarting it", error=str(query.exception())[:2_000], backoff_s=backoff_s)
            self._stop.wait(backoff_s)
            self._wait_for_source()

    def _process(self, pipeline: Pipeline, raw: DataFrame) -> None:
        started = time.perf_counter()
        with self._writer_lock.batch():
            self._metrics.step_seconds.labels("lock").observe(time.perf_counter() - started)
            self._metrics.add(pipeline.process(raw))

    def _watch(self, query: StreamingQuery) -> bool:
        """Ack batches and update health while the query runs; return whether it finished a batch or became idle."""
        progressed = False
        reachable = True
        probe_in_s = 0.0
        while query.isActive and not self._stop.is_set():
            now_ns = time.time_ns()  # before the status, as a batch may begin in between
            idle = query.status["message"] in _READING
            progress = query.lastProgress
            if progress is not None:
                self._ack(progress.json)
            if idle:
                self._note_progress(now_ns)
            progressed = progressed or progress is not None or idle
            probe_in_s -= _WATCH_SECONDS
            if progressed and probe_in_s <= 0:
                probe_in_s = _PROBE_SECONDS
                reachable = self._source_answers()
                self._show_lag()
            self._set_ready(progressed and reachable and self._failed_attempts < self._settings.report_attempts)
            self._stop.wait(_WATCH_SECONDS)
        self._set_ready(False)
        return progressed

    def _ack(self, progress_json: str) -> None:
        """Ack the last finished batch.

        Spark publishes progress after it has written the batch to its commit log, so an ack never precedes the
        checkpoint. Spark calls the data source's own ``commit`` one batch later, which would leave the last batch
        unacked while the query is idle.
        """
        progress = json.loads(progress_json)
        end = progress["sources"][0]["endOffset"]
        if not end or end == self._acked:
            return
        self._note_progress(from_datetime(datetime.fromisoformat(progress["timestamp"])))
        try:
            ack_before(self._source, from_json(end))
            self._acked = end
        except Unavailable as error:
            log.warning("ack postponed", error=str(error))

    def _note_progress(self, settled_ns: int) -> None:
        """Record that every batch that began before this time is in Spark's commit log."""
        self._metrics.progress.set_to_current_time()
        if self._maintenance is not None:
            self._maintenance.settle(settled_ns)

    def _show_lag(self) -> None:
        if self._state is not None:
            self._metrics.show_lag(self._state.ends, dict(self._state.committed) | from_json(self._acked))

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._metrics.ready.set(ready)
            self._on_ready(ready)
