"""Metrics of the queries, of the triggers' process and of the UDFs; docs/spark.md explains each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dexorder_common.model.udf import UdfState, UdfStatus
from dexorder_spark.pipeline.batch import BatchResult

_PREFIX = "dexorder_spark"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_UDF_COUNTERS = {
    "fed": "Points that a UDF was fed since it was started.",
    "late": "Points that it was not fed, as they came after later ones.",
    "restarts": "Restarts of its process or connection since it was started.",
}
_UDF_GAUGES = {
    "rows": "Rows in its table.",
    "lag": "Records of its topic whose output is not complete.",
}


class Metrics:
    """Metrics of the queries. All have the label ``table``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["table", *labels], namespace=_PREFIX, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ["table", *labels], namespace=_PREFIX, registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, ["table", *labels], namespace=_PREFIX, registry=registry, buckets=_SECONDS)

        self.batches = counter("batches", "Micro-batches committed.")
        self.rows = counter("rows", "Rows written.")
        self.pages = counter("pages", "Good pages.")
        self.refused = counter("refused_records", "Records refused.")
        self.quarantined = counter("quarantined_records", "Records that failed every batch, now dead letters.")
        self.restarts = counter("query_restarts", "Restarts of the query after a failure.")
        self.report_failures = counter("report_failures", "Reports that the relay did not answer with OK.", "code")
        self.report_attempts = gauge("report_attempts", "Failed attempts of the current report; 0 once it is answered.")
        self.lag = gauge("lag_records", "Records of the source after the last finished batch.", "partition")
        self.progress = gauge(
            "last_progress_timestamp_seconds", "Unix time at which the query last finished a batch or was idle."
        )
        self.triggers_running = Gauge(
            "triggers_running", "1 while the triggers' process runs.", namespace=_PREFIX, registry=registry
        )
        self.trigger_restarts = Counter(
            "trigger_restarts", "Restarts of the triggers' process.", namespace=_PREFIX, registry=registry
        )
        self.ready = gauge("ready", "1 while the query reads its source and its reports are answered.")
        self.step_seconds = seconds("step_seconds", "Seconds of one step of a batch.", "step")
        self.batch_seconds = seconds("batch_seconds", "Seconds of a whole batch.")

    def of(self, table: str) -> TableMetrics:
        """Return the metrics of one table."""
        return TableMetrics(self, table)


class TableMetrics:
    """Metrics of one table's query."""

    def __init__(self, all_tables: Metrics, table: str) -> None:
        self._all = all_tables
        self._table = table
        self.batches = all_tables.batches.labels(table)
        self.rows = all_tables.rows.labels(table)
        self.pages = all_tables.pages.labels(table)
        self.refused = all_tables.refused.labels(table)
        self.quarantined = all_tables.quarantined.labels(table)
        self.restarts = all_tables.restarts.labels(table)
        self.report_attempts = all_tables.report_attempts.labels(table)
        self.progress = all_tables.progress.labels(table)
        self.ready = all_tables.ready.labels(table)
        self.batch_seconds = all_tables.batch_seconds.labels(table)

    def observe_step(self, step: str, seconds: float) -> None:
        """Count the seconds of one step of a batch."""
        self._all.step_seconds.labels(self._table, step).observe(seconds)

    def count_report_failure(self, code: str) -> None:
        """Count a report that was not answered with OK."""
        self._all.report_failures.labels(self._table, code).inc()

    def add(self, result: BatchResult) -> None:
        """Count one batch."""
        self.batches.inc()
        self.rows.inc(result.rows)
        self.pages.inc(result.pages)
        self.refused.inc(result.refused)
        self.batch_seconds.observe(sum(result.seconds.values()))
        for step, seconds in result.seconds.items():
            self.observe_step(step, seconds)

    def show_lag(self, ends: Mapping[int, int], done: Mapping[int, int]) -> None:
        """Set the lag of each partition: its end minus the next offset to read."""
        for partition, end in ends.items():
            self._all.lag.labels(self._table, str(partition)).set(max(0, end - done.get(partition, 0)))


class UdfMetrics(Collector):
    """Collector of the UDFs' metrics, made of their statuses at each scrape.

    They have the label ``udf``; ``state`` is the state that a UDF has.
    """

    def __init__(self, statuses: Callable[[], Sequence[UdfStatus]]) -> None:
        self._statuses = statuses

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering it does not need the statuses."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all UDFs."""
        found = self._statuses()
        for name, text in _UDF_COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}_udf_{name}", text, labels=["udf"])
            for each in found:
                counter.add_metric([each.name], getattr(each, name))
            yield counter
        for name, text in _UDF_GAUGES.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_udf_{name}", text, labels=["udf"])
            for each in found:
                gauge.add_metric([each.name], getattr(each, name))
            yield gauge
        states = GaugeMetricFamily(f"{_PREFIX}_udf_state", "1 for the state that a UDF has.", labels=["udf", "state"])
        for each in found:
            for state in UdfState:
                states.add_metric([each.name, state.name.lower()], float(each.state is state))
        yield states
