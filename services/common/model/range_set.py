"""A set of times kept as merged ranges, changed in place, which says what each change did to it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.common.model.market import TimeRange, subtract


@dataclass(frozen=True, slots=True)
class Diff:
    """What a change did to the merged ranges, so that a store can follow; both empty when it did nothing."""

    removed: tuple[TimeRange, ...] = ()
    added: tuple[TimeRange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


class RangeSet:
    """Sorted ranges that neither overlap nor touch."""

    def __init__(self, ranges: Iterable[TimeRange] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for part in ranges:
            self.add(part)

    def __iter__(self) -> Iterator[TimeRange]:
        return (TimeRange(start, end) for start, end in zip(self._starts, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, part: TimeRange) -> Diff:
        """Join ``part`` with what it overlaps or touches."""
        low, high = bisect_left(self._ends, part.start_ns), bisect_right(self._starts, part.end_ns)
        if not part or (high - low == 1 and self._starts[low] <= part.start_ns and part.end_ns <= self._ends[low]):
            return Diff()
        removed = self._slice(low, high)
        start_ns = min(part.start_ns, removed[0].start_ns) if removed else part.start_ns
        end_ns = max(part.end_ns, removed[-1].end_ns) if removed else part.end_ns
        return self._replace(low, high, removed, (TimeRange(start_ns, end_ns),))

    def remove(self, part: TimeRange) -> Diff:
        """Take ``part`` out."""
        low, high = bisect_right(self._ends, part.start_ns), bisect_left(self._starts, part.end_ns)
        if not part or low >= high:
            return Diff()
        removed = self._slice(low, high)
        return self._replace(low, high, removed, tuple(subtract(removed, [part])))

    def within(self, span: TimeRange) -> list[TimeRange]:
        """The part of the set inside ``span``."""
        low, high = bisect_right(self._ends, span.start_ns), bisect_left(self._starts, span.end_ns)
        return [common for part in self._slice(low, high) if (common := part.intersect(span))]

    def holes(self, span: TimeRange) -> list[TimeRange]:
        """The part of ``span`` outside the set."""
        return subtract([span], self.within(span))

    def _slice(self, low: int, high: int) -> tuple[TimeRange, ...]:
        return tuple(TimeRange(self._starts[i], self._ends[i]) for i in range(low, high))

    def _replace(self, low: int, high: int, old: tuple[TimeRange, ...], new: tuple[TimeRange, ...]) -> Diff:
        self._starts[low:high] = [part.start_ns for part in new]
        self._ends[low:high] = [part.end_ns for part in new]
        return Diff(old, new)
