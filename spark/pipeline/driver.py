"""The streaming query's life, in a thread of its own: start, watch, ack, restart, stop."""

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
from spark.config import SparkSettings
from spark.maintenance.runner import MaintenanceRunner
from spark.metrics import Metrics
from spark.pipeline.batch import Pipeline
from spark.pipeline.fault import Fault, kill_driver
from spark.pipeline.reporter import RelayReporter, Reporter
from spark.runtime.checkpoint_lock import CheckpointLock
from spark.runtime.session import build_session, jvm_pid
from spark.runtime.warm_up import warm_up
from spark.runtime.writer_lock import WriterLock
from spark.source.client import SourceClient
from spark.source.offsets import SourceState, from_json
from spark.source.udsource import ack_before
from spark.tables.definitions import ensure_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger(__name__)
_WATCH_SECONDS = 0.25
_PROBE_SECONDS = 2.0
_LONGEST_BACKOFF_S = 5.0
_READING = ("Waiting for data to arrive", "Waiting for next trigger")
"""What an idle query's status says after it has looked at its source."""


class QueryFailed(SuiteError):
    """The query failed again and again; only a new process may help."""


class BatchFailed(SuiteError):
    """A batch failed; the query ends and its restart replays it."""


def start_query(
    session: SparkSession, settings: SparkSettings, process: Callable[[DataFrame], None], *, drain: bool = False
) -> StreamingQuery:
    """Start the streaming query; ``drain`` takes everything that is there now in one batch and ends."""

    def batch(raw: DataFrame, batch_id: int) -> None:
        try:
            process(raw)
        except Exception as error:
            log.error("batch failed", batch_id=batch_id, error=_short(error))
            # Spark runs regular expressions over the text, which overflow its stack on a long Java trace.
            raise BatchFailed(_short(error)) from None

    stream = (
        session.readStream.format("udsource")
        .option("address", settings.source)
        .option("replay", "always")
        .option("maxRecordsPerBatch", str(settings.max_records_per_batch))
        .option("drain", str(drain).lower())
        .load()
    )
    writer = stream.writeStream.foreachBatch(batch).option("checkpointLocation", settings.checkpoint)
    return (writer.trigger(availableNow=True) if drain else writer.trigger(processingTime="0 seconds")).start()


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


class Driver:
    """Runs the query until ``stop`` is set."""

    def __init__(
        self,
        settings: SparkSettings,
        catalog: CatalogSettings,
        *,
        stop: threading.Event,
        on_ready: Callable[[bool], None],
        registry: CollectorRegistry,
        writer_lock: WriterLock | None = None,
        runner: MaintenanceRunner | None = None,
    ) -> None:
        """Take the parts.

        Args:
            on_ready: Told, from the driver's thread, whenever health changes.
            turns: Shared with the caretaker; a batch runs in its turn.
            caretaker: Cares for the tables while the query runs; None for none.
        """
        self._settings = settings
        self._catalog = catalog
        self._stop = stop
        self._on_ready = on_ready
        self._metrics = Metrics(registry)
        self._writer_lock = writer_lock or WriterLock()
        self._runner = runner
        self._source = SourceClient(settings.source)
        self._state: SourceState | None = None
        self._acked: dict[str, int] = {}
        self._failed_tries = 0
        self._ready = False

    def run(self) -> None:
        """Everything, until ``stop``.

        Raises:
            QueryFailed: The query failed more often in a row than the settings allow.
        """
        with CheckpointLock(self._settings.checkpoint) as guard:
            session = build_session(self._settings, self._catalog)
            reporter = RelayReporter(self._settings.relay, self._stop, self.on_report_try)
            try:
                guard.note_jvm(jvm_pid(session))
                ensure_tables(self._catalog.load())
                if self._settings.warm_up and self._settings.is_local and not self.has_backlog():
                    warm_up(session)
                self.drive(session, reporter)
            finally:
                reporter.close()
                session.stop()

    def drive(self, session: SparkSession, reporter: Reporter) -> None:
        """Keep the query running in a session whose tables are there; the end of ``run``, apart for tests."""
        fault = Fault.parse(self._settings.fault, partial(kill_driver, jvm_pid(session)))
        pipeline = Pipeline(self._catalog, self._settings.source, reporter, fault=fault)
        caring = threading.Thread(target=self._care, name="caretaker", daemon=True)
        caring.start()
        try:
            self._wait_for_source()
            self._keep_running(session, pipeline)
        finally:
            self._set_ready(False)

    def _care(self) -> None:
        if self._runner is not None:
            self._runner.run(self._stop)

    def on_report_try(self, failed: int, code: str) -> None:
        """What the reporter says of each try; too many failed ones show in health."""
        self._failed_tries = failed
        self._metrics.report_tries.set(failed)
        if failed:
            self._metrics.report_failures.labels(code).inc()

    def _wait_for_source(self) -> None:
        told = False
        while not self._stop.is_set() and not self._source_answers():
            if not told:
                log.info("waiting for the source", address=self._settings.source)
            told = True
            self._stop.wait(0.5)

    def has_backlog(self) -> bool:
        """Whether records wait for us; they warm the session as well as a rehearsal, and are done sooner."""
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
            query = start_query(session, self._settings, partial(self._process, pipeline))
            if self._runner is not None:
                self._runner.attach(session)
            try:
                progressed = self._watch(query)
            finally:
                if self._runner is not None:
                    self._runner.detach()
                query.stop()
            if self._stop.is_set():
                return
            failures = 1 if progressed else failures + 1
            if failures > self._settings.restarts:
                raise QueryFailed(f"the query failed {failures} times in a row: {query.exception()}")
            self._metrics.restarts.inc()
            backoff_s = min(2.0 ** (failures - 1), _LONGEST_BACKOFF_S)
            log.error("query failed; starting it again", error=str(query.exception())[:2_000], backoff_s=backoff_s)
            self._stop.wait(backoff_s)
            self._wait_for_source()

    def _process(self, pipeline: Pipeline, raw: DataFrame) -> None:
        started = time.perf_counter()
        with self._writer_lock.batch():
            self._metrics.step_seconds.labels("turn").observe(time.perf_counter() - started)
            self._metrics.add(pipeline.process(raw))

    def _watch(self, query: StreamingQuery) -> bool:
        """Ack and keep health true while the query lives; returns whether it finished a batch or got idle."""
        progressed, probe_in_s, reachable = False, 0.0, True
        while query.isActive and not self._stop.is_set():
            now_ns, idle, progress = time.time_ns(), query.status["message"] in _READING, query.lastProgress
            if progress is not None:
                self._ack(progress.json)
            if idle:
                self._note_progress(now_ns)
            progressed = progressed or progress is not None or idle
            probe_in_s -= _WATCH_SECONDS
            if progressed and probe_in_s <= 0:
                probe_in_s, reachable = _PROBE_SECONDS, self._source_answers()
                self._show_lag()
            self._set_ready(progressed and reachable and self._failed_tries < self._settings.report_tries)
            self._stop.wait(_WATCH_SECONDS)
        self._set_ready(False)
        return progressed

    def _ack(self, progress_json: str) -> None:
        """Ack the last finished batch.

        Progress is published after the batch is in Spark's commit log, so an ack never runs ahead of the checkpoint.
        The data source's own commit comes one batch later, which would leave the last one open while idle.
        """
        progress = json.loads(progress_json)
        end = progress["sources"][0]["endOffset"]
        if not end or end == self._acked:
            return
        self._note_progress(_wall_ns(progress["timestamp"]))
        try:
            ack_before(self._source, from_json(end))
            self._acked = end
        except Unavailable as error:
            log.warning("ack postponed", error=str(error))

    def _note_progress(self, settled_ns: int) -> None:
        """Every batch that began before then is settled."""
        self._metrics.progress.set_to_current_time()
        if self._runner is not None:
            self._runner.settle(settled_ns)

    def _show_lag(self) -> None:
        if self._state is not None:
            self._metrics.show_lag(self._state.ends, dict(self._state.committed) | from_json(self._acked))

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._metrics.ready.set(ready)
            self._on_ready(ready)


def _wall_ns(text: str) -> int:
    """Of a progress' timestamp, ISO in UTC."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000) * 1_000_000
