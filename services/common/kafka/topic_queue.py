"""Records of one topic that a member of a group may deliver, and what its consumer is to do. Pure: no I/O, no clock.

    partition   meaning                         event                                              next
    ----------  ------------------------------  -------------------------------------------------  ----------
    unknown     never assigned                  `assign` with a commit                             reading
                                                `assign` without one                               starting
    starting    assigned, first offset unknown  `fetched`, `log_end`                               reading
    reading     assigned                        `leave` (revoked, lost)                            away
                                                a log that goes back (see `fetched`)               starting
    away        read elsewhere; acks are kept   `assign`: the acks count unless the group was      reading
                                                set back
                                                `assign` without the commit that Kafka had: the    starting
                                                topic was deleted

Partitions take turns, and due records come before new ones. The owner guards the queue with a lock: the member's thread
adds records, callers take them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from services.common.kafka.ack_tracker import FIRST, NEVER_NS, AckTracker
from services.common.kafka.commits import Commit, StartPosition, commit_metadata, start_position

T = TypeVar("T", bound=Sized)
BEGINNING, END = -2, -1
"""Positions of librdkafka: the first record of the log, and the next one to be written."""
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Rules of one reader.

    Attributes:
        new_group_start: ``BEGINNING`` or ``END``, for a group without any commit in the topic.
        max_pending: Unacked records of a partition, then it gets no new ones; also the early acks that are kept.
        max_retries: A record is given up after so many deliveries by timeout; -1 for never.
        sparse: Commit the acks above the lowest unacked offset as well.
        keep_records: Keep delivered records until their ack; otherwise they are read from Kafka again.
        buffer_records: Fetched records of a partition at which fetching pauses, until half of it.
        buffer_bytes: The same, in bytes.
    """

    new_group_start: int = BEGINNING
    ack_timeout_ns: int = NEVER_NS
    max_pending: int = _UNLIMITED
    max_retries: int = -1
    sparse: bool = True
    keep_records: bool = True
    buffer_records: int = 64
    buffer_bytes: int = 1 << 22


class Delivery(NamedTuple, Generic[T]):
    """Record on its way to a caller; ``redelivery`` is ``timeout`` or ``given_back`` if it was delivered before."""

    partition: int
    offset: int
    record: T
    redelivery: str = FIRST


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a group in a partition; ``pending`` records are delivered and not acked."""

    pending: int
    lowest_unacked: int
    next_offset: int  # never delivered


@dataclass(slots=True)
class _Partition(Generic[T]):
    """Attributes.

    tracker: None while the first offset is unknown.
    read_at: Offset that Kafka's next record should have, or be behind; None if unknown.
    position: Where the consumer is to continue; None if it is there.
    epoch: That of the partition's leaders at the last record before ``epoch_end``; -1 if unknown.
    committed: Kafka's commit, as far as we know.
    sent: Our last commit, which Kafka may have.
    lowered: The log went back, and Kafka does not have our commit since.
    early: Acks of a partition that was never assigned.
    given_back: Records that were not kept are to be delivered again.
    forgotten: Records of before a restart; their late acks must not count for the records of now.
    """

    tracker: AckTracker | None = None
    assigned: bool = False
    paused: bool = False
    ended: bool = False
    read_at: int | None = None
    position: int | None = None
    epoch: int = -1
    epoch_end: int = 0
    committed: Commit | None = None
    sent: Commit | None = None
    lowered: bool = False
    fetched: deque[tuple[int, T]] = field(default_factory=deque)
    fetched_bytes: int = 0
    records: dict[int, T] = field(default_factory=dict)
    given_back: bool = False
    early: set[int] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)

    def drop_fetched(self) -> None:
        self.fetched.clear()
        self.fetched_bytes = 0
        self.ended = False

    def pop(self) -> tuple[int, T]:
        item = self.fetched.popleft()
        self.fetched_bytes -= len(item[1])
        return item


class TopicQueue(Generic[T]):
    """Partitions of one topic.

    Attributes:
        gone_back: How many times a partition's log went back; whoever counts them sets it to 0.
    """

    def __init__(self, rules: ReadRules) -> None:
        self.rules = rules
        self.gone_back = 0
        self._partitions: dict[int, _Partition[T]] = {}
        self._order: deque[int] = deque()  # the assigned ones
        self._recreated = False

    # ---- assignment

    def assign(self, partition: int, commit: Commit | None, *, new_group: bool, epoch: int = -1) -> int:
        """Begin to deliver a partition's records; return the position at which the consumer starts.

        Args:
            commit: Kafka's commit; None if the group has none in this partition.
            new_group: Whether it has none in the whole topic; otherwise a partition without one was added later.
            epoch: That of the commit; -1 if it has none.
        """
        part = self._partitions.setdefault(partition, _Partition())
        if not part.assigned:
            self._order.append(partition)
        part.assigned, part.paused, part.position = True, False, None
        part.drop_fetched()
        if commit is None and part.committed is not None:  # Kafka forgets them with their topic
            self._recreated = True
            self._go_back(part)
            part.position = None
        elif commit is not None and not part.lowered:
            self._join(part, start_position(*commit))
            if part.epoch_end <= commit[0]:
                part.epoch, part.epoch_end = epoch, commit[0]
        part.read_at = None
        if part.tracker is not None:
            part.tracker.read_again()
            part.given_back = False
            part.read_at = part.tracker.lowest_unacked
            return part.read_at
        return BEGINNING if part.lowered or self._recreated or not new_group else self.rules.new_group_start

    def _join(self, part: _Partition[T], start: StartPosition) -> None:
        """Continue at a commit: ours, with the acks since, or a later one of another member."""
        set_back = part.committed is not None and start.offset < part.committed[0]
        found = AckTracker(start.offset, start.acked, max_early=self._max_early)
        if part.tracker is None or set_back:
            part.tracker = found
        else:
            part.tracker.join(start.offset, start.acked)
        part.committed = self._position(found) if start.committed else None
        self._apply_early(part)

    def _apply_early(self, part: _Partition[T]) -> None:
        assert part.tracker is not None
        for offset in sorted(part.early):
            part.tracker.ack(offset)
        part.early.clear()

    @property
    def _max_early(self) -> int:
        return min(self.rules.max_pending, 100_000)

    def leave(self, partition: int) -> None:
        """Stop to deliver a partition; its acks are kept, see `assign`."""
        part = self._partitions.get(partition)
        if part is None or not part.assigned:
            return
        self._order.remove(partition)
        part.assigned, part.position = False, None
        part.drop_fetched()
        if self.rules.keep_records:
            part.records.clear()
            if part.tracker is not None:
                part.tracker.forget_pending()

    def restart(self, partition: int, commit: Commit) -> None:
        """Continue at a commit that was set from outside; it stays as it is until an ack changes it.

        Pending records are forgotten. Their acks may still come; they must not count for the records that are delivered
        from now on.
        """
        part = self._partitions[partition]
        start = start_position(*commit)
        self._reset(part, AckTracker(start.offset, start.acked, max_early=self._max_early), start.offset)
        assert part.tracker is not None
        part.committed, part.lowered = self._position(part.tracker), False

    def _reset(self, part: _Partition[T], tracker: AckTracker | None, position: int | None) -> None:
        part.forgotten.update(part.tracker.pending_offsets if part.tracker else ())
        part.tracker, part.position, part.read_at = tracker, position, None
        part.committed = part.sent = None
        part.records.clear()
        part.drop_fetched()

    def go_back(self) -> None:
        """Read every partition from its beginning: the topic is another one of the same name."""
        self._recreated = True
        for part in self._partitions.values():
            self._go_back(part)

    def _go_back(self, part: _Partition[T]) -> None:
        self.gone_back += 1
        part.epoch, part.epoch_end, part.lowered = -1, 0, True
        self._reset(part, None, BEGINNING if part.assigned else None)

    # ---- what the consumer reads

    def fetched(self, partition: int, records: list[tuple[int, T]], *, epoch: int = -1) -> bool:
        """Add records in the order of the log; return False if it went back.

        It has gone back if a record is below our position, since the consumer continues at the log's beginning when
        the log ends before its position, or if it is of an older epoch of the partition's leaders.
        """
        part = self._partitions.get(partition)
        if part is None or not part.assigned or part.position is not None:
            return True
        first, end = records[0][0], records[-1][0] + 1
        if 0 <= epoch < part.epoch and first >= part.epoch_end:
            self._go_back(part)
            return False
        back = part.read_at is not None and first < part.read_at
        if back:
            self._go_back(part)
            part.position = None  # the consumer is at the beginning
        if end > part.epoch_end:
            part.epoch, part.epoch_end = epoch, end
        self._begin(part, first)
        part.read_at = end
        part.fetched.extend(records)
        part.fetched_bytes += sum([len(record) for _, record in records])
        self._pass_acked(part)
        return not back

    def log_end(self, partition: int, end: int) -> bool:
        """Note that all records before the log's end were read; return False if the log went back."""
        part = self._partitions.get(partition)
        if part is None or not part.assigned or part.position is not None:
            return True
        if part.read_at is not None and end < part.read_at:
            self._go_back(part)
            return False
        self._begin(part, end)
        part.read_at = end
        if not part.ended and part.tracker is not None:
            part.ended = True
            part.tracker.cut(end)
        return True

    def _begin(self, part: _Partition[T], offset: int) -> None:
        if part.tracker is None:
            part.tracker = AckTracker(offset, max_early=self._max_early)
            self._apply_early(part)

    def _pass_acked(self, part: _Partition[T]) -> None:
        """Pass the next records that were acked already, so that they are committed."""
        assert part.tracker is not None
        while part.fetched and part.tracker.acked_next(part.fetched[0][0]):
            part.tracker.deliver(part.pop()[0], NEVER_NS)

    def positions(self) -> dict[int, int]:
        """Return where the consumer is to continue, for partitions where it is elsewhere; then call `repositioned`."""
        for part in self._partitions.values():
            if part.given_back and part.assigned and part.position is None and part.tracker is not None:
                part.position = part.tracker.read_again()
                part.given_back = False
        return {p: part.position for p, part in self._partitions.items() if part.assigned and part.position is not None}

    def repositioned(self, partition: int, position: int) -> None:
        """Note that the consumer continues at a position of `positions`."""
        part = self._partitions[partition]
        part.position = None
        part.read_at = position if position >= 0 else None
        part.drop_fetched()

    # ---- pauses

    def full_partitions(self) -> dict[int, int]:
        """Return the partitions with a full buffer that are not paused, and the number of records in it."""
        rules = self.rules
        lengths = ((p, len(o.fetched), o.fetched_bytes) for p, o in self._partitions.items() if not o.paused)
        return {p: count for p, count, size in lengths if count >= rules.buffer_records or size >= rules.buffer_bytes}

    def pause(self, full: Mapping[int, int], *, others: bool = False) -> list[int]:
        """Return the partitions that must not be fetched for now.

        A partition that callers empty, only more slowly than Kafka fills it, is not paused unless others need fetching.

        Args:
            full: Result of ``full_partitions`` a while ago.
            others: Whether other topics need fetching.
        """
        parts = self._partitions
        fetching = [p for p, part in parts.items() if part.assigned and not part.paused and p not in full]
        if not others and not any(self.has_room(p) for p in fetching):
            full = {p: before for p, before in full.items() if p in parts and len(parts[p].fetched) >= before}
        chosen = [p for p in full if p in parts]
        for partition in chosen:
            parts[partition].paused = True
        return chosen

    def resume(self) -> list[int]:
        """Return the paused partitions that are to be fetched again."""
        ready = [p for p, part in self._partitions.items() if part.assigned and part.paused and self.has_room(p)]
        for partition in ready:
            self._partitions[partition].paused = False
        return ready

    @property
    def paused(self) -> set[int]:
        """Partitions that are not fetched, because nobody takes their fetched records."""
        return {p for p, part in self._partitions.items() if part.assigned and part.paused}

    def has_room(self, partition: int) -> bool:
        """Return whether a partition may be fetched again after it was full."""
        part = self._partitions.get(partition)
        if part is None:
            return True
        return (
            len(part.fetched) <= self.rules.buffer_records // 2 and part.fetched_bytes <= self.rules.buffer_bytes // 2
        )

    # ---- what callers do

    def take(self, limit: int = 1, *, now_ns: int) -> list[Delivery[T]]:
        """Return the next deliveries; none if there are no records or too many are unacked."""
        found: list[Delivery[T]] = []
        for _ in range(len(self._order)):
            if len(found) >= limit:
                break
            partition = self._order[0]
            self._order.rotate(-1)
            part = self._partitions[partition]
            if part.tracker is not None:
                self._take_from(partition, part, part.tracker, limit, now_ns, found)
        return found

    def _take_from(
        self,
        number: int,
        part: _Partition[T],
        tracker: AckTracker,
        limit: int,
        now_ns: int,
        found: list[Delivery[T]],
    ) -> None:
        keep, due_ns = self.rules.keep_records, now_ns + self.rules.ack_timeout_ns
        while keep and len(found) < limit and (again := tracker.redeliver(due_ns, now_ns=now_ns)) is not None:
            offset, reason = again
            found.append(Delivery(number, offset, part.records[offset], reason))
        while part.fetched and len(found) < limit and tracker.pending < self.rules.max_pending:
            offset, record = part.pop()
            first = tracker.deliver(offset, due_ns)
            if first is not None:
                found.append(Delivery(number, offset, record, first))
                if keep:
                    part.records[offset] = record
        self._pass_acked(part)

    @property
    def has_undelivered(self) -> bool:
        """True if fetched records were not delivered; after an empty ``take``, the limits are the reason."""
        return any(part.fetched for part in self._partitions.values())

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> bool:
        """Ack a record; return whether that changed anything: acks may be repeated.

        A record that was never delivered is skipped once it comes, or with ``delivered_only`` its ack is ignored. Acks
        of partitions that are not assigned are kept until they are.

        Raises:
            Exhausted: Too many acks of records not delivered.
        """
        part = self._partitions.setdefault(partition, _Partition())
        if part.tracker is None:
            fresh = not delivered_only and offset not in part.early and offset not in part.forgotten
            if fresh:
                part.early.add(offset)
            return fresh
        delivered = offset < part.tracker.next_offset
        if not delivered and (delivered_only or offset in part.forgotten):
            return False
        part.records.pop(offset, None)
        changed = part.tracker.ack(offset)
        if not delivered:
            self._pass_acked(part)
        return changed

    def give_back(self, partition: int, offset: int, *, now_ns: int) -> bool:
        """Make a record due at once, as its caller went away or does not want it; return False if nobody has it."""
        part = self._partitions.get(partition)
        if part is None or part.tracker is None or not part.tracker.give_back(offset, now_ns=now_ns):
            return False
        part.given_back = not self.rules.keep_records
        return True

    def give_back_all(self, *, now_ns: int) -> None:
        """Make all records that callers have due at once."""
        for partition, part in self._partitions.items():
            for offset in part.tracker.pending_offsets if part.tracker else ():
                self.give_back(partition, offset, now_ns=now_ns)

    def give_up(self, *, now_ns: int) -> list[tuple[int, list[int]]]:
        """Remove and return, by partition, the records that are due after their last retry; they count as acked."""
        if self.rules.max_retries < 0:
            return []
        found = []
        for partition, part in self._partitions.items():
            if part.tracker is not None and (spent := part.tracker.give_up(self.rules.max_retries, now_ns=now_ns)):
                found.append((partition, spent))
                for offset in spent:
                    part.records.pop(offset, None)
        return found

    # ---- commits and progress

    def commits(self, partitions: Iterable[int] | None = None) -> dict[int, Commit]:
        """Return the positions not committed yet, by assigned partition; call ``committed`` when Kafka has them.

        Never beyond the last record that was delivered, whatever was acked early: a commit beyond the log's end could
        not be told from a commit in an earlier topic of that name.
        """
        found = {}
        for number in self._order if partitions is None else partitions:
            part = self._partitions.get(number)
            if part is not None and part.assigned and part.tracker is not None:
                position = self._position(part.tracker)
                if position != part.committed:
                    found[number] = part.sent = position
        return found

    def _position(self, tracker: AckTracker) -> Commit:
        offset = tracker.lowest_unacked
        return offset, commit_metadata(offset, tracker.acked_above()) if self.rules.sparse else ""

    def committed(self, commits: Mapping[int, Commit]) -> None:
        """Note the commits that Kafka has confirmed."""
        for partition, position in commits.items():
            part = self._partitions.get(partition)
            if part is not None and part.sent == position:
                part.committed, part.lowered = position, False

    def epoch(self, partition: int) -> int:
        """Return the epoch of the partition's leaders at the last record; -1 if it is unknown."""
        part = self._partitions.get(partition)
        return -1 if part is None else part.epoch

    @property
    def partitions(self) -> list[int]:
        """Assigned partitions, ascending."""
        return sorted(self._order)

    def is_assigned(self, partition: int) -> bool:
        """Return whether a partition is assigned."""
        part = self._partitions.get(partition)
        return part is not None and part.assigned

    def was_delivered(self, partition: int, offset: int) -> bool:
        """Return whether a record was delivered by this process, or passed."""
        part = self._partitions.get(partition)
        if part is None:
            return False
        return offset in part.forgotten or (part.tracker is not None and offset < part.tracker.next_offset)

    def _trackers(self) -> dict[int, AckTracker]:
        parts = self._partitions
        return {p: tracker for p in list(self._order) if (tracker := parts[p].tracker) is not None}

    def progress(self) -> dict[int, Progress]:
        """Return the progress of each assigned partition."""
        trackers = self._trackers().items()
        return {p: Progress(each.pending, each.lowest_unacked, each.next_offset) for p, each in trackers}

    def last_ack_deadline_ns(self) -> int:
        """Return the latest end of an ack timeout; 0 if nothing is pending."""
        return max((each.last_ack_deadline_ns() for each in self._trackers().values()), default=0)

    def in_flight(self) -> int:
        """Return how many records callers have."""
        return sum(part.tracker.in_flight for part in self._partitions.values() if part.tracker is not None)

    def lost(self) -> int:
        """Return how many records were to be delivered again but are no longer in the log."""
        return sum(part.tracker.lost for part in self._partitions.values() if part.tracker is not None)

    def lag(self, starts: Mapping[int, int], ends: Mapping[int, int], committed: Mapping[int, int]) -> int:
        """Return how many records of the topic are not acked; by the commits for partitions of other members."""
        total, trackers = 0, self._trackers()
        for number, end in ends.items():
            start, tracker = starts.get(number, 0), trackers.get(number)
            if tracker is None:
                total += max(0, end - max(committed.get(number, 0), start))
            else:
                total += max(0, tracker.unacked(end) - max(0, start - tracker.lowest_unacked))
        return total
