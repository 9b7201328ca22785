"""Metrics of the UDFs, made of their statuses at each scrape. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dexorder_common.model.udf import UdfState, UdfStatus

_PREFIX = "dexorder_spark_udf"
_COUNTERS = {
    "fed": "Points that a UDF was fed since it was started.",
    "late": "Points that it was not fed, as they came after later ones.",
    "restarts": "Restarts of its process or connection since it was started.",
}
_GAUGES = {
    "rows": "Rows in its table.",
    "lag": "Records of its topic that are not read.",
}


class UdfMetrics(Collector):
    """Collector with the label ``udf``, and ``state`` for the state that a UDF has."""

    def __init__(self, statuses: Callable[[], Sequence[UdfStatus]]) -> None:
        self._statuses = statuses

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering it does not need the statuses."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all UDFs."""
        found = self._statuses()
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["udf"])
            for each in found:
                counter.add_metric([each.name], getattr(each, name))
            yield counter
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["udf"])
            for each in found:
                gauge.add_metric([each.name], getattr(each, name))
            yield gauge
        states = GaugeMetricFamily(f"{_PREFIX}_state", "1 for the state that a UDF has.", labels=["udf", "state"])
        for each in found:
            for state in UdfState:
                states.add_metric([each.name, state.name.lower()], float(each.state is state))
        yield states
