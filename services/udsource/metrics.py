"""What udsource counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class UdsourceMetrics:
    """Counters of one process. Label ``mode`` is plain or replay."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dexorder_udsource_{name}", text, labels, registry=registry)

        read = counter("records_read", "Records handed out.", "mode")
        acked = counter("records_acked", "Records acked for the first time.", "mode")
        self.plain_read = read.labels("plain")
        self.replay_read = read.labels("replay")
        self.plain_acked = acked.labels("plain")
        self.replay_acked = acked.labels("replay")
        self.redelivered = counter("records_redelivered", "Records handed out again.")
        self.nacked = counter("records_nacked", "Records given back by NackFn.")
        self.lost = counter("records_lost", "Records the topic dropped before they were acked.")
        self.replay_ranges = counter("replay_ranges", "Ranges replayed to their end.")
        self.pending = Gauge(
            "dexorder_udsource_pending", "Records not acked by the group; -1 unknown.", registry=registry
        )
        self.kafka_up = Gauge("dexorder_udsource_kafka_up", "Whether Kafka and the topic are there.", registry=registry)
