"""Records of one partition that were delivered and are not acked, in runs. Pure.

Records that were delivered together are one run until an ack or another caller takes a part out of it: a thousand
records that come and go in batches cost a few list operations, not a thousand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T", bound=Sized)
UNARY = 0
"""The caller that stands for all unary calls; streams have numbers from 1."""
NO_HOLDER = -1
"""Holder of the runs that were given back."""
_offset: Callable[[tuple[int, Sized]], int] = itemgetter(0)


@dataclass(slots=True)
class Run(Generic[T]):
    """Adjacent records with the same state; offsets between them are acked or do not exist in Kafka.

    Attributes:
        records: Offset and record, in order; at least one.
        due_ns: When they are delivered again.
        holder: The caller that has them.
        earlier_holders: Callers that had them before; their acks count as well.
        retries: Deliveries after the first; one whose caller went away before it saw the records does not count.
        given_back: The last caller gave them back.
        redelivery: Reason of the last delivery: ``timeout`` or ``given_back``; empty for the first delivery.
    """

    records: list[tuple[int, T]]
    due_ns: int
    holder: int
    earlier_holders: frozenset[int] = frozenset()
    retries: int = 0
    given_back: bool = False
    redelivery: str = ""

    @property
    def first(self) -> int:
        """Lowest offset."""
        return self.records[0][0]

    @property
    def last(self) -> int:
        """Highest offset."""
        return self.records[-1][0]

    def was_delivered_to(self, caller: int) -> bool:
        """Return whether the caller has or had them."""
        return caller == self.holder or caller in self.earlier_holders

    def part(self, first: int, last: int) -> tuple[int, int]:
        """Return the half open range of indexes of the records with offsets from first to last."""
        if first <= self.first and self.last <= last:
            return 0, len(self.records)
        return bisect_left(self.records, first, key=_offset), bisect_right(self.records, last, key=_offset)


@dataclass(slots=True)
class Amount:
    """Number of records, and their bytes."""

    records: int = 0
    bytes: int = 0


class PendingRuns(Generic[T]):
    """Runs in the order of their offsets; iterates over them.

    Attributes:
        count: Records in all of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[Run[T]] = []
        self._firsts: list[int] = []  # of the runs, for bisect
        self._unacked: dict[int, Amount] = {}

    def __iter__(self) -> Iterator[Run[T]]:
        return iter(self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def lowest(self) -> int | None:
        """The lowest offset; None if there is none."""
        return self._firsts[0] if self._firsts else None

    def unacked_of(self, caller: int) -> Amount:
        """Return the amount that a caller has; not to be changed."""
        return self._unacked.get(caller) or Amount()

    def within(self, first: int, last: int) -> list[Run[T]]:
        """Return the runs with a record, or a gap between records, from first to last."""
        begin = max(bisect_right(self._firsts, first) - 1, 0)
        runs = self._runs[begin : bisect_right(self._firsts, last)]
        return runs[1:] if runs and runs[0].last < first else runs

    def append(self, run: Run[T]) -> None:
        """Add a run behind all others."""
        self._runs.append(run)
        self._firsts.append(run.first)
        self.count += len(run.records)
        self._count(run, 1)

    def remove_single(self, offset: int) -> bool:
        """Remove the run that is this record alone, as unary calls make them; return whether there was one."""
        index = bisect_left(self._firsts, offset)
        if index == len(self._firsts) or self._firsts[index] != offset or len(self._runs[index].records) > 1:
            return False
        self._remove_at(index)
        return True

    def remove(self, run: Run[T]) -> None:
        """Remove a run."""
        self._remove_at(bisect_left(self._firsts, run.first))

    def _remove_at(self, index: int) -> None:
        run = self._runs[index]
        del self._runs[index], self._firsts[index]
        self.count -= len(run.records)
        self._count(run, -1)

    def reassign(self, run: Run[T], holder: int) -> None:
        """Give a run to another caller, or to the same one again."""
        self._count(run, -1)
        if run.holder != NO_HOLDER and holder != run.holder:
            run.earlier_holders |= {run.holder}
        run.holder = holder
        self._count(run, 1)

    def split(self, run: Run[T], begin: int, end: int) -> Run[T]:
        """Make the records ``[begin, end)`` of a run a run of their own; return it, or the run if that is all of it.

        Lists of records are replaced, never changed: they may be on their way to a caller.
        """
        if end < len(run.records):
            self._insert_behind(run, replace(run, records=run.records[end:]))
            run.records = run.records[:end]
        if begin == 0:
            return run
        part = replace(run, records=run.records[begin:])
        self._insert_behind(run, part)
        run.records = run.records[:begin]
        return part

    def _insert_behind(self, run: Run[T], rest: Run[T]) -> None:
        index = bisect_left(self._firsts, run.first) + 1
        self._runs.insert(index, rest)
        self._firsts.insert(index, rest.first)

    def _count(self, run: Run[T], sign: int) -> None:
        unacked = self._unacked.get(run.holder)
        if unacked is None:
            unacked = self._unacked[run.holder] = Amount()
        records = run.records
        unacked.records += sign * len(records)
        # A unary call's run is one record: as cheap as possible.
        size = len(records[0][1]) if len(records) == 1 else sum([len(record) for _, record in records])
        unacked.bytes += sign * size
        if not unacked.records and run.holder > UNARY:  # streams come and go
            del self._unacked[run.holder]
