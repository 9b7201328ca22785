"""What is counted of events between containers and the outbox. Counted a turn at a time, in the dispatcher's thread."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.common.model.user_events import Priority, Status

PREFIX = "dexorder_gateway_event"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class DispatcherMetrics:
    """Added to the gateway's registry once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}{name}", text, labels, registry=registry)

        self._accepted = counter("s_accepted", "Events written to the outbox.", "priority")
        self._informed = counter("s_informed", "Events of the fast path handed to sessions.")
        self._finished = counter("s_finished", "Events that became final, by status.", "status")
        self._acks = counter("_acks", "Acks given to containers, by what they said.", "status")
        self._refused = counter("s_refused", "Events answered with an error when they came, by why.", "reason")
        self._dropped = counter("_messages_dropped", "Messages without an answer and acks without a taker.", "reason")
        self._queued = Gauge(f"{PREFIX}s_queued", "Events that are not final.", registry=registry)
        self._commit_seconds = Histogram(
            f"{PREFIX}_commit_seconds", "Time a commit took, fsync included.", registry=registry, buckets=COMMIT_SECONDS
        )
        self._batch_size = Histogram(
            f"{PREFIX}_batch_size",
            "Events accepted in one commit that had any.",
            registry=registry,
            buckets=BATCH_SIZES,
        )

    def committed(self, accepted: Tally[Priority], finished: Tally[Status], queued: int, seconds: float) -> None:
        """One commit."""
        for priority, count in accepted.items():
            self._accepted.labels(priority.name).inc(count)
        for status, count in finished.items():
            self._finished.labels(status.name).inc(count)
        self._queued.set(queued)
        self._commit_seconds.observe(seconds)
        if accepted:
            self._batch_size.observe(accepted.total())

    def answered(self, acks: Tally[Status]) -> None:
        """Acks of a turn."""
        for status, count in acks.items():
            self._acks.labels(status.name).inc(count)

    def informed(self, count: int) -> None:
        """Events of the fast path of a turn."""
        self._informed.inc(count)

    def refused(self, reason: str) -> None:
        """An event was answered with an error."""
        self._refused.labels(reason).inc()

    def dropped(self, reason: str, count: int = 1) -> None:
        """A message got no answer, or an ack found nobody."""
        self._dropped.labels(reason).inc(count)
