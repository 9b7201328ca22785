"""What one consumer of a group may hand out next: its partitions in turn, due records before new ones. Pure.

The owner guards it with a lock: fetched records come from Kafka's thread, requests from the event loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.common.errors import SuiteError
from services.gateway.pixy.acks import AckRules, AckTracker, Offer
from services.gateway.pixy.sparse_acks import Range, committed_ranges

T = TypeVar("T")
Commit = tuple[int, str]
"""Offset and metadata."""


class NotAssigned(SuiteError):
    """The partition is read by another member of the group, or by nobody."""


@dataclass(frozen=True, slots=True)
class Delivery(Generic[T]):
    """A record on its way to a caller.

    Attributes:
        again: Why it was handed out before: ``timeout`` or ``given_back``; empty the first time.
    """

    partition: int
    offset: int
    record: T
    again: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading a partition begins.

    Attributes:
        acked: Ranges above ``offset`` that are acked already.
        committed: Whether this is exactly what is committed.
        remark: What was wrong with the commit; empty when nothing was.
    """

    offset: int
    acked: tuple[Range, ...] = ()
    committed: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a partition is.

    Attributes:
        pending: Records offered and not acked.
        next_offset: The first offset never offered.
    """

    pending: int
    lowest_unacked: int
    next_offset: int


def start_of(offset: int, metadata: str, *, low: int, high: int, earliest: bool) -> Start:
    """Where to begin, given a partition's commit and its log ``[low, high)``.

    Args:
        offset: Committed offset; negative when the group has none.
        earliest: Where a group without a commit begins: at ``low`` instead of ``high``.
    """
    if offset < 0:
        return Start(low if earliest else high)
    if offset > high:
        # The topic was made anew: none of its records was ever delivered.
        return Start(low, remark=f"committed {offset} is beyond the log's end {high}; starting at {low}")
    try:
        acked = tuple(committed_ranges(offset, metadata, end=high))
    except ValueError as error:
        return Start(max(offset, low), remark=f"metadata {metadata!r} is not used: {error}")
    if offset < low:
        kept = tuple((max(start, low), end) for start, end in acked if end > low)
        return Start(low, kept, remark=f"committed {offset} is before the log's beginning; starting at {low}")
    return Start(offset, acked, committed=True)


@dataclass(slots=True)
class _Partition(Generic[T]):
    tracker: AckTracker[T]
    fetched: deque[tuple[int, T]] = field(default_factory=deque)
    committed: Commit | None = None
    forgotten: set[int] = field(default_factory=set)


class Offers(Generic[T]):
    """The partitions of one group and topic that this process reads.

    Args:
        buffer: Fetched records of a partition at which it is full; fetching goes on at half of it.
    """

    def __init__(self, rules: AckRules, *, buffer: int) -> None:
        self._rules, self._buffer = rules, buffer
        self._partitions: dict[int, _Partition[T]] = {}
        self._turn: deque[int] = deque()

    def assign(self, partition: int, start: Start) -> None:
        """Begin to offer a partition's records."""
        owned = _Partition[T](AckTracker(start.offset, self._rules, start.acked))
        if start.committed:
            owned.committed = owned.tracker.position()
        if partition not in self._partitions:
            self._turn.append(partition)
        self._partitions[partition] = owned

    def restart(self, partition: int, start: Start) -> None:
        """Go on elsewhere, where the group's commit was set to.

        What was offered before is forgotten. Its acks may still come; they must not pass for acks of the records that
        will be offered anew.
        """
        before = self._partitions[partition]
        self.assign(partition, start)
        self._partitions[partition].forgotten = before.forgotten.union(before.tracker.pending_offsets)

    def revoke(self, partition: int) -> Commit | None:
        """Forget a partition; what is still to be committed for it."""
        owned = self._partitions.pop(partition, None)
        if owned is None:
            return None
        self._turn.remove(partition)
        position = owned.tracker.position()
        return None if position == owned.committed else position

    @property
    def partitions(self) -> list[int]:
        """Partitions assigned."""
        return list(self._partitions)

    @property
    def pending(self) -> int:
        """Records offered and not acked."""
        return sum(owned.tracker.pending for owned in self._partitions.values())

    @property
    def waits_for_ack(self) -> int:
        """When the last pending record runs out, in ns of the caller's clock; 0 when none is pending."""
        return max((owned.tracker.waits_for_ack for owned in self._partitions.values()), default=0)

    def progress(self) -> dict[int, Progress]:
        """How far each partition is."""
        trackers = ((p, owned.tracker) for p, owned in self._partitions.items())
        return {p: Progress(tracker.pending, tracker.lowest_unacked, tracker.next_offset) for p, tracker in trackers}

    def fetched(self, partition: int, offset: int, record: T) -> None:
        """Keep a record until its turn; dropped if the partition is not assigned any more."""
        if (owned := self._partitions.get(partition)) is not None:
            owned.fetched.append((offset, record))

    def overfull(self) -> list[int]:
        """Partitions with a full buffer."""
        return [p for p, owned in self._partitions.items() if len(owned.fetched) >= self._buffer]

    def has_room(self, partition: int) -> bool:
        """Whether fetching the partition may go on after it was full."""
        owned = self._partitions.get(partition)
        return owned is None or len(owned.fetched) <= self._buffer // 2

    def next(self, *, now_ns: int) -> Delivery[T] | None:
        """The next record to deliver; None when there is none or too many are pending."""
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            self._turn.rotate(-1)
            owned = self._partitions[partition]
            offer = owned.tracker.redeliver(now_ns=now_ns)
            if offer is not None:
                why = "given_back" if offer.given_back else "timeout"
                owned.tracker.redelivered(offer, now_ns=now_ns)
                return Delivery(partition, offer.offset, offer.record, why)
            while owned.fetched and not owned.tracker.full:
                offset, record = owned.fetched.popleft()
                if owned.tracker.offer(offset, record, now_ns=now_ns):
                    return Delivery(partition, offset, record)
        return None

    def give_up(self, *, now_ns: int) -> list[tuple[int, Offer[T]]]:
        """Partition and offer of the records whose retries are used up; they count as acked."""
        return [(p, o) for p, owned in self._partitions.items() for o in owned.tracker.give_up(now_ns=now_ns)]

    def give_back(self, partition: int, offset: int, *, now_ns: int) -> None:
        """The caller is gone: the record is due at once."""
        if (owned := self._partitions.get(partition)) is not None:
            owned.tracker.give_back(offset, now_ns=now_ns)

    def ack(self, partition: int, offset: int, *, offered_only: bool = False) -> bool:
        """Ack a record.

        Args:
            offered_only: Leave alone what was never offered, instead of skipping it once it comes.
        Returns:
            Whether that changed anything; an ack may come twice.
        Raises:
            NotAssigned: The partition is not ours.
            Exhausted: Too many acks of records not offered.
        """
        owned = self._partitions.get(partition)
        if owned is None:
            raise NotAssigned(f"partition {partition} is not assigned to this gateway")
        if (offered_only or offset in owned.forgotten) and not owned.tracker.offered(offset):
            return False
        return owned.tracker.ack(offset)

    def commits(self) -> dict[int, Commit]:
        """What is not committed yet, a partition; call ``committed`` when Kafka has it."""
        positions = {p: owned.tracker.position() for p, owned in self._partitions.items()}
        return {p: position for p, position in positions.items() if position != self._partitions[p].committed}

    def committed(self, commits: dict[int, Commit]) -> None:
        """Kafka has these."""
        for partition, position in commits.items():
            if (owned := self._partitions.get(partition)) is not None:
                owned.committed = position
