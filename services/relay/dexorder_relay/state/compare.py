"""Comparison of a window of the table with its coverage. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from dexorder_common.model.periods import (
    MONTH_SECONDS,
    ceil_to_grid,
    count_periods,
    floor_to_grid,
    is_on_grid,
    next_open,
    split_by_periods,
    total_periods,
)
from dexorder_common.model.time_range import RangeSet, TimeRange, joined, merge, subtract
from dexorder_common.model.times import SECOND_NS

Times = NDArray[np.int64]
WINDOW_PERIODS = 500_000
"""Periods of one window: their open times take 4 MB."""


@dataclass(slots=True)
class CoverageComparison:
    """Differences between table and coverage in one range, or in several adjacent ones.

    ``VerificationResult`` describes the fields.
    """

    rows: int = 0
    row_periods: int = 0
    empty_periods: int = 0
    lost: list[TimeRange] = field(default_factory=list)
    unexpected: list[TimeRange] = field(default_factory=list)
    duplicates: list[TimeRange] = field(default_factory=list)
    surplus_rows: int = 0
    off_grid: list[TimeRange] = field(default_factory=list)
    off_grid_rows: int = 0
    unclaimed_periods: int = 0

    @property
    def wrong(self) -> list[TimeRange]:
        """Periods with rows that the table must not have: duplicates, rows off the grid or in verified-empty ranges."""
        return merge([*self.unexpected, *self.duplicates, *self.off_grid])

    @property
    def suspect(self) -> bool:
        """True if table and coverage contradict each other, which may be because one was read before the other."""
        return bool(self.lost or self.unexpected)

    def add(self, other: CoverageComparison) -> None:
        """Add the differences in a later range."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in RANGES:
            setattr(self, name, _joined(getattr(self, name), getattr(other, name)))


COUNTS = [each.name for each in fields(CoverageComparison) if each.default == 0]
RANGES = [each.name for each in fields(CoverageComparison) if each.name not in COUNTS]


def compare(
    opens: Times, covered: Sequence[TimeRange], empty: Iterable[TimeRange], period_seconds: int
) -> CoverageComparison:
    """Compare the rows of a window with its coverage.

    Args:
        opens: Open times of all rows, nanoseconds, in any order.
        covered: Ranges that coverage claims in the window, rows or empty, on the grid.
        empty: Ranges that it claims as empty; they count only where they are claimed at all.
    """
    times, counts = np.unique(opens, return_counts=True)
    known = on_grid(times, period_seconds)
    present = runs(times[known], period_seconds)
    full = subtract(covered, empty)
    void = subtract(covered, full)
    return CoverageComparison(
        rows=len(opens),
        row_periods=total_periods(full, period_seconds),
        empty_periods=total_periods(void, period_seconds),
        lost=subtract(full, present),
        unexpected=subtract(void, subtract(void, present)),
        duplicates=runs(times[known & (counts > 1)], period_seconds),
        surplus_rows=int(len(opens) - len(times)),
        off_grid=merge(_period_of(int(time), period_seconds) for time in times[~known]),
        off_grid_rows=int(counts[~known].sum()),
        unclaimed_periods=total_periods(subtract(present, covered), period_seconds),
    )


def _period_of(time_ns: int, period_seconds: int) -> TimeRange:
    start_ns = floor_to_grid(time_ns, period_seconds)
    return TimeRange(start_ns, next_open(start_ns, period_seconds))


def on_grid(times: Times, period_seconds: int) -> NDArray[np.bool_]:
    """Return which of the times open a candle."""
    if period_seconds == MONTH_SECONDS:
        return np.fromiter((is_on_grid(int(time), period_seconds) for time in times), np.bool_, len(times))
    steps: Times = (times - ceil_to_grid(0, period_seconds)) % (period_seconds * SECOND_NS)
    return np.equal(steps, 0)


def runs(times: Times, period_seconds: int) -> list[TimeRange]:
    """Return the candles that open at these ascending, distinct times of the grid as merged ranges."""
    if period_seconds == MONTH_SECONDS:
        return merge(TimeRange(int(time), next_open(int(time), period_seconds)) for time in times)
    step_ns = period_seconds * SECOND_NS
    breaks = np.flatnonzero(np.diff(times) != step_ns)
    starts = times[np.concatenate(([0], breaks + 1))] if len(times) else times
    ends = times[np.concatenate((breaks, [-1]))] + step_ns if len(times) else times
    return [TimeRange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def repair_ranges(
    lost: Iterable[TimeRange], covered: RangeSet, period_seconds: int, max_periods: int
) -> list[TimeRange]:
    """Return ranges of requests that fetch only lost periods: the rest of each range is covered.

    Args:
        lost: In time order.
        covered: Ranges that coverage claims, the lost ones included.
    """
    parts = (piece for each in lost for piece in split_by_periods(each, period_seconds, max_periods))

    def join(one: TimeRange, two: TimeRange) -> TimeRange | None:
        both = TimeRange(one.start_ns, two.end_ns)
        return both if count_periods(both, period_seconds) <= max_periods and not covered.holes(both) else None

    return joined(parts, join)


def _joined(before: list[TimeRange], later: list[TimeRange]) -> list[TimeRange]:
    if before and later and before[-1].end_ns == later[0].start_ns:
        return [*before[:-1], TimeRange(before[-1].start_ns, later[0].end_ns), *later[1:]]
    return [*before, *later]
