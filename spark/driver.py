"""The streaming query's life, in a thread of its own: start, watch, ack, restart, stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.common.catalog import CatalogSettings
from services.common.errors import SuiteError, Unavailable
from spark.config import SparkSettings
from spark.fault import Fault, kill_driver
from spark.guard import CheckpointGuard
from spark.notify import RelayReporter, Reporter
from spark.pipeline import BatchResult, Pipeline
from spark.session import build_session, jvm_pid
from spark.source.client import SourceClient
from spark.source.offsets import from_json
from spark.source.udsource import ack_before
from spark.tables import ensure_tables
from spark.warmup import warm_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger(__name__)
_WATCH_SECONDS = 0.25
_PROBE_SECONDS = 2.0
_LONGEST_BACKOFF_S = 30.0
_READING = ("Waiting for data to arrive", "Waiting for next trigger")
"""What an idle query's status says after it has looked at its source."""


class QueryFailed(SuiteError):
    """The query failed again and again; only a new process may help."""


class BatchFailed(SuiteError):
    """A batch failed; the query ends and its restart replays it."""


class Metrics:
    """Counters of the pipeline."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"dexorder_spark_{name}", text, registry=registry)

        self.batches = counter("batches", "Micro-batches committed.")
        self.candles = counter("candles", "Candles written.")
        self.pages = counter("pages", "Good pages.")
        self.refused = counter("refused_records", "Records refused.")
        self.restarts = counter("query_restarts", "Times the query was started anew after a failure.")
        self.step_seconds = Histogram(
            "dexorder_spark_step_seconds", "Time of one step of a batch.", ["step"], registry=registry
        )
        self.ready = Gauge("dexorder_spark_ready", "1 while the query reads from its source.", registry=registry)

    def add(self, result: BatchResult) -> None:
        """Count one batch."""
        self.batches.inc()
        self.candles.inc(result.candles)
        self.pages.inc(result.pages)
        self.refused.inc(result.refused)
        for step, seconds in result.seconds.items():
            self.step_seconds.labels(step).observe(seconds)


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
    ) -> None:
        self._settings, self._catalog, self._stop, self._on_ready = settings, catalog, stop, on_ready
        self._metrics = Metrics(registry)
        self._source = SourceClient(settings.source)
        self._acked: dict[str, int] = {}
        self._ready = False

    def run(self) -> None:
        """Everything, until ``stop``.

        Raises:
            QueryFailed: The query failed more often in a row than the settings allow.
        """
        with CheckpointGuard(self._settings.checkpoint) as guard:
            session = build_session(self._settings, self._catalog)
            reporter = RelayReporter(self._settings.relay, self._stop)
            try:
                guard.note_jvm(jvm_pid(session))
                ensure_tables(self._catalog.load())
                if self._settings.warm_up and self._settings.is_local:
                    warm_up(session)
                self.drive(session, reporter)
            finally:
                reporter.close()
                session.stop()

    def drive(self, session: SparkSession, reporter: Reporter) -> None:
        """Keep the query running in a session whose tables are there; the end of ``run``, apart for tests."""
        fault = Fault.parse(self._settings.fault, partial(kill_driver, jvm_pid(session)))
        pipeline = Pipeline(self._catalog, self._settings.source, reporter, fault=fault)
        try:
            self._wait_for_source()
            self._keep_running(session, pipeline)
        finally:
            self._set_ready(False)

    def _wait_for_source(self) -> None:
        told = False
        while not self._stop.is_set() and not self._source_answers():
            if not told:
                log.info("waiting for the source", address=self._settings.source)
            told = True
            self._stop.wait(0.5)

    def _source_answers(self) -> bool:
        try:
            self._source.state()
        except Unavailable:
            return False
        return True

    def _keep_running(self, session: SparkSession, pipeline: Pipeline) -> None:
        failures = 0
        while not self._stop.is_set():
            query = start_query(session, self._settings, lambda raw: self._metrics.add(pipeline.process(raw)))
            try:
                progressed = self._watch(query)
            finally:
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

    def _watch(self, query: StreamingQuery) -> bool:
        """Ack and keep health true while the query lives; returns whether it finished a batch or got idle."""
        progressed, probe_in_s, reachable = False, 0.0, True
        while query.isActive and not self._stop.is_set():
            progress = query.lastProgress
            if progress is not None:
                self._ack(progress.json)
            progressed = progressed or progress is not None or query.status["message"] in _READING
            probe_in_s -= _WATCH_SECONDS
            if progressed and probe_in_s <= 0:
                probe_in_s, reachable = _PROBE_SECONDS, self._source_answers()
            self._set_ready(progressed and reachable)
            self._stop.wait(_WATCH_SECONDS)
        self._set_ready(False)
        return progressed

    def _ack(self, progress_json: str) -> None:
        """Ack the last finished batch.

        Progress is published after the batch is in Spark's commit log, so an ack never runs ahead of the checkpoint.
        The data source's own commit comes one batch later, which would leave the last one open while idle.
        """
        end = json.loads(progress_json)["sources"][0]["endOffset"]
        if not end or end == self._acked:
            return
        try:
            ack_before(self._source, from_json(end))
            self._acked = end
        except Unavailable as error:
            log.warning("ack postponed", error=str(error))

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._metrics.ready.set(ready)
            self._on_ready(ready)
