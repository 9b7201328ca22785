"""Counters of the pipeline and of the tables' care; docs/spark.md explains each."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from spark.maintenance.policy import TableState
from spark.maintenance.procedures import StepResult
from spark.pipeline.batch import BatchResult

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Of the query."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dexorder_spark_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"dexorder_spark_{name}", text, labels, registry=registry)

        self.batches = counter("batches", "Micro-batches committed.")
        self.candles = counter("candles", "Candles written.")
        self.pages = counter("pages", "Good pages.")
        self.refused = counter("refused_records", "Records refused.")
        self.restarts = counter("query_restarts", "Times the query was started anew after a failure.")
        self.report_failures = counter("report_failures", "Reports the relay did not answer OK.", "code")
        self.report_tries = gauge("report_tries", "Failed tries of the report in hand; 0 when it is answered.")
        self.lag = gauge("lag_records", "Records of the source behind the last finished batch.", "partition")
        self.progress = gauge(
            "last_progress_timestamp_seconds", "When the query last finished a batch or had nothing to do, Unix time."
        )
        self.ready = gauge("ready", "1 while the query reads from its source and its reports are answered.")
        self.step_seconds = Histogram(
            "dexorder_spark_step_seconds", "Time of one step of a batch.", ["step"], registry=registry, buckets=_SECONDS
        )
        self.batch_seconds = Histogram(
            "dexorder_spark_batch_seconds", "Time of a whole batch.", registry=registry, buckets=_SECONDS
        )

    def add(self, result: BatchResult) -> None:
        """Count one batch."""
        self.batches.inc()
        self.candles.inc(result.candles)
        self.pages.inc(result.pages)
        self.refused.inc(result.refused)
        self.batch_seconds.observe(sum(result.seconds.values()))
        for step, seconds in result.seconds.items():
            self.step_seconds.labels(step).observe(seconds)

    def show_lag(self, ends: Mapping[int, int], done: Mapping[int, int]) -> None:
        """By partition: its end less the next offset to come."""
        for partition, end in ends.items():
            self.lag.labels(str(partition)).set(max(0, end - done.get(partition, 0)))


class MaintenanceMetrics:
    """Of the tables' care."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dexorder_spark_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"dexorder_spark_{name}", text, ["table"], registry=registry)

        self.files = counter("maintenance_files", "Files rewritten, removed with a snapshot, orphan.", "table", "what")
        self.snapshots_expired = counter("maintenance_snapshots_expired", "Snapshots expired.", "table")
        self.coverage_rows_merged = counter(
            "maintenance_lines_merged", "Lines of the ledger that went into others.", "table"
        )
        self.failures = counter("maintenance_failures", "Steps that failed.", "table", "step")
        self.step_seconds = Histogram(
            "dexorder_spark_maintenance_seconds",
            "Time of one step of maintenance: the longest a batch waits.",
            ["step"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._data_files = gauge("table_data_files", "Data files at the last look.")
        self._delete_files = gauge("table_delete_files", "Delete files at the last look.")
        self._rows = gauge("table_rows", "Rows in the data files at the last look; those of delete files count.")
        self._manifests = gauge("table_manifests", "Manifests at the last look.")
        self._snapshots = gauge("table_snapshots", "Snapshots at the last look.")

    def add(self, table: str, done: StepResult) -> None:
        """Count one step."""
        self.files.labels(table, "rewritten").inc(done.rewritten)
        self.files.labels(table, "removed").inc(done.removed)
        self.snapshots_expired.labels(table).inc(done.expired)
        if done.lines is not None:
            self.coverage_rows_merged.labels(table).inc(done.lines.before - done.lines.after)

    def show(self, state: TableState) -> None:
        """A table as it was found."""
        self._data_files.labels(state.name).set(state.data_files)
        self._delete_files.labels(state.name).set(state.delete_files)
        self._rows.labels(state.name).set(state.rows)
        self._manifests.labels(state.name).set(state.manifests)
        self._snapshots.labels(state.name).set(len(state.snapshot_times_ns))
