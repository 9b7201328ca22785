"""Half-open ranges of time and sets of them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.times import MAX_TIME_NS, iso

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class TimeRange:
    """Half-open range ``[start_ns, end_ns)`` in nanoseconds since the epoch; never reversed, may be empty."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_ns <= self.end_ns <= MAX_TIME_NS:
            raise InvalidRequest(f"range [{self.start_ns}, {self.end_ns}) is reversed or outside [0, {MAX_TIME_NS}]")

    def __bool__(self) -> bool:
        return self.start_ns < self.end_ns

    def intersect(self, other: TimeRange) -> TimeRange | None:
        """Return the common part; None for disjoint ranges."""
        start, end = max(self.start_ns, other.start_ns), min(self.end_ns, other.end_ns)
        return TimeRange(start, end) if start < end else None

    def overlaps(self, other: TimeRange) -> bool:
        """Return whether the ranges have a common part."""
        return max(self.start_ns, other.start_ns) < min(self.end_ns, other.end_ns)

    def contains(self, other: TimeRange) -> bool:
        """Return whether ``other`` lies entirely inside this range."""
        return self.start_ns <= other.start_ns and other.end_ns <= self.end_ns

    def __str__(self) -> str:
        return f"[{iso(self.start_ns)}, {iso(self.end_ns)})"


def merge(ranges: Iterable[TimeRange]) -> list[TimeRange]:
    """Return the same points as sorted ranges that neither overlap nor touch."""
    merged: list[TimeRange] = []
    for part in sorted(r for r in ranges if r):
        if merged and part.start_ns <= merged[-1].end_ns:
            merged[-1] = TimeRange(merged[-1].start_ns, max(merged[-1].end_ns, part.end_ns))
        else:
            merged.append(part)
    return merged


def joined(items: Iterable[T], join: Callable[[T, T], T | None]) -> list[T]:
    """Return the items in their order, each joined to the one before where ``join`` returns both as one."""
    found: list[T] = []
    for item in items:
        both = join(found[-1], item) if found else None
        if both is None:
            found.append(item)
        else:
            found[-1] = both
    return found


def subtract(ranges: Iterable[TimeRange], taken: Iterable[TimeRange]) -> list[TimeRange]:
    """Return the points of ``ranges`` that are in no range of ``taken``, merged."""
    return list(_subtract(merge(ranges), merge(taken)))


def _subtract(left: list[TimeRange], right: list[TimeRange]) -> Iterator[TimeRange]:
    first = 0
    for part in left:
        start_ns = part.start_ns
        while first < len(right) and right[first].end_ns <= start_ns:
            first += 1
        for hole in right[first:]:
            if hole.start_ns >= part.end_ns:
                break
            if hole.start_ns > start_ns:
                yield TimeRange(start_ns, hole.start_ns)
            start_ns = max(start_ns, hole.end_ns)
        if start_ns < part.end_ns:
            yield TimeRange(start_ns, part.end_ns)


def intersect(ranges: Iterable[TimeRange], span: TimeRange) -> list[TimeRange]:
    """Return the points of ``ranges`` inside ``span``, merged."""
    return merge(part for r in ranges if (part := r.intersect(span)))


@dataclass(frozen=True, slots=True)
class Diff:
    """Effect of a change on the merged ranges of a RangeSet, for a store that follows it; both empty if none."""

    removed: tuple[TimeRange, ...] = ()
    added: tuple[TimeRange, ...] = ()


class RangeSet:
    """Mutable set of times, kept as sorted ranges that neither overlap nor touch."""

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
        """Add ``part``, joining it with the ranges that it overlaps or touches."""
        low, high = bisect_left(self._ends, part.start_ns), bisect_right(self._starts, part.end_ns)
        if not part or (high - low == 1 and self._starts[low] <= part.start_ns and part.end_ns <= self._ends[low]):
            return Diff()
        removed = self._slice(low, high)
        start_ns = min(part.start_ns, removed[0].start_ns) if removed else part.start_ns
        end_ns = max(part.end_ns, removed[-1].end_ns) if removed else part.end_ns
        return self._replace(low, high, removed, (TimeRange(start_ns, end_ns),))

    def remove(self, part: TimeRange) -> Diff:
        """Remove ``part`` from the set."""
        low, high = bisect_right(self._ends, part.start_ns), bisect_left(self._starts, part.end_ns)
        if not part or low >= high:
            return Diff()
        removed = self._slice(low, high)
        return self._replace(low, high, removed, tuple(subtract(removed, [part])))

    def within(self, span: TimeRange) -> list[TimeRange]:
        """Return the part of the set inside ``span``."""
        low, high = bisect_right(self._ends, span.start_ns), bisect_left(self._starts, span.end_ns)
        return [common for part in self._slice(low, high) if (common := part.intersect(span))]

    def holes(self, span: TimeRange) -> list[TimeRange]:
        """Return the part of ``span`` outside the set."""
        return subtract([span], self.within(span))

    def _slice(self, low: int, high: int) -> tuple[TimeRange, ...]:
        return tuple(TimeRange(self._starts[i], self._ends[i]) for i in range(low, high))

    def _replace(self, low: int, high: int, old: tuple[TimeRange, ...], new: tuple[TimeRange, ...]) -> Diff:
        self._starts[low:high] = [part.start_ns for part in new]
        self._ends[low:high] = [part.end_ns for part in new]
        return Diff(old, new)
