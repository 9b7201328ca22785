"""States of one partition's records between delivery and commit. Pure: no I/O, no clock.

    state        meaning                   event                                              next state
    -----------  ------------------------  -------------------------------------------------  -----------
    new          never delivered           `deliver`                                          in flight
                                           `ack`                                              acked early
    acked early  acked before delivery     `deliver`, which leaves it out                     acked
    in flight    a caller has it           `ack`                                              acked
                                           its ack timeout ends                               due
                                           `give_back`                                        due
    due          to be delivered again     `redeliver`; `deliver` where it is read again      in flight
                                           `give_up`, after the last retry                    acked
                                           `ack`, late                                        acked
                                           `read_again`, and the log has it no more           acked
    acked        done, or not in Kafka     every offset below is acked                        committed

Records in flight and due are together called pending; they differ only by ``due_ns``. Offsets without a record
(compaction, transaction markers) count as acked. In the order of offsets::

    committed | lowest unacked ... pending or acked | next ... new or acked early
              ^ committed offset                    ^ first offset never delivered

Acked ranges above the committed offset can go into the commit's metadata (`commits`), so that a restart does not
deliver them again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dexorder_common.kafka.commits import Range
from dexorder_common.model.errors import Exhausted

NEVER_NS = 1 << 63
"""Later than every moment."""
FIRST, TIMEOUT, GIVEN_BACK = "", "timeout", "given_back"
"""Reasons of a delivery."""


@dataclass(slots=True)
class _Pending:
    due_ns: int
    retries: int = 0
    given_back: bool = False


class AckTracker:
    """One partition, from its committed offset on; ``acked`` are ranges above it that were acked already, in order.

    Attributes:
        lost: Records that were to be delivered again but are no longer in the log.
    """

    def __init__(self, offset: int, acked: Iterable[Range] = (), *, max_early: int = 300) -> None:
        self._next = offset
        self._pending: dict[int, _Pending] = {}  # in the order of offsets
        self._early = list(acked)
        self._max_early = max_early
        self._reading_again: deque[int] = deque()
        # No pending record is due before this; saves a scan of all of them at each delivery.
        self._next_due_ns = NEVER_NS
        self.lost = 0

    @property
    def next_offset(self) -> int:
        """The first offset never delivered."""
        return self._next

    @property
    def pending(self) -> int:
        """Records delivered and not acked."""
        return len(self._pending)

    @property
    def pending_offsets(self) -> list[int]:
        """Their offsets."""
        return list(self._pending)

    @property
    def lowest_unacked(self) -> int:
        """The offset to commit; ``next_offset`` without pending records."""
        return next(iter(self._pending), self._next)

    def last_ack_deadline_ns(self) -> int:
        """Return the latest end of an ack timeout; 0 without pending records."""
        return max((each.due_ns for each in self._pending.values()), default=0)

    @property
    def in_flight(self) -> int:
        """Records that callers have."""
        return sum(not each.given_back for each in self._pending.values())

    def deliver(self, offset: int, due_ns: int) -> str | None:
        """Put a record just read in flight; return the reason of its delivery, None if it is not to be delivered."""
        while self._reading_again and self._reading_again[0] < offset:
            self._lose(self._reading_again.popleft())
        if offset < self._next:
            found = self._pending.get(offset)
            return self._deliver_again(found, due_ns) if found is not None and found.given_back else None
        self._next = offset + 1
        while self._early and self._early[0][1] <= offset:
            del self._early[0]
        if self._early and self._early[0][0] <= offset:
            end = self._early[0][1]
            self._early[:1] = [(self._next, end)] if end > self._next else []
            return None
        self._pending[offset] = _Pending(due_ns)
        self._next_due_ns = min(self._next_due_ns, due_ns)
        return FIRST

    def takes_next(self, offset: int, due_ns: int, *, most: int, now_ns: int) -> bool:
        """Put a record just read in flight if it is the next delivery: it is new, none is due, and none acked early.

        Args:
            most: Number of pending records from which on it is not delivered.
        """
        if now_ns >= self._next_due_ns or len(self._pending) >= most or not self.takes_new(offset):
            return False
        self._next = offset + 1
        self._pending[offset] = _Pending(due_ns)
        if due_ns < self._next_due_ns:
            self._next_due_ns = due_ns
        return True

    def takes_new(self, offset: int) -> bool:
        """Return whether records from this offset on are all new, so that `deliver_new` may take them."""
        return offset >= self._next and not self._early and not self._reading_again

    def deliver_new(self, offsets: Sequence[int], due_ns: int) -> None:
        """Put new records in flight, in ascending order; see `takes_new`."""
        self._next = offsets[-1] + 1
        self._pending.update(zip(offsets, [_Pending(due_ns) for _ in offsets], strict=True))
        self._next_due_ns = min(self._next_due_ns, due_ns)

    def acked_next(self, offset: int) -> bool:
        """Return whether a record that was never delivered was acked already."""
        index = bisect_left(self._early, (offset + 1,))
        return index > 0 and offset < self._early[index - 1][1]

    def redeliver(self, due_ns: int, *, now_ns: int) -> tuple[int, str] | None:
        """Put the lowest due record in flight again; return its offset and the reason."""
        if now_ns < self._next_due_ns:
            return None
        for offset, each in self._pending.items():
            if each.due_ns <= now_ns:
                return offset, self._deliver_again(each, due_ns)
        self._next_due_ns = min((each.due_ns for each in self._pending.values()), default=NEVER_NS)
        return None

    def _deliver_again(self, found: _Pending, due_ns: int) -> str:
        reason = GIVEN_BACK if found.given_back else TIMEOUT
        found.due_ns = due_ns
        found.retries += not found.given_back
        found.given_back = False
        self._next_due_ns = min(self._next_due_ns, due_ns)
        return reason

    def read_again(self) -> int | None:
        """Note that the log is read again from the first record given back, which is returned, if any.

        A record given back that does not come is lost.
        """
        self._reading_again = deque(offset for offset, each in self._pending.items() if each.given_back)
        return self._reading_again[0] if self._reading_again else None

    def _lose(self, offset: int) -> None:
        if (found := self._pending.get(offset)) is not None and found.given_back:
            del self._pending[offset]
            self.lost += 1

    def give_up(self, max_retries: int, *, now_ns: int) -> list[int]:
        """Remove and return the records that are due after their last retry; they count as acked."""
        if max_retries < 0 or now_ns < self._next_due_ns:
            return []
        due = [(offset, each) for offset, each in self._pending.items() if each.due_ns <= now_ns]
        spent = [offset for offset, each in due if each.retries >= max_retries and not each.given_back]
        for offset in spent:
            del self._pending[offset]
        return spent

    def give_back(self, offset: int, *, now_ns: int) -> bool:
        """Make a record in flight due at once, without a retry; return False if it is not in flight."""
        found = self._pending.get(offset)
        if found is None or found.given_back:
            return False
        found.due_ns = now_ns
        found.given_back = True
        self._next_due_ns = min(self._next_due_ns, now_ns)
        return True

    def ack(self, offset: int) -> bool:
        """Ack one record, no matter which caller has it; return False if it was acked before.

        One that was not delivered yet will be skipped; raise Exhausted if too many of these are kept.
        """
        if offset >= self._next:
            return self._ack_early(offset)
        return self._pending.pop(offset, None) is not None

    def ack_delivered(self, offsets: Iterable[int]) -> int:
        """Ack records below `next_offset`; return how many were not acked before."""
        pop = self._pending.pop
        return sum([pop(offset, None) is not None for offset in offsets])

    def _ack_early(self, offset: int) -> bool:
        ranges = self._early
        index = bisect_left(ranges, (offset + 1,))
        before = ranges[index - 1] if index else None
        if before and offset < before[1]:
            return False
        after = ranges[index] if index < len(ranges) else None
        start, end, first, last = offset, offset + 1, index, index
        if before and before[1] == offset:
            start, first = before[0], index - 1
        if after and after[0] == offset + 1:
            end, last = after[1], index + 1
        if first == last and len(ranges) >= self._max_early:
            raise Exhausted(f"offset {offset} was not delivered yet, and {len(ranges)} such acks are kept already")
        ranges[first:last] = [(start, end)]
        return True

    def forget_pending(self) -> None:
        """Make every pending record new again: the next deliveries start at the lowest unacked offset."""
        self._early, self._next = self.acked_above(), self.lowest_unacked
        self._pending.clear()
        self._reading_again.clear()
        self._next_due_ns = NEVER_NS

    def join(self, offset: int, acked: Iterable[Range]) -> None:
        """Add the acks of a commit that is not before ours: everything below ``offset``, and the ranges."""
        for known in [known for known in self._pending if known < offset]:
            del self._pending[known]
        self._next = max(self._next, offset)
        ranges = sorted([*self._early, *acked])
        self._early = []
        for start, end in ranges:
            for known in [known for known in self._pending if start <= known < end]:
                del self._pending[known]
            if end > self._next:
                _add_range(self._early, max(start, self._next), end)

    def cut(self, end: int) -> None:
        """Forget acks of records at or beyond the log's end: they would be of records that do not exist yet."""
        self._early = [(start, min(stop, end)) for start, stop in self._early if start < end]

    def acked_above(self) -> list[Range]:
        """Return the acked ranges above ``lowest_unacked``, in order."""
        ranges: list[Range] = []
        edge = self.lowest_unacked
        for offset in self._pending:
            if offset > edge:
                ranges.append((edge, offset))
            edge = offset + 1
        if edge < self._next:
            ranges.append((edge, self._next))
        for start, end in self._early:
            _add_range(ranges, start, end)
        return ranges

    def unacked(self, end: int) -> int:
        """Return how many offsets before the log's end are not acked."""
        early = sum(min(stop, end) - start for start, stop in self._early if start < end)
        return len(self._pending) + max(0, end - self._next) - early


def _add_range(ranges: list[Range], start: int, end: int) -> None:
    """Add a range that starts not before the others; it may continue or overlap the last one."""
    if ranges and ranges[-1][1] >= start:
        ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
    else:
        ranges.append((start, end))
