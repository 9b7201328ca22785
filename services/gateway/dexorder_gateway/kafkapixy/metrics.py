"""Metrics of the gateway's Kafka services. Families are built at a scrape: a call only increments an int.

A group and topic has its series while it is read here. Its gauges end with the subscription; its counters stay for
``KEPT_SECONDS`` more, so that a scrape sees their last values, and continue if it is read again by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dexorder_common.kafka.partition_queue import QueueProgress

if TYPE_CHECKING:
    from dexorder_gateway.kafkapixy.subscription import PixySubscription

KEPT_SECONDS = 300.0
PREFIX = "dexorder_gateway"
Mode = Literal["sync", "async"]
Place = tuple[str, int]
"""Topic and partition."""
GroupTopic = tuple[str, str]


@dataclass(slots=True)
class ReadCounts:
    """Counters of one group and topic. Only one thread increments them."""

    consumed: int = 0
    acked: int = 0
    dropped: int = 0
    went_back: int = 0
    redelivered: dict[str, int] = field(default_factory=lambda: {"timeout": 0, "given_back": 0})


@dataclass(slots=True)
class _KeptCounts:
    """``readers`` are the subscriptions that use the counters: while one joins, its predecessor may be leaving."""

    counts: ReadCounts = field(default_factory=ReadCounts)
    readers: int = 0
    ended_s: float = 0.0


class ClusterMetrics:
    """Counters of one cluster. Only one thread increments them.

    Attributes:
        subscriptions: Returns the open subscriptions.
        log_end: Returns the end of a partition's log; None if it is unknown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: dict[GroupTopic, _KeptCounts] = {}
        self.produced: dict[tuple[str, Mode], int] = {}
        self.produce_failed: dict[tuple[str, Mode], int] = {}
        self.subscriptions: Callable[[], Sequence[PixySubscription]] = tuple
        self.log_end: Callable[[Place], int | None] = lambda place: None

    def declare(self, topic: str, mode: Mode) -> None:
        """Start the series of a topic at 0, so that the first outcome shows as an increase."""
        if (topic, mode) not in self.produced:
            self.produced[topic, mode] = self.produce_failed[topic, mode] = 0

    def opened(self, group: str, topic: str) -> ReadCounts:
        """Return the counters for a new subscription."""
        shown = {name for name, _ in self.read_counts()}
        for ended in self._reads.keys() - shown:
            del self._reads[ended]
        kept = self._reads.setdefault((group, topic), _KeptCounts())
        kept.readers += 1
        return kept.counts

    def closed(self, group: str, topic: str) -> None:
        """Note that a subscription has ended."""
        kept = self._reads[group, topic]
        kept.readers -= 1
        kept.ended_s = self._clock()

    def read_counts(self) -> list[tuple[GroupTopic, ReadCounts]]:
        """Return the counters, without members that ended long ago; for any thread."""
        oldest_s = self._clock() - KEPT_SECONDS
        return [(name, k.counts) for name, k in list(self._reads.items()) if k.readers or k.ended_s >= oldest_s]


class KafkaMetrics:
    """Collector of one process; its labels ``cluster``, ``group``, ``topic``, ``partition`` are Kafka's terms."""

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
        """Return the counters of a cluster."""
        return self._clusters.setdefault(name, ClusterMetrics())

    def collect(self) -> Iterable[Metric]:
        """Return the families; for the registry, in the endpoint's thread."""
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
    produced = _counter("records_produced", "Records acknowledged by Kafka.", "topic", "mode")
    failed = _counter("records_produce_failed", "Records not written to Kafka.", "topic", "mode")
    for name, cluster in clusters:
        for family, counts in ((produced, cluster.produced), (failed, cluster.produce_failed)):
            for (topic, mode), count in counts.copy().items():
                family.add_metric([name, topic, mode], count)
    yield from (produced, failed)


def _consumed(clusters: Clusters) -> Iterator[Metric]:
    consumed = _counter("records_consumed", "Records delivered, redeliveries included.", "group", "topic")
    acked = _counter("records_acked", "Records acked for the first time.", "group", "topic")
    dropped = _counter("records_dropped", "Records given up after max_retries.", "group", "topic")
    went_back = _counter(
        "logs_went_back", "Partitions read from their start because their log went back.", "group", "topic"
    )
    redelivered = _counter("records_redelivered", "Records delivered again.", "group", "topic", "reason")
    for name, cluster in clusters:
        for group_topic, counts in cluster.read_counts():
            labels = [name, *group_topic]
            consumed.add_metric(labels, counts.consumed)
            acked.add_metric(labels, counts.acked)
            dropped.add_metric(labels, counts.dropped)
            went_back.add_metric(labels, counts.went_back)
            for reason, count in counts.redelivered.items():
                redelivered.add_metric([*labels, reason], count)
    yield from (consumed, acked, dropped, went_back, redelivered)


def _progress(clusters: Clusters) -> Iterator[Metric]:
    subscriptions = _gauge("subscriptions", "Pairs of group and topic that are read.")
    waiting = _gauge("callers_waiting", "Callers that wait for a record.", "group", "topic")
    pending = _gauge("records_pending", "Records delivered and not acked.", "group", "topic", "partition")
    lag = _gauge("records_lag", "Records from the lowest unacked one to the log's end.", "group", "topic", "partition")
    for name, cluster in clusters:
        opened = cluster.subscriptions()
        subscriptions.add_metric([name], len(opened))
        for each in opened:
            waiting.add_metric([name, each.group, each.topic], each.waiting)
            for partition, progress in each.progress().items():
                labels = [name, each.group, each.topic, str(partition)]
                pending.add_metric(labels, progress.pending)
                end = cluster.log_end((each.topic, partition))
                if end is not None:
                    lag.add_metric(labels, lag_of(progress, end))
    yield from (subscriptions, waiting, pending, lag)


def lag_of(progress: QueueProgress, log_end: int) -> int:
    """Return the records not acked yet; ``log_end`` may be older than the last delivery."""
    return max(progress.next_offset, log_end) - progress.lowest_unacked
