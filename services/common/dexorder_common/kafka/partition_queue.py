"""Records of one partition that a member of a group may deliver. Pure: no I/O, no clock.

state     meaning                         event                                              next state
--------  ------------------------------  -------------------------------------------------  ----------
unknown   never assigned                  `assign` with a commit                             reading
                                          `assign` without one                               starting
starting  assigned, first offset unknown  `fetched`, `log_end`                               reading
reading   assigned                        `leave` (revoked, lost)                            away
                                          a log that goes back (see `fetched`)               starting
away      read elsewhere; acks are kept   `assign`: the acks count unless the group was      reading
                                          set back
                                          `assign` without the commit that Kafka had: the    starting
                                          topic was deleted
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from dexorder_common.kafka.ack_tracker import FIRST, NEVER_NS, AckTracker
from dexorder_common.kafka.commits import Commit, StartPosition, commit_metadata, start_position

T = TypeVar("T", bound=Sized)
BEGINNING, END = -2, -1
"""Positions of librdkafka: the first record of the log, and the next one to be written."""
MIN_SHARE_RECORDS = 64
"""Least number of fetched records of a partition at which fetching pauses, if the partitions share a buffer."""
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Rules of one reader.

    Attributes:
        new_group_start: ``BEGINNING`` or ``END``, for a group without any commit in the topic.
        max_pending: Unacked records of a partition above which it gets no new ones, and number of early acks kept.
        max_retries: A record is given up after this many deliveries by timeout; -1 for never.
        sparse: Commit the acks above the lowest unacked offset as well.
        keep_records: Keep delivered records until their ack; otherwise they are read from Kafka again.
        buffer_records: Fetched records of a partition at which fetching pauses, until half of it.
        buffer_bytes: The same, in bytes.
        buffer_shared: Whether both are limits of the topic's partitions here together; then each has an equal part, at
            least `MIN_SHARE_RECORDS`.
    """

    new_group_start: int = BEGINNING
    ack_timeout_ns: int = NEVER_NS
    max_pending: int = _UNLIMITED
    max_retries: int = -1
    sparse: bool = True
    keep_records: bool = True
    buffer_records: int = 64
    buffer_bytes: int = 1 << 22
    buffer_shared: bool = False


class Delivery(NamedTuple, Generic[T]):
    """Record on its way to a caller; ``redelivery`` is ``timeout`` or ``given_back`` if it was delivered before."""

    partition: int
    offset: int
    record: T
    redelivery: str = FIRST


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a group in a partition; ``pending`` records are delivered and not acked."""

    pending: int
    lowest_unacked: int
    next_offset: int  # never delivered


class PartitionQueue(Generic[T]):
    """Fetched records of a partition and the states of the delivered ones.

    Attributes:
        tracker: None while the first offset is unknown.
        assigned: Whether this member reads the partition.
        paused: Whether it is not fetched because no caller takes the fetched records.
        epoch: That of the partition's leaders at the last record; -1 if it is unknown.
        length_bytes: Size of the fetched records.
    """

    def __init__(self, rules: ReadRules) -> None:
        self.rules = rules
        self.tracker: AckTracker | None = None
        self.assigned = False
        self.paused = False
        self.epoch = -1
        self.length_bytes = 0
        self._epoch_end = 0  # the record of ``epoch`` is the one before
        self._ended = False
        # The record before our position. Its epoch tells whether the log is still the same; None if it was compared.
        self._compared_at: int | None = None
        # Offset that Kafka's next record should have, or be behind; None if unknown.
        self._read_at: int | None = None
        # Where the consumer is to continue; None if it is there.
        self._position: int | None = None
        # By offset, stamps of the first two and the last of the records that came together last.
        self._stamps: dict[int, object] = {}
        # End of their part that has been read again; None if the consumer does not read them again.
        self._again_at: int | None = None
        # Kafka's commit, as far as we know; our last one, which Kafka may have.
        self._committed: Commit | None = None
        self._sent: Commit | None = None
        # The log went back, and Kafka does not have our commit since.
        self._lowered = False
        self._fetched: deque[tuple[int, T]] = deque()
        self._kept: dict[int, T] = {}
        # Records that were not kept are to be delivered again.
        self._given_back = False
        # Acks of a partition that was never assigned.
        self._early: set[int] = set()
        # Records of before a restart; their late acks must not count for the records of now.
        self._forgotten: set[int] = set()

    # ---- assignment

    @property
    def lost_its_topic(self) -> bool:
        """Return whether Kafka had a commit: it forgets them with their topic."""
        return self._committed is not None

    def assign(self, commit: Commit | None, *, start: int, epoch: int) -> int:
        """Start to deliver records; return the position at which the consumer starts.

        Args:
            commit: Kafka's commit of the group in this partition; may be None.
            start: Position without a commit.
            epoch: Epoch of the commit; -1 without one.
        """
        self.assigned = True
        self.paused = False
        self._position = None
        self._compared_at = None
        self._drop_fetched()
        if commit is not None and not self._lowered:
            self._join(start_position(*commit))
            if self._epoch_end <= commit[0]:
                self.epoch = epoch
                self._epoch_end = commit[0]
        self._read_at = None
        if self.tracker is None:
            return BEGINNING if self._lowered else start
        self.tracker.read_again()
        self._given_back = False
        self._read_at = self.tracker.lowest_unacked
        if self.epoch >= 0 and self._read_at > 0:
            self._read_at -= 1
            self._compared_at = self._read_at
        return self._read_at

    def _join(self, start: StartPosition) -> None:
        """Continue at a commit: ours, with the acks since, or a later one of another member."""
        set_back = self._committed is not None and start.offset < self._committed[0]
        found = AckTracker(start.offset, start.acked, max_early=self._max_early)
        if self.tracker is None or set_back:
            self.tracker = found
        else:
            self.tracker.join(start.offset, start.acked)
        self._committed = self._commit_of(found) if start.committed else None
        self._apply_early(self.tracker)

    def _apply_early(self, tracker: AckTracker) -> None:
        for offset in sorted(self._early):
            tracker.ack(offset)
        self._early.clear()

    @property
    def _max_early(self) -> int:
        return min(self.rules.max_pending, 100_000)

    def leave(self) -> None:
        """Stop to deliver; acks are kept, see `assign`."""
        self.assigned = False
        self._position = None
        self._drop_fetched()
        if self.rules.keep_records:
            self._kept.clear()
            if self.tracker is not None:
                self.tracker.forget_pending()

    def restart(self, commit: Commit) -> None:
        """Continue at a commit that was set from outside; see `TopicQueue.restart`."""
        start = start_position(*commit)
        tracker = AckTracker(start.offset, start.acked, max_early=self._max_early)
        self._reset(tracker, start.offset)
        self._committed = self._commit_of(tracker)
        self._lowered = False

    def go_back(self) -> None:
        """Read from the log's start."""
        self.epoch = -1
        self._epoch_end = 0
        self._lowered = True
        self._reset(None, BEGINNING if self.assigned else None)

    def _reset(self, tracker: AckTracker | None, position: int | None) -> None:
        self._forgotten.update(self.tracker.pending_offsets if self.tracker else ())
        self.tracker = tracker
        self._position = position
        self._read_at = None
        self._committed = self._sent = None
        self._kept.clear()
        self._drop_fetched()

    # ---- records from the consumer

    @property
    def _reads(self) -> bool:
        """Return whether the consumer's records are ours: the consumer is where it should be."""
        return self.assigned and self._position is None

    def fetched(
        self,
        records: list[tuple[int, T]],
        *,
        epoch: int = -1,
        first_epoch: int = -1,
        stamp_of: Callable[[T], object] | None = None,
    ) -> bool:
        """Add records in the order of the log; return False if it went back.

        It has gone back if a record is below our position, since the consumer continues at the log's start when
        the log ends before its position; if it is of an older epoch of the partition's leaders; or if the record before
        the first position is of a later one: it was written after others at these offsets. librdkafka compares a log
        only while its consumer does not know the current epoch.

        Records may be read again without that, and are passed: librdkafka counts the records of a call as consumed when
        the call returns, and continues at the place before them if a rebalance has interrupted the fetching in the
        call, even for another topic.

        Args:
            epoch: Epoch of the last record.
            first_epoch: Epoch of the first record.
            stamp_of: Returns a stamp that distinguishes a record from another one at its offset; without it, no record
                counts as read again.
        """
        if not self._reads:
            return True
        given, compared_at, self._compared_at = records, self._compared_at, None
        if compared_at == records[0][0]:
            if first_epoch > self.epoch:
                self.go_back()
                return False
            self._read_at = compared_at + 1
            records = records[1:]
            if not records:
                self._note(given, stamp_of)
                return True
        first, end = records[0][0], records[-1][0] + 1
        if 0 <= epoch < self.epoch and first >= self._epoch_end:
            self.go_back()
            return False
        back = self._read_at is not None and first < self._read_at
        if back and stamp_of is not None and self._are_again(records, stamp_of):
            self._again_at = end
            records = [each for each in records if each[0] >= (self._read_at or 0)]
            if not records:
                return True
            back, first = False, records[0][0]
        if back:
            self.go_back()
            self._position = None  # the consumer is at the start
        if end > self._epoch_end:
            self.epoch = epoch
            self._epoch_end = end
        self._pass_acked(self._begun(first), records)
        self._read_at, self._again_at = end, None
        self._note(given, stamp_of)
        return not back

    def _note(self, records: list[tuple[int, T]], stamp_of: Callable[[T], object] | None) -> None:
        """Remember records that came together; they may be read again from the first or, after a poll, the second."""
        if stamp_of is not None:
            self._stamps = {offset: stamp_of(record) for offset, record in (*records[:2], records[-1])}

    def _are_again(self, records: list[tuple[int, T]], stamp_of: Callable[[T], object]) -> bool:
        """Return whether records are the last ones that came together, or follow their part that was read again."""
        first = records[0][0]
        if first not in self._stamps and (self._again_at is None or first < self._again_at):
            return False
        return all(self._stamps[offset] == stamp_of(record) for offset, record in records if offset in self._stamps)

    def log_end(self, end: int) -> bool:
        """Note that all records before the log's end were read; return False if the log went back."""
        if not self._reads:
            return True
        least = self._read_at if self._compared_at is None else self._compared_at + 1
        if least is not None and end < least:
            self.go_back()
            return False
        tracker = self._begun(end)
        self._read_at = end
        if not self._ended:
            self._ended = True
            tracker.cut(end)
        return True

    def _begun(self, offset: int) -> AckTracker:
        if self.tracker is None:
            self.tracker = AckTracker(offset, max_early=self._max_early)
            self._apply_early(self.tracker)
        return self.tracker

    def _pass_acked(self, tracker: AckTracker, more: list[tuple[int, T]] | tuple[()] = ()) -> None:
        """Pass the next records that were acked already, so that they are committed."""
        self._fetched.extend(more)
        self.length_bytes += sum([len(record) for _, record in more])
        while self._fetched and tracker.acked_next(self._fetched[0][0]):
            tracker.deliver(self._pop()[0], NEVER_NS)

    def _pop(self) -> tuple[int, T]:
        item = self._fetched.popleft()
        self.length_bytes -= len(item[1])
        return item

    def _drop_fetched(self) -> None:
        self._fetched.clear()
        self.length_bytes = 0
        self._ended = False
        self._stamps, self._again_at = {}, None

    def position(self) -> int | None:
        """Return where the consumer is to continue; None if it is there. Then call `repositioned`."""
        if self._given_back and self._reads and self.tracker is not None:
            self._position = self.tracker.read_again()
            self._given_back = False
        return self._position if self.assigned else None

    def repositioned(self, position: int) -> None:
        """Note that the consumer continues at a result of `position`."""
        self._position = self._compared_at = None
        self._read_at = position if position >= 0 else None
        self._drop_fetched()

    @property
    def length(self) -> int:
        """Number of fetched records."""
        return len(self._fetched)

    def is_full(self, share: int) -> bool:
        """Return whether fetching should pause; ``share`` partitions have the buffer together."""
        return self.length >= self._most_records(share) or self.length_bytes >= self.rules.buffer_bytes // share

    def has_room(self, share: int) -> bool:
        """Return whether fetching may continue after the queue was full."""
        most_bytes = self.rules.buffer_bytes // share
        return self.length <= self._most_records(share) // 2 and self.length_bytes <= most_bytes // 2

    def _most_records(self, share: int) -> int:
        most = self.rules.buffer_records
        return most if share == 1 else max(most // share, min(most, MIN_SHARE_RECORDS))

    # ---- calls of users

    def take(self, limit: int, *, now_ns: int) -> list[tuple[int, T, str]]:
        """Return offset, record and reason of the next deliveries: due ones, then new ones."""
        tracker, found = self.tracker, list[tuple[int, T, str]]()
        if tracker is None:
            return found
        rules = self.rules
        keep, due_ns = rules.keep_records, now_ns + rules.ack_timeout_ns
        if (  # one new record, as most calls of callers that take one take it
            limit == 1
            and self._fetched
            and keep
            and tracker.takes_next(offset := self._fetched[0][0], due_ns, most=rules.max_pending, now_ns=now_ns)
        ):
            record = self._kept[offset] = self._fetched.popleft()[1]
            self.length_bytes -= len(record)
            return [(offset, record, FIRST)]
        while keep and len(found) < limit and (again := tracker.redeliver(due_ns, now_ns=now_ns)) is not None:
            offset, reason = again
            found.append((offset, self._kept[offset], reason))
        found += self._take_new(tracker, limit - len(found), due_ns)
        while self._fetched and len(found) < limit and tracker.pending < self.rules.max_pending:
            offset, record = self._pop()
            first = tracker.deliver(offset, due_ns)
            if first is not None:
                found.append((offset, record, first))
                if keep:
                    self._kept[offset] = record
        self._pass_acked(tracker)
        return found

    def _take_new(self, tracker: AckTracker, limit: int, due_ns: int) -> list[tuple[int, T, str]]:
        """Return the next deliveries, all at once, if no fetched record was delivered or acked before."""
        count = min(limit, len(self._fetched), self.rules.max_pending - tracker.pending)
        if count <= 0 or not tracker.takes_new(self._fetched[0][0]):
            return []
        items = [self._fetched.popleft() for _ in range(count)]
        self.length_bytes -= sum([len(record) for _, record in items])
        tracker.deliver_new([offset for offset, _ in items], due_ns)
        if self.rules.keep_records:
            self._kept.update(items)
        return [(offset, record, FIRST) for offset, record in items]

    def ack_all(self, offsets: Sequence[int]) -> int:
        """Ack records; return how many were not acked before."""
        tracker = self.tracker
        if tracker is None or max(offsets) >= tracker.next_offset:
            return sum([self.ack(offset, delivered_only=False) for offset in offsets])
        if self._kept:
            for offset in offsets:
                self._kept.pop(offset, None)
        return tracker.ack_delivered(offsets)

    def ack(self, offset: int, *, delivered_only: bool) -> bool:
        """Ack a record; see `TopicQueue.ack`."""
        if self.tracker is None:
            fresh = not delivered_only and offset not in self._early and offset not in self._forgotten
            if fresh:
                self._early.add(offset)
            return fresh
        delivered = offset < self.tracker.next_offset
        if not delivered and (delivered_only or offset in self._forgotten):
            return False
        self._kept.pop(offset, None)
        changed = self.tracker.ack(offset)
        if not delivered:
            self._pass_acked(self.tracker)
        return changed

    def give_back(self, offset: int, *, now_ns: int) -> bool:
        """Make a record due at once; return False if it is not pending."""
        if self.tracker is None or not self.tracker.give_back(offset, now_ns=now_ns):
            return False
        self._given_back = not self.rules.keep_records
        return True

    def give_up(self, *, now_ns: int) -> list[int]:
        """Remove and return the records that are due after their last retry; they count as acked."""
        spent = self.tracker.give_up(self.rules.max_retries, now_ns=now_ns) if self.tracker is not None else []
        for offset in spent:
            self._kept.pop(offset, None)
        return spent

    def was_delivered(self, offset: int) -> bool:
        """Return whether a record was delivered by this process, or passed."""
        return offset in self._forgotten or (self.tracker is not None and offset < self.tracker.next_offset)

    # ---- commits

    def commit(self) -> Commit | None:
        """Return the position to commit, if Kafka does not have it; see `TopicQueue.commits`."""
        if not self.assigned or self.tracker is None:
            return None
        position = self._commit_of(self.tracker)
        if position == self._committed:
            return None
        self._sent = position
        return position

    def _commit_of(self, tracker: AckTracker) -> Commit:
        offset = tracker.lowest_unacked
        return offset, commit_metadata(offset, tracker.acked_above()) if self.rules.sparse else ""

    def committed(self, position: Commit) -> None:
        """Note a commit that Kafka has confirmed."""
        if self._sent == position:
            self._committed = position
            self._lowered = False
