"""Queues and leases: which ingestor gets which job, and when a job is taken back. Pure; time is passed in.

A job is HISTORICAL or REALTIME and takes a slot of that kind or an ANY slot.

A job is queued, then held under the id of its current dispatch. A held job runs under a lease until the ingestor says
that Kafka has the final record; then it waits for the pipeline without a lease. Taking a job back forgets its dispatch
id, which fences later messages under that id. One WorkerReady is one slot, used by one dispatch; ``workers.py`` says
which workers get one.

    queued --assign--> running --complete--> produced --remove--> gone
      ^                   |                     |
      `-----requeue-------'---------------------'
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dexorder_relay.state.workers import Slot, SlotKind, TrialRules, Workers


class Assignment(NamedTuple):
    """Send ``job`` to the slot's ingestor under ``dispatch_id``."""

    job: int
    dispatch_id: str
    slot: Slot


class Loss(NamedTuple):
    """Result for a job after its dispatch ended early."""

    exchange: str
    made_progress: bool
    given_up: bool = False


class Load(NamedTuple):
    """Jobs and free slots of one exchange."""

    queued: int
    running: int
    free: Mapping[SlotKind, int]


_KINDS = (SlotKind.HISTORICAL, SlotKind.REALTIME)


@dataclass(slots=True)
class _Entry:
    exchange: str
    kind: SlotKind
    trace: str = ""
    place: int = 0
    not_before_ns: int = 0
    new_not_before_ns: int = 0
    rejected_by: set[bytes] = field(default_factory=set)
    dispatch_id: str | None = None
    deadline_ns: int | None = None
    stopping: bool = False

    def running(self) -> bool:
        return self.deadline_ns is not None

    @property
    def queue(self) -> tuple[str, SlotKind]:
        return self.exchange, self.kind


class Leases:
    """The one owner of queues, slots and leases."""

    def __init__(
        self, *, lease_ns: int, new_id: Callable[..., str], max_slots: int = 1_000, trials: TrialRules | None = None
    ) -> None:
        """Take the ids of dispatches from ``new_id``, which also takes the trace of a job that has one.

        Without ``trials`` all workers are treated alike.
        """
        self._lease_ns = lease_ns
        self._new_id = new_id
        self._workers = Workers(max_slots=max_slots, rules=trials)
        self._entries: dict[int, _Entry] = {}
        self._held: dict[str, int] = {}
        self._queues: defaultdict[tuple[str, SlotKind], OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._first = self._last = 0

    def queue(self, job: int, exchange: str, kind: SlotKind = SlotKind.HISTORICAL, *, trace: str = "") -> None:
        """Add a job after all others of its exchange; the ids of its dispatches carry its ``trace``."""
        self._last += 1
        entry = self._entries[job] = _Entry(exchange, kind, trace, self._last)
        self._queues[entry.queue][job] = None

    def resume(
        self,
        job: int,
        exchange: str,
        dispatch_id: str,
        *,
        kind: SlotKind = SlotKind.HISTORICAL,
        trace: str = "",
        produced: bool,
        now_ns: int,
    ) -> None:
        """Add a job that was held before a restart, with a full lease."""
        deadline_ns = None if produced else now_ns + self._lease_ns
        self._entries[job] = _Entry(exchange, kind, trace, dispatch_id=dispatch_id, deadline_ns=deadline_ns)
        self._held[dispatch_id] = job

    def lose(self, dispatch_id: str, *, now_ns: int) -> bool:
        """Count the end of a dispatch without result or page; return whether the worker alone is to blame for it."""
        return self._workers.lose(dispatch_id, now_ns=now_ns)

    def silent(self, dispatch_id: str) -> None:
        """Note that the worker of a dispatch is silent: it may be gone, so new ones are not compared with it."""
        self._workers.silent(dispatch_id)

    def requeue(
        self, job: int, *, not_before_ns: int = 0, new_not_before_ns: int = 0, rejected_by: bytes | None = None
    ) -> None:
        """Take a held job back and queue it at the front.

        Args:
            not_before_ns: Time before which it is not assigned.
            new_not_before_ns: Time before which it is assigned to proven workers only.
            rejected_by: Identity that rejected it; the next assignments prefer other ingestors.
        """
        entry = self._entries[job]
        self._release(entry)
        entry.not_before_ns = not_before_ns
        entry.new_not_before_ns = new_not_before_ns
        if rejected_by is not None:
            entry.rejected_by.add(rejected_by)
        self._first -= 1
        entry.place = self._first
        queue = self._queues[entry.queue]
        queue[job] = None
        queue.move_to_end(job, last=False)

    def remove(self, job: int) -> None:
        """Forget a job; its dispatch, if it has one, is fenced."""
        entry = self._entries.pop(job, None)
        if entry is not None:
            self._release(entry)
            self._queues[entry.queue].pop(job, None)

    def offer(self, slot: Slot) -> bool:
        """Keep a slot; return False if this identity has offered too many."""
        return self._workers.offer(slot)

    def drop(self, identity: bytes) -> int:
        """Forget the slots of a peer that cannot be reached; return their number."""
        return self._workers.drop(identity)

    def assign(self, *, now_ns: int) -> list[Assignment]:
        """Give queued jobs, oldest first, to free slots, oldest first, and to ingestors that have not rejected them."""
        self._workers.pass_time(now_ns=now_ns)
        made = []
        for exchange in dict.fromkeys(exchange for exchange, _ in self._queues):
            free = self._workers.free(exchange)
            full = {kind for kind in _KINDS if not free[kind] and not free[SlotKind.ANY]}
            for job in self._by_age(exchange, full):
                entry = self._entries[job]
                if entry.not_before_ns > now_ns:
                    continue
                new = entry.new_not_before_ns <= now_ns
                slot = self._workers.take(exchange, entry.kind, avoid=entry.rejected_by, new=new, now_ns=now_ns)
                if slot is not None:
                    made.append(self._hold(job, entry, slot, now_ns))
                elif new:
                    full.add(entry.kind)
        for assignment in made:
            self._queues[self._entries[assignment.job].queue].pop(assignment.job)
        return made

    def _by_age(self, exchange: str, full: Collection[SlotKind]) -> Iterator[int]:
        """Yield the queued jobs of an exchange, oldest first, except those of kinds for which there is no slot."""
        queues = {kind: iter(self._queues.get((exchange, kind), ())) for kind in _KINDS}
        heads = {kind: job for kind, queue in queues.items() if (job := next(queue, None)) is not None}
        while kinds := [kind for kind in heads if kind not in full]:
            kind = min(kinds, key=lambda each: self._entries[heads[each]].place)
            yield heads[kind]
            job = next(queues[kind], None)
            if job is None:
                del heads[kind]
            else:
                heads[kind] = job

    def job_of(self, dispatch_id: str) -> int | None:
        """Return the job with this current dispatch; None for fenced, ended and unknown ids."""
        return self._held.get(dispatch_id)

    def renew(self, dispatch_id: str, *, now_ns: int) -> bool:
        """Start a full lease at a sign of life from any socket; return whether the dispatch is current."""
        job = self._held.get(dispatch_id)
        if job is None:
            return False
        entry = self._entries[job]
        if entry.running() and not entry.stopping:
            entry.deadline_ns = now_ns + self._lease_ns
        return True

    def page(self, dispatch_id: str, *, now_ns: int) -> None:
        """Renew a lease because a page of the dispatch was reported, and trust its worker."""
        if self.renew(dispatch_id, now_ns=now_ns):
            self._workers.page(dispatch_id, now_ns=now_ns)

    def renew_all(self, *, now_ns: int) -> None:
        """Start full leases for all dispatches, after a suspension of this process: it could not hear them."""
        for dispatch_id in self._held:
            self.renew(dispatch_id, now_ns=now_ns)

    def stop(self, dispatch_id: str) -> None:
        """Let the lease of a stopped dispatch run out: no sign of life extends it any more."""
        if (job := self._held.get(dispatch_id)) is not None:
            self._entries[job].stopping = True

    def complete(self, dispatch_id: str) -> int | None:
        """End the lease, as Kafka has the final record; return the job if the dispatch is current."""
        job = self._held.get(dispatch_id)
        if job is not None:
            self._entries[job].deadline_ns = None
        return job

    def expired(self, *, now_ns: int) -> list[str]:
        """Return every dispatch with an expired lease, oldest last, so that it becomes the first in the queue.

        A dispatch on trial that has shown no page for too long is one of them.
        """
        late = set(self._workers.late(now_ns=now_ns))
        return [
            dispatch_id
            for dispatch_id, job in reversed(self._held.items())
            if dispatch_id in late
            or ((deadline_ns := self._entries[job].deadline_ns) is not None and deadline_ns <= now_ns)
        ]

    def is_queued(self, job: int) -> bool:
        """Return whether the job waits for a slot."""
        return job in self._entries and self._entries[job].dispatch_id is None

    def is_running(self, job: int) -> bool:
        """Return whether an ingestor works on the job."""
        return job in self._entries and self._entries[job].running()

    def busy_exchanges(self) -> set[str]:
        """Return the exchanges with a running job of history."""
        held = map(self._entries.__getitem__, self._held.values())
        return {entry.exchange for entry in held if entry.running() and entry.kind is SlotKind.HISTORICAL}

    def load(self) -> dict[str, Load]:
        """Return queued jobs, running jobs and free slots by exchange."""
        running = Counter(entry.exchange for entry in self._entries.values() if entry.running())
        queued = Counter({exchange: 0 for exchange, _ in self._queues})
        for (exchange, _), queue in self._queues.items():
            queued[exchange] += len(queue)
        return {
            exchange: Load(queued[exchange], running[exchange], self._workers.free(exchange))
            for exchange in {*queued, *running, *self._workers.exchanges()}
        }

    def _hold(self, job: int, entry: _Entry, slot: Slot, now_ns: int) -> Assignment:
        entry.dispatch_id = self._new_id(entry.trace) if entry.trace else self._new_id()
        entry.deadline_ns = now_ns + self._lease_ns
        self._held[entry.dispatch_id] = job
        self._workers.start(entry.dispatch_id, slot, entry.kind, now_ns=now_ns)
        return Assignment(job, entry.dispatch_id, slot)

    def _release(self, entry: _Entry) -> None:
        if entry.dispatch_id is not None:
            self._held.pop(entry.dispatch_id, None)
            self._workers.end(entry.dispatch_id)
        entry.dispatch_id = entry.deadline_ns = None
        entry.stopping = False
