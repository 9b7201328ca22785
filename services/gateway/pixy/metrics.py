"""What the KafkaPixy service counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class PixyMetrics:
    """Counters of one process. Label ``mode`` is sync or async, ``reason`` timeout or given_back."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dexorder_gateway_{name}", text, ["cluster", *labels], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"dexorder_gateway_{name}", text, ["cluster"], registry=registry)

        self.produced = counter("records_produced", "Records Kafka has acknowledged.", "mode")
        self.produce_failed = counter("records_produce_failed", "Records Kafka did not get.", "mode")
        self.consumed = counter("records_consumed", "Records handed out, copies included.")
        self.acked = counter("records_acked", "Records acked for the first time.")
        self.redelivered = counter("records_redelivered", "Records handed out again.", "reason")
        self.dropped = counter("records_dropped", "Records given up after max_retries.")
        self.pending = gauge("records_pending", "Records handed out and not acked.")
        self.subscriptions = gauge("subscriptions", "Pairs of group and topic that are read.")
        self.kafka_up = gauge("kafka_up", "Whether the cluster answers and has the configured topics.")
