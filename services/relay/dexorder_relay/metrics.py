"""Prometheus metrics of the relay; docs/relay.md describes them."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dexorder_common.model.history import RequestState, RequestStatus
from dexorder_common.model.realtime import RealtimeState
from dexorder_relay.state.history import HistoryState, waiting_since
from dexorder_relay.state.leases import Load
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.workers import SlotKind

PREFIX = "dexorder_relay"
REPORT_PARTS = ("page", "final", "trigger_event")
"""Values of the label ``reason`` of ``reports_ignored``."""
GROUP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class RelayMetrics:
    """Counters and histograms of events; gauges of the last ``sample``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", text, registry=registry, buckets=buckets)

        self.queued = gauge("jobs_queued", "Jobs that wait for a slot.", "exchange")
        self.running = gauge("jobs_running", "Jobs under a lease.", "exchange")
        self.waiting = gauge(
            "oldest_queued_seconds", "Age of the oldest request that waits for a queued job.", "exchange"
        )
        self.slots = gauge("slots_free", "Slots offered and not used.", "exchange", "kind")
        self.requests = gauge("requests", "Unfinished requests.", "state")
        self.requests_waiting = gauge("requests_waiting", "Requests that wait because a table can't be read.")
        self.provisional = gauge("provisional_ranges", "Verified-empty ranges that are not final.", "exchange")
        self.report_age = gauge("pipeline_report_age_seconds", "Time since the pipeline's last report, or since start.")
        self.notification_streams = gauge("notification_streams", "Notification streams open.")
        self.progress_streams = gauge("progress_streams", "Progress streams open.")

        self.subscriptions = gauge("subscriptions", "Realtime subscriptions.")
        self.realtime_jobs = gauge("realtime_jobs", "Realtime jobs.", "state")
        self.live_streams = gauge("live_streams", "Streams of live data open.")

        self.realtime_settled = counter(
            "realtime_settled", "Trades and candles of realtime that Kafka has.", "exchange", "kind"
        )
        self.live_dropped = counter("live_dropped", "Live trades and candles that a slow client was not sent.")
        self.live_fenced = counter("live_fenced", "Live messages of dispatches that are not current.")
        self.dispatches = counter("dispatches", "Jobs sent to an ingestor.", "exchange")
        self.requeues = counter("requeues", "Dispatches that ended without a result.", "exchange", "reason")
        self.without_progress = counter(
            "dispatches_without_progress", "Requeues after a dispatch without progress.", "exchange"
        )
        self.given_up = counter("jobs_given_up", "Jobs given up after attempts in a row without progress.", "exchange")
        self.dropped = counter("frames_dropped", "Broker frames ignored.", "reason")
        self.connections_refused = counter(
            "broker_connections_refused", "Handshakes of ingestors that failed.", "reason"
        )
        self.submitted = counter("submissions", "Submissions answered.", "status")
        self.revised = counter("revised_periods", "Candles that turned up in verified-empty ranges.", "exchange")
        self.refused = counter("quota_refusals", "Calls refused for a quota.", "client_id", "quota")
        self.finished = counter("requests_finished", "Requests ended.", "status")
        self.ignored = counter("reports_ignored", "Parts of pipeline reports ignored.", "reason")

        self.trigger_registrations = counter("trigger_registrations", "Registrations of triggers answered.", "status")
        self.trigger_events = counter("trigger_events", "Events of triggers stored.", "kind")
        self.trigger_alerts = counter("trigger_alerts", "Firings handed to the gateway.", "outcome")
        self.trigger_alerts_pending = gauge("trigger_alerts_pending", "Whether firings wait for the gateway.")

        self.group_size = histogram("store_group_size", "Batches that shared a commit.", GROUP_SIZES)
        self.commit_seconds = histogram("store_commit_seconds", "Time a commit took, fsync included.", COMMIT_SECONDS)
        self._exchanges: set[str] = set()
        # Counters of alerts on a single event start at 0: Prometheus sees no increase in one that starts at 1.
        for status in RequestStatus:
            self.finished.labels(status.name)
        for part in REPORT_PARTS:
            self.ignored.labels(part)

    def committed(self, batches: int, seconds: float) -> None:
        """Count a group commit of the store; may be called from its thread."""
        self.group_size.observe(batches)
        self.commit_seconds.observe(seconds)

    def sample(self, state: HistoryState, registry: Registry, *, wall_ns: int, report_age_ns: int) -> None:
        """Set the gauges from a state; gauges of an exchange that is no longer in it become 0."""
        loads, since_ns, provisional = state.leases.load(), waiting_since(state), state.provisional.counts()
        self._exchanges |= loads.keys() | provisional.keys()
        for exchange in self._exchanges:
            load = loads.get(exchange, IDLE)
            self.queued.labels(exchange).set(load.queued)
            self.running.labels(exchange).set(load.running)
            self.provisional.labels(exchange).set(provisional.get(exchange, 0))
            self.waiting.labels(exchange).set((wall_ns - since_ns.get(exchange, wall_ns)) / 1e9)
            for kind in SlotKind:
                self.slots.labels(exchange, kind.name).set(load.free.get(kind, 0))
        requests = Tally(live.state for live in state.requests.values())
        for each in (RequestState.QUEUED, RequestState.RUNNING):
            self.requests.labels(each.name).set(requests[each])
        self.requests_waiting.set(sum(bool(live.waiting) for live in state.requests.values()))
        self.report_age.set(report_age_ns / 1e9)
        self.subscriptions.set(len(registry.subscriptions))
        states = Tally(job.state for job in registry.jobs.values())
        for state_of_job in RealtimeState:
            self.realtime_jobs.labels(state_of_job.name).set(states[state_of_job])


IDLE = Load(0, 0, {})
