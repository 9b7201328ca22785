"""Prometheus metrics of the ingestor."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_VENUE = ("venue",)
_SLOT = ("venue", "kind")


class IngestorMetrics:
    """Metrics of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="dexorder_ingestor", registry=registry)
        gauge = partial(Gauge, namespace="dexorder_ingestor", registry=registry)
        histogram = partial(Histogram, namespace="dexorder_ingestor", registry=registry)
        # broker
        self.connections = counter("broker_connections", "Connections made to the broker.")
        self.dropped_frames = counter("dropped_frames", "Frames from the broker that were dropped.")
        self.free_slots = gauge("free_slots", "Slots that no dispatch holds.", _SLOT)
        self.busy_slots = gauge("busy_slots", "Slots that a dispatch holds.", _SLOT)
        self.rejected = counter("rejected", "Dispatches rejected.")
        self.dispatches = counter("dispatches", "Dispatches ended.", ("venue", "outcome"))
        # exchange
        self.calls = counter("calls", "Calls to exchanges.", _VENUE)
        self.call_seconds = histogram(
            "call_seconds", "Time of one call, including its wait for the rate limit.", _VENUE
        )
        self.bad_answers = counter("bad_answers", "Calls to exchanges without a valid answer.", ("venue", "kind"))
        self.rate_limit_waits = counter("rate_limit_waits", "Calls that had to wait for the rate limit.", _VENUE)
        self.rate_limit_wait_seconds = counter(
            "rate_limit_wait_seconds", "Time that calls waited for the rate limit or the end of a ban.", _VENUE
        )
        self.ban_seconds = counter(
            "ban_seconds", "Time of the bans that this process was the first to learn of.", _VENUE
        )
        self.evidence_calls = counter("evidence_calls", "Queries made only to verify holes.", _VENUE)
        self.contradictions = counter("contradictions", "Answers that contradict an earlier answer.", _VENUE)
        self.archive_files = counter("archive_files", "Files of whole days asked for.", ("venue", "outcome"))
        # gateway and relay
        self.pages = counter("pages", "Pages acknowledged by Kafka.", _VENUE)
        self.candles = counter("candles", "Candles in these pages.", _VENUE)
        self.publish_seconds = histogram("publish_seconds", "Time of one call to the gateway or the relay.", ("call",))
        self.publish_retries = counter(
            "publish_retries", "Repeated calls to the gateway or the relay.", ("call", "code")
        )
        self.instrument_reports = counter(
            "instrument_reports", "Reports of an exchange's instruments to the relay.", ("venue", "outcome")
        )
        # realtime
        self.trades = counter("trades", "Trades of realtime jobs acknowledged by Kafka.", _VENUE)
        self.disconnects = counter("disconnects", "Connections of realtime jobs lost; jobs share sockets.", _VENUE)
        self.reopened = counter("sockets_reopened", "Sockets closed as REST had trades that they did not send.", _VENUE)
        self.bad_messages = counter("bad_messages", "Messages of sockets that were not trades.", _VENUE)
        self.dropped_messages = counter(
            "dropped_messages", "Messages of sockets that found no room: this process is overloaded.", _VENUE
        )
        self.refills = counter("refills", "Answers to queries for trades of realtime jobs.", _VENUE)
        self.skipped_trades = counter("skipped_trades", "Numbers of trades that the exchange has not used.", _VENUE)
        self.corrected_trades = counter("corrected_trades", "Recorded trades that the exchange has corrected.", _VENUE)
        self.late_trades = counter("late_trades", "Trades that came after their time was settled.", _VENUE)
        self.trade_comparisons = counter(
            "trade_comparisons", "Answers about trades that came by the socket alone, beside refills.", _VENUE
        )
        self.uncompared_trades = counter(
            "uncompared_trades", "Trades of the socket that no answer has confirmed.", _VENUE
        )
        self.uncompared_spans = counter(
            "uncompared_spans", "Spans of an earlier dispatch that were not compared with REST in time.", _VENUE
        )
        self.lost_spans = counter("lost_spans", "Spans with trades that the exchange no longer had.", _VENUE)
        self.candles_checked = counter("candle_checks", "Comparisons with the exchange's own closed candles.", _VENUE)
        self.candle_differences = counter("candle_differences", "Closed candles that differed from these.", _VENUE)
        self.silent_jobs = gauge(
            "silent_jobs", "Realtime jobs without settled data for a minute, by reason.", ("venue", "reason")
        )
        self.live_messages = counter("live_messages", "Messages of live data sent to the relay.")
        # control
        self.instructions = counter("instructions", "Instructions of the relay.", ("action", "outcome"))
