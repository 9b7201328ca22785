"""Delivery state of each record of plain reads, and the commits and redeliveries that follow from it. Pure.

    state      event                                        next
    new        issue                                        ISSUED
    ISSUED     ack                                          ACKED
    ISSUED     nack, or restart (a new client)              NACKED     to be issued again
    NACKED     issue                                        ISSUED     counted as redelivered
    NACKED     ack (late, of the first copy)                ACKED
    NACKED     the topic no longer has the record           ACKED      counted as lost
    ACKED      every record before it is ACKED too          committed  below the base, forgotten

Other events leave a record as it is. The base of a partition is its first offset that is not ACKED. Only the base is
committed, so an ack out of order never commits a record that is still in flight. Offsets may have holes (compaction,
transactions).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from services.common.model.errors import InvalidRequest


class _State(Enum):
    ISSUED = auto()
    NACKED = auto()
    ACKED = auto()


@dataclass
class _Partition:
    next: int
    """First offset that was never issued."""
    assigned: bool = True
    rewind: bool = False
    """A NACKED record is below the position of the consumer."""
    dirty: bool = False
    """The base has moved since it was last returned for commit."""
    states: dict[int, _State] = field(default_factory=dict)
    order: deque[int] = field(default_factory=deque)
    """Offsets in ``states``, ascending."""
    nacked: list[int] = field(default_factory=list)
    """Heap of offsets that became NACKED; some may have changed since."""

    @property
    def base(self) -> int:
        return self.order[0] if self.order else self.next

    def ack(self, offset: int) -> None:
        self.states[offset] = _State.ACKED
        while self.order and self.states[self.order[0]] is _State.ACKED:
            del self.states[self.order.popleft()]
            self.dirty = True

    def nack(self, offset: int) -> None:
        self.states[offset] = _State.NACKED
        heapq.heappush(self.nacked, offset)
        self.rewind = True

    def forget_below(self, base: int) -> None:
        while self.order and self.order[0] < base:
            del self.states[self.order.popleft()]
        self.next = max(self.next, base)

    def first_nacked(self) -> int | None:
        while self.nacked and self.states.get(self.nacked[0]) is not _State.NACKED:
            heapq.heappop(self.nacked)
        return self.nacked[0] if self.nacked else None

    def count(self, state: _State) -> int:
        return sum(s is state for s in self.states.values())


class AckTracker:
    """Offsets of one topic as one client sees them. Not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self.redelivered = 0
        """Records issued again so far."""
        self.lost = 0
        """Records that were to be issued again but are no longer in the topic (retention, compaction)."""

    def assign(self, partition: int, committed: int | None) -> None:
        """Add a partition at the group's commit, None if there is none.

        The state that this process has of it stays, so that a record in flight is not issued again on the same stream.
        """
        known = self._partitions.get(partition)
        if known is None:
            self._partitions[partition] = _Partition(committed or 0)
            return
        known.assigned = True
        known.forget_below(committed or 0)
        known.dirty = known.base > (committed or 0) > 0

    def revoke(self, partition: int) -> None:
        """Stop commits of a partition, which another member has now; acks of issued records are still accepted."""
        if partition in self._partitions:
            self._partitions[partition].assigned = False

    def issue(self, partition: int, offset: int) -> bool:
        """Return whether the client gets the record just read; if so it is in flight from now on.

        Offsets of a partition must ascend, except after a rewind.
        """
        part = self._partitions.get(partition)
        if part is None:
            part = self._partitions[partition] = _Partition(offset)
        if part.nacked and not part.rewind:
            while (first := part.first_nacked()) is not None and first < offset:
                part.ack(first)
                self.lost += 1
        state = part.states.get(offset)
        if state is _State.NACKED:
            self.redelivered += 1
        elif state is not None or offset < part.next:
            return False
        else:
            part.order.append(offset)
            part.next = offset + 1
        part.states[offset] = _State.ISSUED
        return True

    def restart(self) -> None:
        """Take back every record in flight, for a new client."""
        for part in self._partitions.values():
            for offset, state in part.states.items():
                if state is _State.ISSUED:
                    part.nack(offset)

    def rewinds(self) -> dict[int, int]:
        """Return the offset from which each partition must be read again, where a record is to be issued again."""
        wanted = {}
        for number, part in self._partitions.items():
            if part.rewind and part.assigned:
                first = part.first_nacked()
                if first is None:
                    part.rewind = False
                else:
                    wanted[number] = first
        return wanted

    def rewound(self, partition: int) -> None:
        """Record that the consumer now reads ``partition`` from the offset that `rewinds` returned."""
        self._partitions[partition].rewind = False

    def ack(self, acks: Iterable[tuple[int, int]], committed: Mapping[int, int]) -> int:
        """Ack (partition, offset) pairs, all or none; return how many were not acked before.

        Args:
            committed: The group's commits, for partitions of which this process has issued nothing.
        Raises:
            InvalidRequest: An offset was never issued.
        """
        fresh = 0
        for part, offset in self._open(acks, committed, "ack"):
            if part.states.get(offset) in (_State.ISSUED, _State.NACKED):
                part.ack(offset)
                fresh += 1
        return fresh

    def nack(self, nacks: Iterable[tuple[int, int]], committed: Mapping[int, int]) -> int:
        """Take back (partition, offset) pairs in flight, all or none; return how many were in flight.

        Raises:
            InvalidRequest: An offset was never issued.
        """
        fresh = 0
        for part, offset in self._open(nacks, committed, "nack"):
            if part.states.get(offset) is _State.ISSUED:
                part.nack(offset)
                fresh += 1
        return fresh

    def _open(
        self, pairs: Iterable[tuple[int, int]], committed: Mapping[int, int], verb: str
    ) -> list[tuple[_Partition, int]]:
        """Return the pairs that are not committed, once all of them are known to have been issued."""
        found = []
        for number, offset in pairs:
            part = self._partitions.get(number)
            base = part.base if part else committed.get(number, 0)
            if offset < base:
                continue
            if part is None or offset not in part.states:
                raise InvalidRequest(f"{verb} of offset {offset} of partition {number}, which was never issued")
            found.append((part, offset))
        return found

    def commits(self) -> dict[int, int]:
        """Return the position to commit of each assigned partition whose base has moved since the last call."""
        moved = {n: p.base for n, p in self._partitions.items() if p.assigned and p.dirty}
        for number in moved:
            self._partitions[number].dirty = False
        return moved

    def commit_failed(self, partitions: Iterable[int]) -> None:
        """Make `commits` return these partitions again, as their last commit failed."""
        for number in partitions:
            if number in self._partitions:
                self._partitions[number].dirty = True

    def assigned(self) -> list[int]:
        """Return the assigned partitions, ascending."""
        return sorted(n for n, p in self._partitions.items() if p.assigned)

    def in_flight(self) -> int:
        """Return the number of records issued and not answered."""
        return sum(part.count(_State.ISSUED) for part in self._partitions.values())

    def lag(self, starts: Mapping[int, int], ends: Mapping[int, int], committed: Mapping[int, int]) -> int:
        """Return the number of records of the topic that are not acked; by the commits for partitions of other members.

        Counts offsets, so a hole counts as a record until it is passed.
        """
        total = 0
        for number, end in ends.items():
            part = self._partitions.get(number)
            start = starts.get(number, 0)
            if part is None or not part.assigned:
                total += max(0, end - max(committed.get(number, 0), start))
            else:
                total += max(0, end - max(part.base, start) - part.count(_State.ACKED))
        return total
