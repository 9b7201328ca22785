"""Simple second implementation of the broker; ``state_machine`` compares the two."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dexorder_common.model.history import Dispatch, FinalResult, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange, intersect, subtract
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.workers import Slot, SlotKind

ALL_SERIES = [Series("BTC/USDT.SIM", 60), Series("ETH/USDT.SIM", 60), Series("BTC/USDT.KRAKEN", 60)]
EXCHANGES = ["SIM", "KRAKEN"]
LEASE_NS, BACKOFF_NS, TIMEOUT_NS, HOUR_NS = 15, 3, 400, 3_600_000_000_000
MAX_ATTEMPTS, MAX_SLOTS = 3, 6


@dataclass(eq=False)
class Worker:
    """One dispatch at its ingestor: pages still to produce, and its records in the log, read up to ``read``."""

    dispatch: Dispatch
    identity: bytes
    todo: list[TimeRange]
    log: list[PageResult | FinalResult] = field(default_factory=list)
    read: int = 0
    idle: bool = False

    @property
    def job_id(self) -> str:
        return self.dispatch.dispatch_id


@dataclass
class Model:
    """Queues and slots in order, waits, rejections, attempts; for each dispatch its holder, its lease, and the parts of
    its range that were settled or retracted since it was sent.
    """

    queues: dict[str, list[int]] = field(default_factory=lambda: {exchange: [] for exchange in EXCHANGES})
    slots: dict[str, list[Slot]] = field(default_factory=lambda: {exchange: [] for exchange in EXCHANGES})
    not_before_ns: Counter[int] = field(default_factory=Counter)
    rejected_by: dict[int, set[bytes]] = field(default_factory=dict)
    failures_in_a_row: Counter[int] = field(default_factory=Counter)
    sent: dict[str, Dispatch] = field(default_factory=dict)
    settled: defaultdict[str, list[TimeRange]] = field(default_factory=lambda: defaultdict(list))
    taken_back: defaultdict[str, list[TimeRange]] = field(default_factory=lambda: defaultdict(list))
    current: dict[str, int] = field(default_factory=dict)
    deadline_ns: dict[str, int] = field(default_factory=dict)

    def renew(self, now_ns: int, *job_ids: str) -> None:
        """Start a full lease at a sign of life; a dispatch whose final record is in Kafka has none."""
        self.deadline_ns.update({job_id: now_ns + LEASE_NS for job_id in job_ids if job_id in self.deadline_ns})

    def note(self, spans: defaultdict[str, list[TimeRange]], series: Series, parts: Iterable[TimeRange]) -> None:
        """Note ranges for every current dispatch that was sent for some of them."""
        parts = list(parts)
        for job_id in self.current:
            if self.sent[job_id].series == series:
                spans[job_id] += intersect(parts, self.sent[job_id].span)

    def made_progress(self, job_id: str) -> bool:
        return bool(subtract(self.settled[job_id], self.taken_back[job_id]))

    def expired(self, now_ns: int) -> list[str]:
        """Return expired dispatches in the order in which they go to the front of the queue: the oldest last."""
        late = [job_id for job_id in self.current if self.deadline_ns.get(job_id, now_ns + 1) <= now_ns]
        return late[::-1]

    def assign(self, now_ns: int) -> list[tuple[int, Slot]]:
        """Give the oldest job to the oldest slot that fits, preferring ingestors that have not rejected it."""
        made = []
        for exchange, queue in self.queues.items():
            for job in list(queue):
                fitting = [slot for slot in self.slots[exchange] if slot.kind is not SlotKind.REALTIME]
                if fitting and self.not_before_ns[job] <= now_ns:
                    liked = [slot for slot in fitting if slot.identity not in self.rejected_by.get(job, ())]
                    slot = (liked or fitting)[0]
                    self.slots[exchange].remove(slot)
                    queue.remove(job)
                    made.append((job, slot))
        return made

    def offered(self, identity: bytes) -> int:
        return sum(slot.identity == identity for slots in self.slots.values() for slot in slots)

    def restart(self, now_ns: int) -> None:
        """Keep jobs, attempts and holders, which are in the file; forget slots, leases, waits and rejections."""
        self.current = dict(sorted(self.current.items(), key=lambda each: each[1]))
        self.renew(now_ns, *self.current)
        self.slots = {exchange: [] for exchange in EXCHANGES}
        self.not_before_ns.clear()
        self.rejected_by.clear()
        for queue in self.queues.values():
            queue.sort()


def dump(state: HistoryState) -> Any:
    """Return everything that must survive a restart."""
    return (
        {
            number: (
                job.request_id,
                job.span,
                job.phase,
                job.error,
                job.failures_in_a_row,
                job.dispatch_id,
                job.produced,
                job.sent,
                *(tuple(getattr(job, name)) for name in ("acked", "acked_empty", "refused", "handled")),
                frozenset(job.requests),
                frozenset(job.dispatch_ids),
                state.leases.is_queued(number),
                state.leases.is_running(number),
            )
            for number, job in state.jobs.items()
        },
        {
            request_id: (live.request, live.state, live.planned_end_ns, frozenset(live.jobs))
            for request_id, live in state.requests.items()
        },
        {series: (tuple(c.covered), tuple(c.empty)) for series, c in state.coverage.items() if c.covered},
        {series: taken for series, each in state.retractions.items() if (taken := each.in_force())},
    )
