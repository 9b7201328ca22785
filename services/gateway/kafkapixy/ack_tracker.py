"""States of one partition's records between delivery and commit. Pure: no I/O, no clock.

    state        meaning                   event                                              next state
    -----------  ------------------------  -------------------------------------------------  -----------
    new          never delivered           `deliver`                                          in flight
                                           `ack`                                              acked early
    acked early  acked before delivery     `deliver`, which leaves it out                     acked
    in flight    a caller has it           `ack`, `ack_range`                                 acked
                                           its ack timeout ends                               due
                                           `give_back`; `release` of its caller               due
    due          to be delivered again     `redeliver`, which counts a retry                  in flight
                                           `give_up`, after `max_retries`                     acked
                                           `ack`; `ack_range` of a caller that had it         acked
    acked        done, or not in Kafka     every offset below is acked, and `position` sent   committed

Records in flight and due are together called pending; they differ only by ``due_ns``. Offsets without a record
(compaction, transaction markers) count as acked. In the order of offsets::

    committed | lowest unacked ... pending or acked | next ... new or acked early
              ^ committed offset                    ^ first offset never delivered

Acked ranges above the committed offset go into the commit's metadata (`commits`), so that a restart does not deliver
them again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic

from services.common.model.errors import Exhausted
from services.gateway.kafkapixy.commits import Commit, Range, commit_metadata
from services.gateway.kafkapixy.pending_runs import NO_HOLDER, UNARY, Amount, PendingRuns, Run, T


@dataclass(frozen=True, slots=True)
class AckRules:
    """Limits of deliveries: the ack timeout, retries, and unacked records of a partition at unary callers."""

    ack_timeout_ns: int
    max_retries: int = -1
    max_pending: int = 300


@dataclass(slots=True)
class AckResult:
    """Outcome of a caller's ack of a range of offsets.

    Attributes:
        count: Records acked now.
        held_by_others: Pending records that were delivered to other callers and not to this one.
        undelivered: Offsets not delivered so far; None if there are none.
    """

    count: int = 0
    held_by_others: list[Range] = field(default_factory=list)
    undelivered: Range | None = None


class AckTracker(Generic[T]):
    """One partition, from its committed offset on; ``acked`` are ranges above it that were acked already, in order."""

    def __init__(self, offset: int, rules: AckRules, acked: Iterable[Range] = ()) -> None:
        self._rules = rules
        self._next = offset
        self._pending: PendingRuns[T] = PendingRuns()
        self._acked_early = list(acked)
        # No pending record is due before this; saves a scan of all of them at each delivery.
        self._next_due_ns = 0

    @property
    def pending(self) -> int:
        """Records delivered and not acked."""
        return self._pending.count

    @property
    def pending_offsets(self) -> list[int]:
        """Their offsets."""
        return [offset for run in self._pending for offset, _ in run.records]

    @property
    def full(self) -> bool:
        """True if unary callers may get no new record."""
        return self._pending.unacked_of(UNARY).records >= self._rules.max_pending

    def unacked_of(self, caller: int) -> Amount:
        """Return how much of the partition a caller has."""
        return self._pending.unacked_of(caller)

    def last_ack_deadline_ns(self, caller: int | None = None) -> int:
        """Return the latest end of an ack timeout, of one caller or all; 0 if nothing is pending."""
        return max((run.due_ns for run in self._pending if caller in (None, run.holder)), default=0)

    def was_delivered(self, offset: int) -> bool:
        """Return whether the record was delivered by this tracker's owner or an earlier one, or was passed."""
        return offset < self._next

    def deliver(self, records: list[tuple[int, T]], *, now_ns: int, caller: int = UNARY) -> Run[T] | None:
        """Put the next records of the log in flight; return those neither acked early nor delivered before, if any."""
        if self._acked_early or (records and records[0][0] < self._next):
            records = [item for item in records if self._pass(item[0])]
        elif records:
            self._next = records[-1][0] + 1
        if not records:
            return None
        due_ns = now_ns + self._rules.ack_timeout_ns
        if not self._pending:
            self._next_due_ns = due_ns
        run = Run(records, due_ns, caller)
        self._pending.append(run)
        return run

    def _pass(self, offset: int) -> bool:
        """Move on behind an offset; return whether its record is to be delivered."""
        if offset < self._next:
            return False
        self._next = offset + 1
        while self._acked_early and self._acked_early[0][1] <= offset:
            del self._acked_early[0]
        if not self._acked_early or self._acked_early[0][0] > offset:
            return True
        if self._acked_early[0][1] == offset + 1:
            del self._acked_early[0]
        else:
            self._acked_early[0] = (offset + 1, self._acked_early[0][1])
        return False

    def give_up(self, *, now_ns: int) -> list[Run[T]]:
        """Remove and return the records that are due after their last retry; they count as acked."""
        if self._rules.max_retries < 0 or now_ns < self._next_due_ns:
            return []
        spent = [run for run in self._pending if run.due_ns <= now_ns and run.retries >= self._rules.max_retries]
        for run in spent:
            self._pending.remove(run)
        return spent

    def redeliver(self, limit: int = 1, *, now_ns: int, caller: int = UNARY) -> Run[T] | None:
        """Put the lowest due records in flight again; return at most ``limit`` that were delivered together, if any."""
        if now_ns < self._next_due_ns:
            return None
        due = next((run for run in self._pending if run.due_ns <= now_ns), None)
        if due is None:
            self._next_due_ns = min((run.due_ns for run in self._pending), default=0)
            return None
        run = self._pending.split(due, 0, min(limit, len(due.records)))
        self._pending.reassign(run, caller)
        run.redelivery = "given_back" if run.given_back else "timeout"
        run.due_ns = now_ns + self._rules.ack_timeout_ns
        run.retries += 1
        run.given_back = False
        return run

    def give_back(
        self, first: int, last: int, *, now_ns: int, caller: int = UNARY, counts_as_retry: bool = False
    ) -> None:
        """Make the records of a caller due at once, of the offsets from first to last, both included.

        Args:
            counts_as_retry: False if the caller went away before it saw the records.
        """
        for run in self._pending.within(first, last):
            begin, end = run.part(first, last)
            if run.holder == caller and begin < end:
                self._make_due(self._pending.split(run, begin, end), now_ns, counts_as_retry=counts_as_retry)

    def release(self, caller: int, *, now_ns: int) -> None:
        """Make all records of a caller that went away due at once, without a retry. Its acks no longer count."""
        for run in self._pending:
            if run.holder == caller:
                self._make_due(run, now_ns, counts_as_retry=False)
            run.earlier_holders -= {caller}

    def _make_due(self, run: Run[T], now_ns: int, *, counts_as_retry: bool) -> None:
        self._pending.reassign(run, NO_HOLDER)
        run.due_ns = now_ns
        run.given_back = True
        run.retries -= not counts_as_retry
        self._next_due_ns = min(self._next_due_ns, now_ns)

    def ack(self, offset: int) -> bool:
        """Ack one record, whoever has it; return False if it was acked before.

        One that was not delivered yet will be skipped; raise Exhausted if too many of these are kept.
        """
        if offset >= self._next:
            return self._ack_early(offset)
        if self._pending.remove_single(offset):
            return True
        return any(self._remove(run, offset, offset) for run in self._pending.within(offset, offset))

    def ack_range(self, first: int, last: int, *, caller: int) -> AckResult:
        """Ack the offsets, both included, that a caller was given, even if others have them by now."""
        done = AckResult()
        if last >= self._next:
            done.undelivered = (max(first, self._next), last + 1)
        for run in self._pending.within(first, last):
            if run.was_delivered_to(caller):
                done.count += self._remove(run, first, last)
            else:
                begin, end = run.part(first, last)
                if begin < end:
                    _add_range(done.held_by_others, run.records[begin][0], run.records[end - 1][0] + 1)
        return done

    def _remove(self, run: Run[T], first: int, last: int) -> int:
        begin, end = run.part(first, last)
        if begin < end:
            self._pending.remove(self._pending.split(run, begin, end))
        return end - begin

    def _ack_early(self, offset: int) -> bool:
        ranges = self._acked_early
        index = bisect_left(ranges, (offset + 1, offset + 1))
        before = ranges[index - 1] if index else None
        if before and offset < before[1]:
            return False
        after = ranges[index] if index < len(ranges) else None
        start, end, first, last = offset, offset + 1, index, index
        if before and before[1] == offset:
            start, first = before[0], index - 1
        if after and after[0] == offset + 1:
            end, last = after[1], index + 1
        if first == last and len(ranges) >= self._rules.max_pending:
            raise Exhausted(f"offset {offset} was not delivered yet, and {len(ranges)} such acks are kept already")
        ranges[first:last] = [(start, end)]
        return True

    @property
    def next_offset(self) -> int:
        """The first offset never delivered."""
        return self._next

    @property
    def lowest_unacked(self) -> int:
        """The offset to commit; ``next_offset`` if nothing is pending."""
        lowest = self._pending.lowest
        return self._next if lowest is None else lowest

    def position(self) -> Commit:
        """Return the commit: the lowest unacked offset, and the acked ranges above it as metadata.

        Never beyond the last record that was delivered, whatever was acked early: a commit beyond the log's end could
        not be told from a commit in an earlier topic of that name.
        """
        return self.lowest_unacked, commit_metadata(self.lowest_unacked, self.acked_above())

    def acked_above(self) -> list[Range]:
        """Return the acked ranges above ``lowest_unacked``, in order."""
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
        for start, end in self._acked_early:
            _add_range(ranges, start, end)
        return ranges


def _add_range(ranges: list[Range], start: int, end: int) -> None:
    """Add a range behind the others; it may continue the last one."""
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))
