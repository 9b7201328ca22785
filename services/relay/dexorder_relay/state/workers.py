"""Workers' offers, and how much a worker is trusted with: new ones are tried with few jobs at a time. Pure.

A worker is an ingestor's socket at one exchange. What a peer of the broker says about itself is no reason to trust it:
it may take jobs and reject them, keep them, or end them without a page. Only a page counts, which the ingestor reports
over gRPC once Kafka has it, or the pipeline once it is committed.

======  ====================================  ==========================================================================
State   Meaning                               Next
======  ====================================  ==========================================================================
new     it has shown no page                  proven by a page of one of its dispatches; waiting by a loss
proven  a page of it was reported             waiting by a loss; new when it is silent; forgotten when it is gone
waiting its last dispatch was lost            new when its wait is over: a second, doubled by each loss, at most 8 s
======  ====================================  ==========================================================================

A loss is a dispatch that ended without a final record and without a page. While an exchange has a proven worker,

* new workers together run at most ``places`` jobs of history; a place whose job was lost is free again a second later;
* such a job is taken back ``late_ns`` after it was sent if no page has come, whatever its worker says;
* its loss counts against the worker alone: the job goes to the next proven worker at once, and waits before a new one.

Without another proven worker, as after a start or with one ingestor, all are treated alike: a worker is new again after
a loss instead of waiting, and the loss counts against the job. A realtime job has no place: its first page may be a
minute away.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from dexorder_common.model.times import SECOND_NS

MAX_TRIALS = 4
"""Jobs of history that all new workers of an exchange run at once, while it has a proven one."""
MAX_WAITS = 10_000
"""Workers whose losses are remembered; the one that lost first is forgotten."""


class SlotKind(IntEnum):
    """Kind of a job, or of the jobs that a slot takes; numbers of the proto's SlotType."""

    ANY = 0
    HISTORICAL = 1
    REALTIME = 2


class Slot(NamedTuple):
    """Offer of one ingestor socket to take one job of one exchange."""

    identity: bytes
    exchange: str
    kind: SlotKind


class Worker(NamedTuple):
    """One ingestor's socket at one exchange."""

    identity: bytes
    exchange: str


@dataclass(frozen=True, slots=True)
class TrialRules:
    """How new workers are tried; `Workers` has the rules.

    Attributes:
        places: Jobs of history that the new workers of an exchange run at once.
        late_ns: Time after which such a job is taken back if no page has come.
        wait_ns: Wait of a worker, and of a place, after a loss; a worker's doubles with each one in a row.
        max_wait_ns: Longest wait of a worker.
        idle_ns: Time after which a proven worker without an offer and without a dispatch is forgotten.
    """

    places: int = MAX_TRIALS
    late_ns: int = 60 * SECOND_NS
    wait_ns: int = SECOND_NS
    max_wait_ns: int = 8 * SECOND_NS
    idle_ns: int = 60 * SECOND_NS


@dataclass(slots=True)
class _Offers:
    """Offers of one exchange and kind by number, in order, of proven workers and of new ones."""

    proven: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    new: OrderedDict[int, bytes] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class _Work:
    """A dispatch at its worker; ``on_trial`` if the worker was new when it got a job of history."""

    worker: Worker
    since_ns: int
    on_trial: bool


class Workers:
    """Owner of the offers, and of what is known of the workers that made them."""

    def __init__(self, *, max_slots: int, rules: TrialRules | None) -> None:
        """Keep ``max_slots`` offers of one socket; without rules all workers are treated alike."""
        self._max_slots = max_slots
        self._rules = rules
        self._numbers = 0
        self._offers: defaultdict[tuple[str, SlotKind], _Offers] = defaultdict(_Offers)
        self._kept: defaultdict[bytes, dict[int, Slot]] = defaultdict(dict)
        self._waiting: set[Worker] = set()
        self._ends: list[tuple[int, Worker]] = []
        self._losses: OrderedDict[Worker, int] = OrderedDict()
        self._proven: OrderedDict[Worker, int] = OrderedDict()
        self._proven_at: Counter[str] = Counter()
        self._work: dict[str, _Work] = {}
        self._trials: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._closed: defaultdict[str, list[int]] = defaultdict(list)

    # ---- offers ----------------------------------------------------------------------------------------------------

    def offer(self, slot: Slot) -> bool:
        """Keep an offer; return False if this socket has made too many."""
        if len(self._kept[slot.identity]) >= self._max_slots:
            return False
        self._numbers += 1
        self._kept[slot.identity][self._numbers] = slot
        self._put(self._numbers, slot)
        return True

    def drop(self, identity: bytes) -> int:
        """Forget the offers of a peer that cannot be reached, and that it was proven; return their number."""
        kept = self._kept.pop(identity, {})
        for number, slot in kept.items():
            self._take_out(number, slot)
        for worker in [each for each in self._proven if each.identity == identity]:
            self._disprove(worker)
        return len(kept)

    def take(self, exchange: str, kind: SlotKind, *, avoid: Collection[bytes], new: bool, now_ns: int) -> Slot | None:
        """Take the oldest offer that fits a job; None without one.

        Args:
            avoid: Sockets that have rejected the job; they get it if no other one may.
            new: Whether a worker that is not proven may take it.
        """
        found = self._oldest(exchange, kind, new=new, now_ns=now_ns, avoid=avoid)
        if found is None and avoid:
            found = self._oldest(exchange, kind, new=new, now_ns=now_ns, avoid=())
        if found is None:
            return None
        number, identity = found
        slot = self._kept[identity].pop(number)
        self._take_out(number, slot)
        if not self._kept[identity]:
            del self._kept[identity]  # else identities of gone peers would accumulate
        return slot

    def free(self, exchange: str) -> Mapping[SlotKind, int]:
        """Return the number of offers by kind; those of workers that wait are not counted."""
        counts = {
            kind: len(offers.proven) + len(offers.new)
            for kind in SlotKind
            if (offers := self._offers.get((exchange, kind))) is not None
        }
        return Counter({kind: count for kind, count in counts.items() if count})

    def exchanges(self) -> set[str]:
        """Return the exchanges for which there was an offer."""
        return {exchange for exchange, _ in self._offers}

    def has_proven(self, exchange: str) -> bool:
        """Return whether the exchange has a proven worker."""
        return self._proven_at[exchange] > 0

    def _each(self, exchange: str, kind: SlotKind, *, new: bool) -> Iterator[OrderedDict[int, bytes]]:
        for each in (SlotKind.ANY, kind):
            if (offers := self._offers.get((exchange, each))) is not None:
                yield offers.proven
                if new:
                    yield offers.new

    def _oldest(
        self, exchange: str, kind: SlotKind, *, new: bool, now_ns: int, avoid: Collection[bytes]
    ) -> tuple[int, bytes] | None:
        """Return the number and the identity of an offer."""
        may_be_new = new and (kind is SlotKind.REALTIME or self._has_place(exchange, now_ns))
        lists = self._each(exchange, kind, new=may_be_new)
        firsts = (_first(each, avoid) for each in lists)
        return min((each for each in firsts if each is not None), default=None)

    def _has_place(self, exchange: str, now_ns: int) -> bool:
        if self._rules is None or not self.has_proven(exchange):
            return True
        closed = sum(until_ns > now_ns for until_ns in self._closed[exchange])
        return len(self._trials[exchange]) + closed < self._rules.places

    def _put(self, number: int, slot: Slot) -> None:
        worker = Worker(slot.identity, slot.exchange)
        if worker in self._waiting:
            return
        offers = self._offers[slot.exchange, slot.kind]
        (offers.proven if worker in self._proven else offers.new)[number] = slot.identity

    def _take_out(self, number: int, slot: Slot) -> None:
        offers = self._offers[slot.exchange, slot.kind]
        offers.proven.pop(number, None)
        offers.new.pop(number, None)

    def _move(self, worker: Worker) -> None:
        """Put a worker's offers where they belong since what is known of it has changed."""
        own = self._own(worker)
        for number, slot in own:
            self._take_out(number, slot)
            self._put(number, slot)
        if worker in self._proven:  # numbers ascend in each list
            for kind in {slot.kind for _, slot in own}:
                proven = self._offers[worker.exchange, kind].proven
                self._offers[worker.exchange, kind].proven = OrderedDict(sorted(proven.items()))

    # ---- dispatches ------------------------------------------------------------------------------------------------

    def start(self, dispatch_id: str, slot: Slot, kind: SlotKind, *, now_ns: int) -> None:
        """Note that a job of a kind was given to the worker of a slot."""
        worker = Worker(slot.identity, slot.exchange)
        on_trial = kind is not SlotKind.REALTIME and worker not in self._proven
        self._work[dispatch_id] = _Work(worker, now_ns, on_trial)
        if on_trial:
            self._trials[worker.exchange][dispatch_id] = None
        else:
            self._see(worker, now_ns)

    def page(self, dispatch_id: str, *, now_ns: int) -> None:
        """Prove the worker of a dispatch, because a page of it was reported."""
        work = self._work.get(dispatch_id)
        if work is None or self._rules is None:
            return
        worker = work.worker
        self._losses.pop(worker, None)
        if worker in self._proven:
            self._see(worker, now_ns)
            return
        self._waiting.discard(worker)
        self._proven[worker] = now_ns
        self._proven_at[worker.exchange] += 1
        for each in [key for key in self._trials[worker.exchange] if self._work[key].worker == worker]:
            self._end_trial(each)
        self._move(worker)

    def lose(self, dispatch_id: str, *, now_ns: int) -> bool:
        """Count a loss against its worker; return whether it counts against the worker alone, not against the job."""
        work, rules = self._work.get(dispatch_id), self._rules
        if work is None or rules is None:
            return False
        worker = work.worker
        alone = work.on_trial and self.has_proven(worker.exchange)
        if work.on_trial:
            closed = [until_ns for until_ns in self._closed[worker.exchange] if until_ns > now_ns]
            self._closed[worker.exchange] = [*closed, now_ns + rules.wait_ns][-rules.places :]
        self._disprove(worker)
        if not self.has_proven(worker.exchange):
            return alone
        losses = self._losses[worker] = self._losses.pop(worker, 0) + 1
        if len(self._losses) > MAX_WAITS:
            self._losses.popitem(last=False)
        self._waiting.add(worker)
        self._move(worker)
        wait_ns = min(rules.wait_ns << min(losses - 1, 10), rules.max_wait_ns)
        heapq.heappush(self._ends, (now_ns + wait_ns, worker))
        return alone

    def silent(self, dispatch_id: str) -> None:
        """Forget that the worker of a dispatch was proven, because it has sent nothing for long."""
        if (work := self._work.get(dispatch_id)) is not None:
            self._disprove(work.worker)

    def end(self, dispatch_id: str) -> None:
        """Forget a dispatch that has ended, in whatever way."""
        self._end_trial(dispatch_id)
        self._work.pop(dispatch_id, None)

    def late(self, *, now_ns: int) -> list[str]:
        """Return the dispatches on trial that have shown no page for too long, oldest first."""
        if self._rules is None:
            return []
        since_ns = now_ns - self._rules.late_ns
        proven = [trials for exchange, trials in self._trials.items() if trials and self.has_proven(exchange)]
        return [each for trials in proven for each in trials if self._work[each].since_ns <= since_ns]

    def pass_time(self, *, now_ns: int) -> None:
        """End the waits that are over, and forget proven workers that have not been seen for long."""
        while self._ends and self._ends[0][0] <= now_ns:
            _, worker = heapq.heappop(self._ends)
            if worker in self._waiting:
                self._waiting.remove(worker)
                self._renumber(worker)
        if self._rules is None:
            return
        for worker in _not_seen_since(self._proven, now_ns - self._rules.idle_ns):
            if self._kept.get(worker.identity) or any(each.worker == worker for each in self._work.values()):
                self._see(worker, now_ns)
            else:
                self._disprove(worker)

    def _renumber(self, worker: Worker) -> None:
        """Put the offers of a worker that has waited after all others."""
        kept = self._kept.get(worker.identity, {})
        for number, slot in self._own(worker):
            del kept[number]
            self._numbers += 1
            kept[self._numbers] = slot
            self._put(self._numbers, slot)

    def _own(self, worker: Worker) -> list[tuple[int, Slot]]:
        kept = self._kept.get(worker.identity, {})
        return [(number, slot) for number, slot in kept.items() if slot.exchange == worker.exchange]

    def _end_trial(self, dispatch_id: str) -> None:
        work = self._work.get(dispatch_id)
        if work is not None and work.on_trial:
            work.on_trial = False
            self._trials[work.worker.exchange].pop(dispatch_id, None)

    def _see(self, worker: Worker, now_ns: int) -> None:
        if worker in self._proven:
            self._proven[worker] = now_ns
            self._proven.move_to_end(worker)

    def _disprove(self, worker: Worker) -> None:
        if self._proven.pop(worker, None) is not None:
            self._proven_at[worker.exchange] -= 1
            self._move(worker)


def _first(offers: Mapping[int, bytes], avoid: Collection[bytes]) -> tuple[int, bytes] | None:
    return next((each for each in offers.items() if each[1] not in avoid), None)


def _not_seen_since(seen: Mapping[Worker, int], since_ns: int) -> list[Worker]:
    """Return the first workers of a mapping that is ordered by the time when they were seen last."""
    return [worker for worker, _ in itertools.takewhile(lambda each: each[1] <= since_ns, seen.items())]
