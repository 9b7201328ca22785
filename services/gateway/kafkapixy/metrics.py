"""What the gateway counts for Kafka, and how far its groups are. Put together at a scrape: a call only adds to an int.

A group and topic has its series while it is read here. Its gauges go with the subscription; its counters stay for
``KEPT_SECONDS`` more, so that a scrape sees the last of them, and go on if it is read again by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from services.gateway.kafkapixy.types import Progress

KEPT_SECONDS = 300.0
PREFIX = "dexorder_gateway"
Mode = Literal["sync", "async", "stream"]
Place = tuple[str, int]
"""Topic and partition."""
Name = tuple[str, str]
"""Group and topic."""


class Reading(Protocol):
    """A subscription as the gauges see it; for any thread."""

    group: str
    topic: str

    @property
    def waiting(self) -> int:
        """Callers that wait for a record."""

    def progress(self) -> Mapping[int, Progress]:
        """How far each of its partitions is."""


@dataclass(slots=True)
class ReadCounts:
    """What was done for one group and topic. Only one thread counts."""

    consumed: int = 0
    acked: int = 0
    dropped: int = 0
    redelivered: dict[str, int] = field(default_factory=lambda: {"timeout": 0, "given_back": 0})


@dataclass(slots=True)
class _Kept:
    """``readers`` are the subscriptions that count; while a second one joins the first may still be leaving."""

    tally: ReadCounts = field(default_factory=ReadCounts)
    readers: int = 0
    ended_s: float = 0.0


class ClusterMetrics:
    """What is counted for one cluster. Only one thread counts.

    Attributes:
        readings: Gives the subscriptions that are open.
        log_end: Gives where a partition's log ends, as far as it is known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: dict[Name, _Kept] = {}
        self.produced: dict[tuple[str, Mode], int] = {}
        self.produce_failed: dict[tuple[str, Mode], int] = {}
        self.readings: Callable[[], Sequence[Reading]] = tuple
        self.log_end: Callable[[Place], int | None] = lambda place: None

    def writes(self, topic: str, mode: Mode) -> None:
        """A record is on its way: its series begin at 0, so that what becomes of it shows as an increase."""
        if (topic, mode) not in self.produced:
            self.produced[topic, mode] = self.produce_failed[topic, mode] = 0

    def opened(self, group: str, topic: str) -> ReadCounts:
        """A subscription begins to count."""
        self._forget()
        kept = self._reads.setdefault((group, topic), _Kept())
        kept.readers += 1
        return kept.tally

    def closed(self, group: str, topic: str) -> None:
        """It has ended."""
        kept = self._reads[group, topic]
        kept.readers -= 1
        kept.ended_s = self._clock()

    def reads(self) -> list[tuple[Name, ReadCounts]]:
        """What is counted, without what ended long ago; for any thread."""
        oldest_s = self._clock() - KEPT_SECONDS
        return [(name, k.tally) for name, k in list(self._reads.items()) if k.readers or k.ended_s >= oldest_s]

    def _forget(self) -> None:
        shown = {name for name, _ in self.reads()}
        for name in self._reads.keys() - shown:
            del self._reads[name]


class PixyMetrics:
    """A collector of one process; its labels ``cluster``, ``group``, ``topic``, ``partition`` are Kafka's terms.

    Attributes:
        kafka_up: 1 while the cluster answers and has the configured topics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._clusters: dict[str, ClusterMetrics] = {}
        self.kafka_up = Gauge(
            f"{PREFIX}_kafka_up",
            "Whether the cluster answers and has the configured topics.",
            ["cluster"],
            registry=registry,
        )
        registry.register(self)

    def cluster(self, name: str) -> ClusterMetrics:
        """The counts of a cluster."""
        return self._clusters.setdefault(name, ClusterMetrics())

    def collect(self) -> Iterable[Metric]:
        """For the registry; in the thread of the endpoint."""
        clusters = list(self._clusters.items())
        yield from _produced(clusters)
        yield from _consumed(clusters)
        yield from _progress(clusters)


Clusters = Sequence[tuple[str, ClusterMetrics]]


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["cluster", *labels])


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["cluster", *labels])


def _produced(clusters: Clusters) -> Iterator[Metric]:
    produced = _counter("records_produced", "Records Kafka has acknowledged.", "topic", "mode")
    failed = _counter("records_produce_failed", "Records Kafka did not get.", "topic", "mode")
    for name, cluster in clusters:
        for family, counts in ((produced, cluster.produced), (failed, cluster.produce_failed)):
            for (topic, mode), count in counts.copy().items():
                family.add_metric([name, topic, mode], count)
    yield from (produced, failed)


def _consumed(clusters: Clusters) -> Iterator[Metric]:
    consumed = _counter("records_consumed", "Records handed out, copies included.", "group", "topic")
    acked = _counter("records_acked", "Records acked for the first time.", "group", "topic")
    dropped = _counter("records_dropped", "Records given up after max_retries.", "group", "topic")
    again = _counter("records_redelivered", "Records handed out again.", "group", "topic", "reason")
    for name, cluster in clusters:
        for read, tally in cluster.reads():
            labels = [name, *read]
            consumed.add_metric(labels, tally.consumed)
            acked.add_metric(labels, tally.acked)
            dropped.add_metric(labels, tally.dropped)
            for reason, count in tally.redelivered.items():
                again.add_metric([*labels, reason], count)
    yield from (consumed, acked, dropped, again)


def _progress(clusters: Clusters) -> Iterator[Metric]:
    subscriptions = _gauge("subscriptions", "Pairs of group and topic that are read.")
    waiting = _gauge("callers_waiting", "Callers that wait for a record.", "group", "topic")
    pending = _gauge("records_pending", "Records handed out and not acked.", "group", "topic", "partition")
    lag = _gauge("records_lag", "Records from the lowest unacked one to the log's end.", "group", "topic", "partition")
    for name, cluster in clusters:
        readings = cluster.readings()
        subscriptions.add_metric([name], len(readings))
        for each in readings:
            waiting.add_metric([name, each.group, each.topic], each.waiting)
            for partition, progress in each.progress().items():
                labels = [name, each.group, each.topic, str(partition)]
                pending.add_metric(labels, progress.pending)
                end = cluster.log_end((each.topic, partition))
                if end is not None:
                    lag.add_metric(labels, lag_of(progress, end))
    yield from (subscriptions, waiting, pending, lag)


def lag_of(progress: Progress, log_end: int) -> int:
    """Records not acked yet; ``log_end`` may have been read before the last of them was handed out."""
    return max(progress.next_offset, log_end) - progress.lowest_unacked
