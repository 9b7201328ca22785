"""Metrics of events between containers and the outbox, and of provider calls."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dexorder_common.model.user_events import Channel, Priority, Status
from dexorder_gateway.events.model import Later, Result, SendRefused, Sent

PREFIX = "dexorder_gateway_event"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SEND_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)
_OUTCOMES: Mapping[type[Result], str] = {Sent: "sent", SendRefused: "refused", Later: "later"}


class DispatcherMetrics:
    """Metrics of the dispatcher's thread, updated once per transaction. Added to the gateway's registry once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{PREFIX}{name}", text, registry=registry, buckets=buckets)

        self._accepted = counter("s_accepted", "Events written to the outbox.", "priority")
        self._informed = counter("s_informed", "Events handed to sessions without being stored.")
        self._finished = counter("s_finished", "Events that became final, by status.", "status")
        self._acks = counter("_acks", "Acks sent to containers, by status.", "status")
        self._refused = counter("s_refused", "Events answered with an error on arrival, by reason.", "reason")
        self._dropped = counter("_messages_dropped", "Messages and acks that were dropped, by reason.", "reason")
        self._queued = Gauge(f"{PREFIX}s_queued", "Events that are not final.", registry=registry)
        self._commit_seconds = histogram("_commit_seconds", "Duration of a commit, including fsync.", COMMIT_SECONDS)
        self._batch_size = histogram("_batch_size", "Events accepted in one commit that accepted any.", BATCH_SIZES)

    def committed(self, accepted: Tally[Priority], finished: Tally[Status], queued: int, seconds: float) -> None:
        """Count one commit."""
        for priority, count in accepted.items():
            self._accepted.labels(priority.name).inc(count)
        for status, count in finished.items():
            self._finished.labels(status.name).inc(count)
        self._queued.set(queued)
        self._commit_seconds.observe(seconds)
        if accepted:
            self._batch_size.observe(accepted.total())

    def acked(self, acks: Tally[Status]) -> None:
        """Count acks."""
        for status, count in acks.items():
            self._acks.labels(status.name).inc(count)

    def informed(self, count: int) -> None:
        """Count events handed to sessions without being stored."""
        self._informed.inc(count)

    def refused(self, reasons: Tally[str]) -> None:
        """Count events that were answered with an error."""
        for reason, count in reasons.items():
            self._refused.labels(reason).inc(count)

    def dropped(self, reason: str) -> None:
        """Count a message without an answer, or an ack without a receiver."""
        self._dropped.labels(reason).inc()


class SendMetrics:
    """Metrics of provider calls. Added to the gateway's registry once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            f"{PREFIX}_send_seconds",
            "Duration of a provider call, by outcome.",
            ["channel", "outcome"],
            registry=registry,
            buckets=SEND_SECONDS,
        )

    def called(self, channel: Channel, result: Result, seconds: float) -> None:
        """Count one call that ended."""
        self._seconds.labels(channel.name, _OUTCOMES[type(result)]).observe(seconds)
