"""The relay's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.relay.dispatch import Dispatcher


class RelayMetrics:
    """Counters by what happened; gauges read the dispatcher when they are scraped."""

    def __init__(self, registry: CollectorRegistry, dispatcher: Dispatcher) -> None:
        def gauge(name: str, text: str, index: int) -> None:
            Gauge(name, text, registry=registry).set_function(lambda: dispatcher.counts()[index])

        gauge("dexorder_relay_jobs_queued", "Jobs that wait for a slot.", 0)
        gauge("dexorder_relay_jobs_running", "Jobs that an ingestor holds.", 1)
        gauge("dexorder_relay_slots_free", "Slots offered and not used.", 2)
        self.dispatches = Counter("dexorder_relay_dispatches", "Jobs sent to an ingestor.", registry=registry)
        self.requeues = Counter(
            "dexorder_relay_requeues", "Dispatches that ended without a result.", ["reason"], registry=registry
        )
        self.dropped = Counter("dexorder_relay_frames_dropped", "Broker frames ignored.", ["reason"], registry=registry)
        self.connections_refused = Counter(
            "dexorder_relay_broker_connections_refused",
            "Ingestors' handshakes that failed.",
            ["reason"],
            registry=registry,
        )
        self.submitted = Counter("dexorder_relay_submissions", "Submissions answered.", ["status"], registry=registry)
        self.refused = Counter(
            "dexorder_relay_quota_refusals", "Calls refused for a quota.", ["client_id", "quota"], registry=registry
        )
        self.finished = Counter("dexorder_relay_requests_finished", "Requests ended.", ["status"], registry=registry)
        self.ignored = Counter(
            "dexorder_relay_reports_ignored", "Parts of pipeline reports ignored.", ["reason"], registry=registry
        )
