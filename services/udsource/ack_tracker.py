"""What was handed out, what was acked, and what follows: commits and redeliveries, per partition. Pure.

    new --deliver--> FLYING --ack--> SETTLED --(all before it are settled too)--> forgotten, below the base
                       |  ^
        nack, restart  v  | deliver
                       DUE

The base of a partition is its first offset that is not settled; that is what may be committed, so acks out of order
never commit over a record that is still in flight. Offsets may have holes (compaction, transactions).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from services.common.model.errors import InvalidRequest


class _State(Enum):
    FLYING = auto()
    DUE = auto()
    SETTLED = auto()


@dataclass
class _Partition:
    next: int
    """First offset that was never handed out."""
    assigned: bool = True
    rewind: bool = False
    """Something is due below where the consumer reads."""
    dirty: bool = False
    """The base has moved since it was last given out for commit."""
    states: dict[int, _State] = field(default_factory=dict)
    order: deque[int] = field(default_factory=deque)
    """Offsets in ``states``, ascending."""
    due: list[int] = field(default_factory=list)
    """Heap of offsets that became DUE; some may have been acked since."""

    @property
    def base(self) -> int:
        return self.order[0] if self.order else self.next

    def settle(self, offset: int) -> None:
        self.states[offset] = _State.SETTLED
        while self.order and self.states[self.order[0]] is _State.SETTLED:
            del self.states[self.order.popleft()]
            self.dirty = True

    def forget_below(self, base: int) -> None:
        while self.order and self.order[0] < base:
            del self.states[self.order.popleft()]
        self.next = max(self.next, base)

    def make_due(self, offset: int) -> None:
        self.states[offset] = _State.DUE
        heapq.heappush(self.due, offset)
        self.rewind = True

    def first_due(self) -> int | None:
        while self.due and self.states.get(self.due[0]) is not _State.DUE:
            heapq.heappop(self.due)
        return self.due[0] if self.due else None


class AckTracker:
    """Offsets of one topic as one client sees them. Not thread-safe.

    Attributes:
        redelivered: Records handed out a second time so far.
        lost: Records that were due but are no longer in the topic (retention, compaction); settled.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self.redelivered = 0
        self.lost = 0

    # ---- what Kafka tells

    def assign(self, partition: int, committed: int | None) -> None:
        """The partition is ours; the group has committed ``committed`` (none: never).

        What this process knows of it stays: a record in flight from before is not handed out again on the same stream.
        """
        known = self._partitions.get(partition)
        if known is None:
            self._partitions[partition] = _Partition(committed or 0)
            return
        known.assigned = True
        known.forget_below(committed or 0)
        known.dirty = known.base > (committed or 0) > 0

    def revoke(self, partition: int) -> None:
        """The partition is another's now: nothing is committed, acks of what was handed out stay welcome."""
        if partition in self._partitions:
            self._partitions[partition].assigned = False

    # ---- what is handed out

    def deliver(self, partition: int, offset: int) -> bool:
        """Whether the client gets the record just read; if so it is in flight from now on.

        Offsets of a partition come in ascending order, except after a rewind.
        """
        part = self._partitions.get(partition)
        if part is None:
            part = self._partitions[partition] = _Partition(offset)
        if part.due and not part.rewind:
            while (first := part.first_due()) is not None and first < offset:
                part.settle(first)
                self.lost += 1
        state = part.states.get(offset)
        if state is _State.DUE:
            self.redelivered += 1
        elif state is not None or offset < part.next:
            return False
        else:
            part.order.append(offset)
            part.next = offset + 1
        part.states[offset] = _State.FLYING
        return True

    def restart(self) -> None:
        """A new client: all that is in flight becomes due."""
        for part in self._partitions.values():
            for offset, state in part.states.items():
                if state is _State.FLYING:
                    part.make_due(offset)

    def rewinds(self) -> dict[int, int]:
        """Partition -> offset from which the consumer must read again, where something is due below its position."""
        wanted = {}
        for number, part in self._partitions.items():
            if part.rewind and part.assigned:
                first = part.first_due()
                if first is None:
                    part.rewind = False
                else:
                    wanted[number] = first
        return wanted

    def rewound(self, partition: int) -> None:
        """The consumer now reads ``partition`` from the offset that `rewinds` gave."""
        self._partitions[partition].rewind = False

    # ---- what the client answers

    def ack(self, acks: Iterable[tuple[int, int]], committed: Mapping[int, int]) -> int:
        """Settle (partition, offset) pairs; all or none. Returns how many were not settled before.

        Args:
            committed: The group's commits, for partitions of which this process has handed out nothing.
        Raises:
            InvalidRequest: An offset was never handed out.
        """
        pairs = self._check(acks, committed, "ack")
        fresh = 0
        for number, offset in pairs:
            part = self._partitions[number]
            if part.states.get(offset) in (_State.FLYING, _State.DUE):
                part.settle(offset)
                fresh += 1
        return fresh

    def nack(self, nacks: Iterable[tuple[int, int]], committed: Mapping[int, int]) -> int:
        """Make (partition, offset) pairs in flight due again; all or none. Returns how many.

        Raises:
            InvalidRequest: An offset was never handed out.
        """
        pairs = self._check(nacks, committed, "nack")
        fresh = 0
        for number, offset in pairs:
            part = self._partitions[number]
            if part.states.get(offset) is _State.FLYING:
                part.make_due(offset)
                fresh += 1
        return fresh

    def _check(
        self, pairs: Iterable[tuple[int, int]], committed: Mapping[int, int], verb: str
    ) -> list[tuple[int, int]]:
        """The pairs that may still change something."""
        live = []
        for number, offset in pairs:
            part = self._partitions.get(number)
            base = part.base if part else committed.get(number, 0)
            if offset < base:
                continue
            if part is None or offset not in part.states:
                raise InvalidRequest(f"{verb} of offset {offset} of partition {number}, which was never handed out")
            live.append((number, offset))
        return live

    # ---- what follows

    def commits(self) -> dict[int, int]:
        """Partition -> position to commit, for ours that have moved since the last call."""
        moved = {n: p.base for n, p in self._partitions.items() if p.assigned and p.dirty}
        for number in moved:
            self._partitions[number].dirty = False
        return moved

    def commit_failed(self, partitions: Iterable[int]) -> None:
        """The last commit of these partitions did not arrive; `commits` gives them again."""
        for number in partitions:
            if number in self._partitions:
                self._partitions[number].dirty = True

    def assigned(self) -> list[int]:
        """Our partitions, ascending."""
        return sorted(n for n, p in self._partitions.items() if p.assigned)

    def in_flight(self) -> int:
        """Records handed out and not answered."""
        return sum(s is _State.FLYING for p in self._partitions.values() for s in p.states.values())

    def lag(self, starts: Mapping[int, int], ends: Mapping[int, int], committed: Mapping[int, int]) -> int:
        """Records of the topic that are not acked; of partitions that are not ours, by the group's commits.

        Counts offsets, so holes count as records until they are passed.
        """
        total = 0
        for number, end in ends.items():
            part = self._partitions.get(number)
            start = starts.get(number, 0)
            if part is None or not part.assigned:
                total += max(0, end - max(committed.get(number, 0), start))
            else:
                done = sum(s is _State.SETTLED for s in part.states.values())
                total += max(0, end - max(part.base, start) - done)
        return total
