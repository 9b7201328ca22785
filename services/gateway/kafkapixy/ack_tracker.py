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
from dataclasses import dataclass, field
from typing import Generic

from services.common.model.errors import Exhausted
from services.gateway.kafkapixy.pending_runs import NO_HOLDER, UNARY, Pending, Run, T, Unacked
from services.gateway.kafkapixy.sparse_acks import Range, commit_metadata


@dataclass(frozen=True, slots=True)
class AckRules:
    """When a record is offered again and how many unary callers may have; a partition's or a whole gateway's."""

    ack_timeout_ns: int
    max_retries: int = -1
    max_pending: int = 300


@dataclass(slots=True)
class AckResult:
    """What came of a caller's ack of a range of offsets.

    Attributes:
        count: Records acked now.
        elsewhere: Pending ones that other callers were given and this one was not.
        early: Never offered, so far; None if there are none.
    """

    count: int = 0
    elsewhere: list[Range] = field(default_factory=list)
    early: Range | None = None


class AckTracker(Generic[T]):
    """One partition, from its committed offset on.

    Args:
        acked: Ranges above ``offset`` that the last owner committed as acked, in order.
    """

    def __init__(self, offset: int, rules: AckRules, acked: Iterable[Range] = ()) -> None:
        self._rules = rules
        self._next = offset
        self._pending: Pending[T] = Pending()
        self._ahead = list(acked)
        # No pending record is due before this; saves walking through all of them at each offer.
        self._quiet_until_ns = 0

    @property
    def pending(self) -> int:
        """Records offered and not acked."""
        return self._pending.count

    @property
    def pending_offsets(self) -> list[int]:
        """Their offsets."""
        return [offset for run in self._pending for offset, _ in run.records]

    @property
    def full(self) -> bool:
        """Whether no new record may go to a unary caller."""
        return self._pending.held(UNARY).records >= self._rules.max_pending

    def held(self, caller: int) -> Unacked:
        """How much of the partition a caller has."""
        return self._pending.held(caller)

    @property
    def last_ack_deadline_ns(self) -> int:
        """When the last pending offer runs out, in ns of the caller's clock; 0 when none is pending."""
        return max((run.due_ns for run in self._pending), default=0)

    def last_ack_deadline_of(self, caller: int) -> int:
        """When the last offer that a caller has runs out, likewise."""
        return max((run.due_ns for run in self._pending if run.holder == caller), default=0)

    def offered(self, offset: int) -> bool:
        """Whether the record was offered by this tracker's owner or an earlier one, or is passed."""
        return offset < self._next

    # ---- offers

    def offer(self, records: list[tuple[int, T]], *, now_ns: int, caller: int = UNARY) -> Run[T] | None:
        """Hand out the next records of the log, in order.

        Returns:
            What to deliver, without those that are acked already or were offered before; None: nothing.
        """
        if self._ahead or (records and records[0][0] < self._next):
            records = [item for item in records if self._pass(item[0])]
        elif records:
            self._next = records[-1][0] + 1
        if not records:
            return None
        due_ns = now_ns + self._rules.ack_timeout_ns
        if not self._pending:
            self._quiet_until_ns = due_ns
        run = Run(records, due_ns, caller)
        self._pending.append(run)
        return run

    def _pass(self, offset: int) -> bool:
        """Move on behind an offset; whether its record is to be delivered."""
        if offset < self._next:
            return False
        self._next = offset + 1
        while self._ahead and self._ahead[0][1] <= offset:
            del self._ahead[0]
        if not self._ahead or self._ahead[0][0] > offset:
            return True
        if self._ahead[0][1] == offset + 1:
            del self._ahead[0]
        else:
            self._ahead[0] = (offset + 1, self._ahead[0][1])
        return False

    def give_up(self, *, now_ns: int) -> list[Run[T]]:
        """Take out the records whose retries are used up and that are due again; they count as acked."""
        if self._rules.max_retries < 0 or now_ns < self._quiet_until_ns:
            return []
        spent = [run for run in self._pending if run.due_ns <= now_ns and run.retries >= self._rules.max_retries]
        for run in spent:
            self._pending.remove(run)
        return spent

    def redeliver(self, most: int = 1, *, now_ns: int, caller: int = UNARY) -> Run[T] | None:
        """Hand out the lowest records that are due again, at most so many; their timeout starts anew.

        Returns:
            Neighbours that went out together before; None when none is due.
        """
        if now_ns < self._quiet_until_ns:
            return None
        due = next((run for run in self._pending if run.due_ns <= now_ns), None)
        if due is None:
            self._quiet_until_ns = min((run.due_ns for run in self._pending), default=0)
            return None
        run = self._pending.split(due, 0, min(most, len(due.records)))
        self._pending.hand(run, caller)
        run.again = "given_back" if run.given_back else "timeout"
        run.due_ns = now_ns + self._rules.ack_timeout_ns
        run.retries += 1
        run.given_back = False
        return run

    # ---- given back

    def give_back(self, first: int, last: int, *, now_ns: int, caller: int = UNARY, counts: bool = False) -> None:
        """A caller does not deal with what it has of these offsets, both included: they are due at once.

        Args:
            counts: Whether this offer counts as a retry; not if the caller went before it saw them.
        """
        for run in self._pending.within(first, last):
            begin, end = run.part(first, last)
            if run.holder == caller and begin < end:
                self._due_now(self._pending.split(run, begin, end), now_ns, counts=counts)

    def release(self, caller: int, *, now_ns: int) -> None:
        """The caller is gone: all it has is due at once, and these offers do not count. It will not ack any more."""
        for run in self._pending:
            if run.holder == caller:
                self._due_now(run, now_ns, counts=False)
            run.earlier -= {caller}

    def _due_now(self, run: Run[T], now_ns: int, *, counts: bool) -> None:
        self._pending.hand(run, NO_HOLDER)
        run.due_ns = now_ns
        run.given_back = True
        run.retries -= not counts
        self._quiet_until_ns = min(self._quiet_until_ns, now_ns)

    # ---- acks

    def ack(self, offset: int) -> bool:
        """Ack one record, whoever has it; one not offered yet will be skipped.

        Returns:
            False when it was acked before.
        Raises:
            Exhausted: Too many acks of records not offered.
        """
        if offset >= self._next:
            return self._ack_ahead(offset)
        if self._pending.remove_single(offset):
            return True
        return any(self._take_out(run, offset, offset) for run in self._pending.within(offset, offset))

    def ack_range(self, first: int, last: int, *, caller: int) -> AckResult:
        """Ack what a caller was given of these offsets, both included, also if others have it by now."""
        done = AckResult()
        if last >= self._next:
            done.early = (max(first, self._next), last + 1)
        for run in self._pending.within(first, last):
            if run.was_delivered_to(caller):
                done.count += self._take_out(run, first, last)
            else:
                begin, end = run.part(first, last)
                if begin < end:
                    _add_range(done.elsewhere, run.records[begin][0], run.records[end - 1][0] + 1)
        return done

    def _take_out(self, run: Run[T], first: int, last: int) -> int:
        begin, end = run.part(first, last)
        if begin < end:
            self._pending.remove(self._pending.split(run, begin, end))
        return end - begin

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

    # ---- what to commit

    @property
    def next_offset(self) -> int:
        """The first offset never offered."""
        return self._next

    @property
    def lowest_unacked(self) -> int:
        """What is to be committed; ``next_offset`` when nothing is pending."""
        lowest = self._pending.lowest
        return self._next if lowest is None else lowest

    def position(self) -> tuple[int, str]:
        """What to commit: the lowest unacked offset and the metadata with what is acked above it.

        Never beyond the last record that was offered, whatever was acked ahead: a commit past the log's end could not
        be told from one of an earlier topic of that name.
        """
        return self.lowest_unacked, commit_metadata(self.lowest_unacked, self.acked_above())

    def acked_above(self) -> list[Range]:
        """Acked ranges above ``lowest_unacked``, in order."""
        ranges: list[Range] = []
        edge = self.lowest_unacked
        for run in self._pending:
            without_holes = run.last - run.first == len(run.records) - 1
            for offset in (run.first,) if without_holes else (offset for offset, _ in run.records):
                if offset > edge:
                    ranges.append((edge, offset))
                edge = offset + 1
            edge = run.last + 1
        if edge < self._next:
            ranges.append((edge, self._next))
        for start, end in self._ahead:
            _add_range(ranges, start, end)
        return ranges


def _add_range(ranges: list[Range], start: int, end: int) -> None:
    """Add a range behind the others; it may continue the last one."""
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))
