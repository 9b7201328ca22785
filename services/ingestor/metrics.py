"""Prometheus metrics of the ingestor."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class IngestorMetrics:
    """Counters of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dexorder_ingestor_{name}", text, labels, registry=registry)

        self.jobs = counter("jobs", "Dispatches ended.", "venue", "outcome")
        self.rejected = counter("rejected", "Dispatches rejected.")
        self.pages = counter("pages", "Pages acknowledged by Kafka.", "venue")
        self.candles = counter("candles", "Candles in those pages.", "venue")
        self.calls = counter("calls", "Calls to exchanges.", "venue")
        self.call_seconds = Histogram(
            "dexorder_ingestor_call_seconds",
            "Time of one call, ccxt's throttle included.",
            ["venue"],
            registry=registry,
        )
        self.publish_seconds = Histogram(
            "dexorder_ingestor_publish_seconds", "Time of one call to gateway or relay.", ["call"], registry=registry
        )
        self.evidence_calls = counter("evidence_calls", "Questions asked only to verify holes.", "venue")
        self.bad_answers = counter("bad_answers", "Calls to exchanges without a sound answer.", "venue", "kind")
        self.budget_waits = counter("budget_waits", "Turns in the rate budget that were not at once.", "venue")
        self.budget_wait_seconds = counter(
            "budget_wait_seconds", "Time calls waited for the rate budget or the end of a ban.", "venue"
        )
        self.ban_seconds = counter("ban_seconds", "Time of bans this process was the first to hear of.", "venue")
        self.market_reports = counter("market_reports", "Reports of an exchange's markets.", "venue", "outcome")
        self.contradictions = counter("contradictions", "Answers that contradict an earlier one.", "venue")
        self.publish_retries = counter("publish_retries", "Calls to gateway or relay repeated.", "call", "code")
        self.dropped_frames = counter("dropped_frames", "Frames from the broker that were dropped.")
        self.connections = counter("broker_connections", "Connections to the broker made.")
        self.jobs_held = Gauge("dexorder_ingestor_jobs_held", "Jobs that hold a slot.", ["venue"], registry=registry)
        self.free_slots = Gauge("dexorder_ingestor_free_slots", "Slots no job holds.", ["venue"], registry=registry)
