"""Metrics of maintenance; docs/spark.md explains each."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dexorder_spark.maintenance.policy import TableState
from dexorder_spark.maintenance.procedures import StepResult

_PREFIX = "dexorder_spark"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class MaintenanceMetrics:
    """Metrics of maintenance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace=_PREFIX, registry=registry)
        gauge = partial(Gauge, namespace=_PREFIX, registry=registry)
        seconds = partial(Histogram, namespace=_PREFIX, registry=registry, buckets=_SECONDS)
        self.files = counter(
            "maintenance_files",
            "Files rewritten, merged away, removed with a snapshot, orphaned.",
            ["table", "what"],
        )
        self.snapshots_expired = counter("maintenance_snapshots_expired", "Snapshots expired.", ["table"])
        self.failures = counter("maintenance_failures", "Steps that failed.", ["table", "step"])
        self.step_seconds = seconds(
            "maintenance_seconds", "Seconds of one step of maintenance: the longest a batch waits.", ["step"]
        )
        self._data_files = gauge("table_data_files", "Data files at the last inspection.", ["table"])
        self._delete_files = gauge("table_delete_files", "Delete files at the last inspection.", ["table"])
        self._rows = gauge(
            "table_rows", "Rows in the data files at the last inspection; deleted rows count.", ["table"]
        )
        self._manifests = gauge("table_manifests", "Manifests at the last inspection.", ["table"])
        self._snapshots = gauge("table_snapshots", "Snapshots at the last inspection.", ["table"])

    def add(self, table: str, done: StepResult) -> None:
        """Count one step."""
        self.files.labels(table, "rewritten").inc(done.rewritten)
        self.files.labels(table, "removed").inc(done.removed)
        self.snapshots_expired.labels(table).inc(done.expired)

    def show(self, state: TableState) -> None:
        """Set the gauges of a table."""
        self._data_files.labels(state.name).set(state.data_files)
        self._delete_files.labels(state.name).set(state.delete_files)
        self._rows.labels(state.name).set(state.rows)
        self._manifests.labels(state.name).set(state.manifests)
        self._snapshots.labels(state.name).set(len(state.snapshots))
