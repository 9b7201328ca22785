"""A window of the table against what coverage says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.common.model.periods import (
    MONTH_SECONDS,
    ceil_to_grid,
    count_periods,
    is_on_grid,
    next_open,
    split_by_periods,
    total_periods,
)
from services.common.model.time_range import RangeSet, TimeRange, merge, subtract
from services.common.model.times import SECOND_NS

Times = NDArray[np.int64]


@dataclass(slots=True)
class Finding:
    """What was found in one range, or in several put together.

    Attributes:
        rows: Rows of the market.
        row_periods: Periods claimed as rows; ``empty_periods`` those as verified empty.
        lost: Claimed as rows, and there is none.
        unexpected: Claimed as empty, and there is a row.
        duplicates: Periods with more than one row; ``surplus_rows`` counts those that are too many.
        off_grid_rows: Rows whose open time is no candle's.
        unclaimed_periods: Periods with a row that nothing claims.
    """

    rows: int = 0
    row_periods: int = 0
    empty_periods: int = 0
    lost: list[TimeRange] = field(default_factory=list)
    unexpected: list[TimeRange] = field(default_factory=list)
    duplicates: list[TimeRange] = field(default_factory=list)
    surplus_rows: int = 0
    off_grid_rows: int = 0
    unclaimed_periods: int = 0

    @property
    def suspect(self) -> bool:
        """Whether table and coverage contradict each other; a second look may show that one was just ahead."""
        return bool(self.lost or self.unexpected)

    def add(self, other: Finding) -> None:
        """Put what was found in a later range to it."""
        for name in ("rows", "row_periods", "empty_periods", "surplus_rows", "off_grid_rows", "unclaimed_periods"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lost", "unexpected", "duplicates"):
            setattr(self, name, _joined(getattr(self, name), getattr(other, name)))


def compare(opens: Times, covered: Sequence[TimeRange], empty: Iterable[TimeRange], period_seconds: int) -> Finding:
    """Compare a window's rows with its coverage.

    Args:
        opens: Open times of all its rows, nanoseconds, in any order.
        covered: What coverage claims of the window, rows or empty, on the grid.
        empty: What it claims as empty; counts where it is claimed at all.
    """
    times, counts = np.unique(opens, return_counts=True)
    known = on_grid(times, period_seconds)
    there = runs(times[known], period_seconds)
    full = subtract(covered, empty)
    void = subtract(covered, full)
    return Finding(
        rows=len(opens),
        row_periods=total_periods(full, period_seconds),
        empty_periods=total_periods(void, period_seconds),
        lost=subtract(full, there),
        unexpected=subtract(void, subtract(void, there)),
        duplicates=runs(times[known & (counts > 1)], period_seconds),
        surplus_rows=int(len(opens) - len(times)),
        off_grid_rows=int(counts[~known].sum()),
        unclaimed_periods=total_periods(subtract(there, covered), period_seconds),
    )


def candles_at(opens: Times, period_seconds: int) -> list[TimeRange]:
    """The candles that open at any of those times, in any order; an open time off the grid is no candle's."""
    times = np.sort(opens)
    times = times[np.diff(times, prepend=-1) > 0]  # np.unique of numpy 2.4 takes fifty times as long
    return runs(times[on_grid(times, period_seconds)], period_seconds)


def on_grid(times: Times, period_seconds: int) -> NDArray[np.bool_]:
    """Which of the times open a candle."""
    if period_seconds == MONTH_SECONDS:
        return np.fromiter((is_on_grid(int(time), period_seconds) for time in times), np.bool_, len(times))
    steps: Times = (times - ceil_to_grid(0, period_seconds)) % (period_seconds * SECOND_NS)
    return np.equal(steps, 0)


def runs(times: Times, period_seconds: int) -> list[TimeRange]:
    """The candles that open at those ascending times of the grid, each once, as merged ranges."""
    if period_seconds == MONTH_SECONDS:
        return merge(TimeRange(int(time), next_open(int(time), period_seconds)) for time in times)
    step_ns = period_seconds * SECOND_NS
    breaks = np.flatnonzero(np.diff(times) != step_ns)
    starts = times[np.concatenate(([0], breaks + 1))] if len(times) else times
    ends = times[np.concatenate((breaks, [-1]))] + step_ns if len(times) else times
    return [TimeRange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def repairs(lost: Iterable[TimeRange], covered: RangeSet, period_seconds: int, most_periods: int) -> list[TimeRange]:
    """Ranges of requests that bring what is lost and nothing else: all the rest of each is covered.

    Args:
        lost: In time order.
        covered: What coverage claims, the lost ranges included.
        most_periods: Most periods of one request.
    """
    asked: list[TimeRange] = []
    for part in (piece for each in lost for piece in split_by_periods(each, period_seconds, most_periods)):
        joined = TimeRange(asked[-1].start_ns, part.end_ns) if asked else part
        if asked and count_periods(joined, period_seconds) <= most_periods and not covered.holes(joined):
            asked[-1] = joined
        else:
            asked.append(part)
    return asked


def _joined(before: list[TimeRange], later: list[TimeRange]) -> list[TimeRange]:
    if before and later and before[-1].end_ns == later[0].start_ns:
        return [*before[:-1], TimeRange(before[-1].start_ns, later[0].end_ns), *later[1:]]
    return [*before, *later]
