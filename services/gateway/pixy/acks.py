"""Which records of one partition are offered, acked and due again. Pure: no I/O, no clock.

A partition's offsets fall into three parts::

    ... acked | lowest unacked ... offered: acked or pending | next ... not offered yet, some acked ahead
              ^ committed offset                             ^ first offset never offered

Records arrive in offset order, with holes where Kafka has none (compaction, transaction markers); a hole counts as
acked. What is acked above the committed offset goes into the commit's metadata, so it is not delivered again after a
restart. See ``sparse_acks`` for how it is written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.common.errors import Exhausted
from services.gateway.pixy.sparse_acks import Range, commit_metadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AckRules:
    """When a record is offered again and how many may be pending; a partition's or a whole gateway's."""

    ack_timeout_ns: int
    max_retries: int = -1
    max_pending: int = 300


@dataclass(slots=True)
class Offer(Generic[T]):
    """A record somebody has and nobody acked.

    Attributes:
        due_ns: When it is offered again.
        retries: Offers after the first; one that was given back does not count.
        given_back: The last caller it went to is gone.
    """

    offset: int
    record: T
    due_ns: int
    retries: int = 0
    given_back: bool = False


class AckTracker(Generic[T]):
    """One partition, from its committed offset on.

    Args:
        acked: Ranges above ``offset`` that the last owner committed as acked, in order.
    """

    def __init__(self, offset: int, rules: AckRules, acked: Iterable[Range] = ()) -> None:
        self._rules = rules
        self._next = offset
        # Offered in offset order, so the first key is the lowest unacked offset.
        self._pending: dict[int, Offer[T]] = {}
        self._ahead = list(acked)
        # No pending record is due before this; saves walking through all of them at each offer.
        self._quiet_until_ns = 0

    @property
    def pending(self) -> int:
        """Records offered and not acked."""
        return len(self._pending)

    @property
    def pending_offsets(self) -> list[int]:
        """Their offsets."""
        return list(self._pending)

    @property
    def full(self) -> bool:
        """Whether no new record may be offered."""
        return len(self._pending) >= self._rules.max_pending

    @property
    def waits_for_ack(self) -> int:
        """When the last pending offer runs out, in ns of the caller's clock; 0 when none is pending."""
        return max((offer.due_ns for offer in self._pending.values()), default=0)

    def offered(self, offset: int) -> bool:
        """Whether the record was offered by this tracker's owner or an earlier one, or is passed."""
        return offset < self._next

    def offer(self, offset: int, record: T, *, now_ns: int) -> bool:
        """Hand out the next record of the log.

        Returns:
            False when it is acked already (or was offered before): do not deliver it, go on with the next.
        """
        if offset < self._next:
            return False
        self._next = offset + 1
        while self._ahead and self._ahead[0][1] <= offset:
            del self._ahead[0]
        if self._ahead and self._ahead[0][0] <= offset:
            if self._ahead[0][1] == offset + 1:
                del self._ahead[0]
            else:
                self._ahead[0] = (offset + 1, self._ahead[0][1])
            return False
        due_ns = now_ns + self._rules.ack_timeout_ns
        if not self._pending:
            self._quiet_until_ns = due_ns
        self._pending[offset] = Offer(offset, record, due_ns)
        return True

    def give_up(self, *, now_ns: int) -> list[Offer[T]]:
        """Take out the records whose retries are used up and that are due again; they count as acked."""
        if self._rules.max_retries < 0 or now_ns < self._quiet_until_ns:
            return []
        spent = [o for o in self._pending.values() if o.due_ns <= now_ns and o.retries >= self._rules.max_retries]
        for offer in spent:
            del self._pending[offer.offset]
        return spent

    def redeliver(self, *, now_ns: int) -> Offer[T] | None:
        """The lowest record that is due again; ``redelivered`` starts its timeout anew. None when none is due."""
        if now_ns < self._quiet_until_ns:
            return None
        for offer in self._pending.values():
            if offer.due_ns <= now_ns:
                return offer
        self._quiet_until_ns = min((o.due_ns for o in self._pending.values()), default=0)
        return None

    def redelivered(self, offer: Offer[T], *, now_ns: int) -> None:
        """It went out again."""
        offer.due_ns = now_ns + self._rules.ack_timeout_ns
        offer.retries += 1
        offer.given_back = False

    def give_back(self, offset: int, *, now_ns: int) -> None:
        """The caller the record went to is gone: it is due at once, and this offer does not count."""
        offer = self._pending.get(offset)
        if offer is not None:
            offer.due_ns, offer.retries, offer.given_back = now_ns, offer.retries - 1, True
            self._quiet_until_ns = min(self._quiet_until_ns, now_ns)

    def ack(self, offset: int) -> bool:
        """Ack one record; one not offered yet will be skipped.

        Returns:
            False when it was acked before.
        Raises:
            Exhausted: Too many acks of records not offered.
        """
        if offset < self._next:
            return self._pending.pop(offset, None) is not None
        return self._ack_ahead(offset)

    def _ack_ahead(self, offset: int) -> bool:
        index = bisect_left(self._ahead, (offset + 1, offset + 1))
        before = self._ahead[index - 1] if index else None
        if before and offset < before[1]:
            return False
        after = self._ahead[index] if index < len(self._ahead) else None
        start, end, first, last = offset, offset + 1, index, index
        if before and before[1] == offset:
            start, first = before[0], index - 1
        if after and after[0] == offset + 1:
            end, last = after[1], index + 1
        if first == last and len(self._ahead) >= self._rules.max_pending:
            raise Exhausted(f"offset {offset} was not offered, and {len(self._ahead)} such acks are kept already")
        self._ahead[first:last] = [(start, end)]
        return True

    @property
    def next_offset(self) -> int:
        """The first offset never offered."""
        return self._next

    @property
    def lowest_unacked(self) -> int:
        """What is to be committed; ``next_offset`` when nothing is pending."""
        return next(iter(self._pending), self._next)

    def position(self) -> tuple[int, str]:
        """What to commit: the lowest unacked offset and the metadata with what is acked above it.

        Never beyond the last record that was offered, whatever was acked ahead: a commit past the log's end could not
        be told from one of an earlier topic of that name.
        """
        lowest = self.lowest_unacked
        return lowest, commit_metadata(lowest, self._acked_above(lowest))

    def _acked_above(self, lowest: int) -> list[Range]:
        ranges, edge = [], lowest
        for offset in self._pending:
            if offset > edge:
                ranges.append((edge, offset))
            edge = offset + 1
        if edge < self._next:
            ranges.append((edge, self._next))
        for start, end in self._ahead:
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return ranges
