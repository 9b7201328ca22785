"""Slots, queues and leases: which ingestor gets which job, and when a job is taken back. Pure; time is passed in.

A job is queued, then held under the job_id of its current dispatch. Held, it runs under a lease until the ingestor says
that Kafka has the final record; from then on it waits for the pipeline without a lease. Taking a job back forgets its
job_id, which fences whatever still comes under it. One WorkerReady is one slot, used by one dispatch.

    queued --assign--> running --complete--> produced --remove--> gone
      ^                   |                     |
      `-----requeue-------'---------------------'
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class SlotKind(IntEnum):
    """What a slot takes; numbers of the proto's SlotType."""

    ANY = 0
    HISTORICAL = 1
    REALTIME = 2


@dataclass(frozen=True, slots=True)
class Slot:
    """One offer of one ingestor socket to take one job of one exchange."""

    identity: bytes
    exchange: str
    kind: SlotKind


@dataclass(frozen=True, slots=True)
class Assignment:
    """Send ``job`` to the slot's ingestor under ``job_id``."""

    job: int
    dispatch_id: str
    slot: Slot


@dataclass(frozen=True, slots=True)
class Load:
    """What one exchange has to do and who is free to do it."""

    queued: int
    running: int
    free: Mapping[SlotKind, int]


@dataclass(slots=True)
class _Work:
    exchange: str
    not_before_ns: int = 0
    rejected_by: set[bytes] = field(default_factory=set)
    dispatch_id: str | None = None
    identity: bytes | None = None
    deadline_ns: int | None = None

    def running(self) -> bool:
        return self.deadline_ns is not None


class Leases:
    """The one owner of queues, slots and leases."""

    def __init__(self, *, lease_ns: int, new_id: Callable[[], str], max_slots: int = 1_000) -> None:
        self._lease_ns = lease_ns
        self._new_id = new_id
        self._max_slots = max_slots
        self._work: dict[int, _Work] = {}
        self._held: dict[str, int] = {}
        self._queues: defaultdict[str, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._slots: defaultdict[str, list[Slot]] = defaultdict(list)
        self._slots_of: Counter[bytes] = Counter()

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def queue(self, job: int, exchange: str) -> None:
        """Add a job at the back of its exchange's queue."""
        self._work[job] = _Work(exchange)
        self._queues[exchange][job] = None

    def resume(self, job: int, exchange: str, dispatch_id: str, *, produced: bool, now_ns: int) -> None:
        """Take over a dispatch that was held before a restart, with a full lease."""
        deadline_ns = None if produced else now_ns + self._lease_ns
        self._work[job] = _Work(exchange, dispatch_id=dispatch_id, deadline_ns=deadline_ns)
        self._held[dispatch_id] = job

    def requeue(self, job: int, *, not_before_ns: int = 0, rejected_by: bytes | None = None) -> None:
        """Take a held job back and queue it at the front, to wait there until a time, and to shun who rejected it."""
        work = self._work[job]
        self._release(job, work)
        work.not_before_ns = not_before_ns
        if rejected_by is not None:
            work.rejected_by.add(rejected_by)
        queue = self._queues[work.exchange]
        queue[job] = None
        queue.move_to_end(job, last=False)

    def remove(self, job: int) -> None:
        """Forget a job wherever it is; its job_id is fenced."""
        work = self._work.pop(job, None)
        if work is not None:
            self._release(job, work)
            self._queues[work.exchange].pop(job, None)

    # ---- slots -----------------------------------------------------------------------------------------------------

    def offer(self, slot: Slot) -> bool:
        """Keep a slot; False when this identity has offered too many."""
        if self._slots_of[slot.identity] >= self._max_slots:
            return False
        self._slots_of[slot.identity] += 1
        self._slots[slot.exchange].append(slot)
        return True

    def drop(self, identity: bytes) -> int:
        """Forget the slots of a peer that can't be reached; how many there were."""
        for exchange, slots in self._slots.items():
            self._slots[exchange] = [slot for slot in slots if slot.identity != identity]
        return self._slots_of.pop(identity, 0)

    def assign(self, *, now_ns: int) -> list[Assignment]:
        """Give queued jobs, oldest first, to free slots, oldest first; a job shuns ingestors that rejected it."""
        made = []
        for exchange, queue in self._queues.items():
            slots = [slot for slot in self._slots[exchange] if slot.kind is not SlotKind.REALTIME]
            for job in queue:
                if not slots:
                    break
                work = self._work[job]
                if work.not_before_ns > now_ns:
                    continue
                slot = next((s for s in slots if s.identity not in work.rejected_by), slots[0])
                slots.remove(slot)
                made.append(self._hold(job, work, slot, now_ns))
            for assign in made:
                queue.pop(assign.job, None)
        return made

    # ---- dispatches ------------------------------------------------------------------------------------------------

    def job_of(self, dispatch_id: str) -> int | None:
        """The job whose current dispatch this is; None for fenced, ended and unknown ids."""
        return self._held.get(dispatch_id)

    def renew(self, dispatch_id: str, *, now_ns: int, identity: bytes | None = None) -> bool:
        """A sign of life: a full lease again; whether the dispatch is current.

        Args:
            identity: The socket it came from; a worker that reconnected has a new one.
        """
        job = self._held.get(dispatch_id)
        if job is None:
            return False
        work = self._work[job]
        work.identity = identity or work.identity
        if work.running():
            work.deadline_ns = now_ns + self._lease_ns
        return True

    def renew_all(self, *, now_ns: int) -> None:
        """Full leases for all: this process itself was asleep, so silence says nothing."""
        for dispatch_id in self._held:
            self.renew(dispatch_id, now_ns=now_ns)

    def complete(self, dispatch_id: str) -> int | None:
        """The ingestor is done and Kafka has the final record: no lease from here; the job, if current."""
        job = self._held.get(dispatch_id)
        if job is not None:
            self._work[job].deadline_ns = None
        return job

    def expired(self, *, now_ns: int) -> list[str]:
        """Every dispatch whose lease has run out; the oldest last, so that it ends up first in the queue."""
        late = [
            dispatch_id
            for dispatch_id, job in self._held.items()
            if (deadline_ns := self._work[job].deadline_ns) is not None and deadline_ns <= now_ns
        ]
        return late[::-1]

    # ---- what others ask -------------------------------------------------------------------------------------------

    def is_queued(self, job: int) -> bool:
        """Whether the job waits for a slot."""
        return job in self._work and self._work[job].dispatch_id is None

    def is_running(self, job: int) -> bool:
        """Whether an ingestor holds the job now."""
        return job in self._work and self._work[job].running()

    def busy_exchanges(self) -> set[str]:
        """Exchanges of which ingestors hold a job."""
        return {work.exchange for work in map(self._work.__getitem__, self._held.values()) if work.running()}

    def counts(self) -> tuple[int, int, int]:
        """Queued jobs, running jobs, free slots."""
        queued = sum(map(len, self._queues.values()))
        return queued, sum(w.running() for w in list(self._work.values())), sum(self._slots_of.values())

    def load(self) -> dict[str, Load]:
        """The same by exchange."""
        running = Counter(work.exchange for work in self._work.values() if work.running())
        return {
            exchange: Load(
                len(self._queues.get(exchange, ())),
                running[exchange],
                Counter(slot.kind for slot in self._slots.get(exchange, ())),
            )
            for exchange in {*self._queues, *running, *self._slots}
        }

    def _hold(self, job: int, work: _Work, slot: Slot, now_ns: int) -> Assignment:
        self._slots[slot.exchange].remove(slot)
        self._slots_of[slot.identity] -= 1
        if not self._slots_of[slot.identity]:
            del self._slots_of[slot.identity]  # identities come and go for ever
        work.dispatch_id = self._new_id()
        work.identity = slot.identity
        work.deadline_ns = now_ns + self._lease_ns
        self._held[work.dispatch_id] = job
        return Assignment(job, work.dispatch_id, slot)

    def _release(self, job: int, work: _Work) -> None:
        if work.dispatch_id is not None:
            self._held.pop(work.dispatch_id, None)
        work.dispatch_id = work.identity = work.deadline_ns = None
