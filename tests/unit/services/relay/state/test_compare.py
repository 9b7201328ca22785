"""Comparison of a window with its coverage, period by period, for every kind of period."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.periods import PERIODS, floor_to_grid, next_open, open_times
from dexorder_common.model.time_range import RangeSet, TimeRange, merge, subtract
from dexorder_common.model.times import parse_time
from dexorder_relay.state.compare import CoverageComparison, Times, compare, on_grid, repair_ranges, runs
from tests.unit.services.relay.harness import MINUTE_NS

MONTH, WEEK = 2_592_000, 604_800


def span(start: int, end: int, period: int = 60) -> TimeRange:
    """Periods [start, end), counted from the first candle of 2024."""
    first = floor_to_grid(parse_time("2024-01-01"), period)
    return TimeRange(next_open(first, period, start), next_open(first, period, end))


def opens(*periods: int, period: int = 60) -> Times:
    return np.array([span(each, each + 1, period).start_ns for each in periods], np.int64)


@pytest.mark.parametrize("period", sorted(PERIODS))
def test_each_fault_is_found_by_the_period(period: int) -> None:
    def at(start: int, end: int) -> TimeRange:
        return span(start, end, period)

    rows = [0, 1, 2, 5, 5, 5, 7, 12, 13]
    found = compare(opens(*rows, period=period)[::-1], [at(0, 6), at(6, 10)], [at(6, 8)], period)
    assert found == CoverageComparison(
        rows=9,
        row_periods=8,
        empty_periods=2,
        lost=[at(3, 5), at(8, 10)],
        unexpected=[at(7, 8)],
        duplicates=[at(5, 6)],
        surplus_rows=2,
        unclaimed_periods=2,
    )
    assert found.suspect


def test_nothing_there_and_nothing_claimed() -> None:
    assert compare(opens(), [], [], 60) == CoverageComparison()
    assert compare(opens(), [span(0, 5)], [span(0, 5)], 60) == CoverageComparison(empty_periods=5)
    assert compare(opens(), [span(0, 5)], [], MONTH).lost == [span(0, 5)]
    assert not compare(opens(1, 2), [], [], 60).suspect, "rows that nothing claims contradict nothing"


def test_a_row_off_the_grid_stands_for_no_candle() -> None:
    crooked = opens(3) + 1_000_000
    found = compare(np.concatenate((opens(2, 4), crooked)), [span(2, 5)], [], 60)
    assert (found.lost, found.off_grid_rows, found.rows, found.unclaimed_periods) == ([span(3, 4)], 1, 3, 0)
    tuesday = opens(0, period=86_400) + 86_400_000_000_000
    assert compare(tuesday, [span(0, 1, WEEK)], [], WEEK).off_grid_rows == 1
    assert compare(tuesday, [span(0, 1, MONTH)], [], MONTH).off_grid_rows == 1


periods = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=6)


@given(rows=st.lists(st.integers(0, 50), max_size=60), covered=periods, empty=periods)
def test_the_finding_is_what_looking_at_each_period_would_say(
    rows: list[int], covered: list[tuple[int, int]], empty: list[tuple[int, int]]
) -> None:
    def inside(minute: int, parts: list[tuple[int, int]]) -> bool:
        return any(start <= minute < start + length for start, length in parts)

    def minutes(ranges: list[TimeRange]) -> set[int]:
        return {(time - span(0, 1).start_ns) // MINUTE_NS for each in ranges for time in open_times(each, 60)}

    whole = merge(span(start, start + length) for start, length in covered)
    found = compare(opens(*rows), whole, [span(start, start + length) for start, length in empty], 60)
    every, times = range(60), Counter(rows)
    assert minutes(found.lost) == {m for m in every if inside(m, covered) and not inside(m, empty) and not times[m]}
    assert minutes(found.unexpected) == {m for m in every if inside(m, covered) and inside(m, empty) and times[m]}
    assert minutes(found.duplicates) == {m for m in every if times[m] > 1}
    assert found.unclaimed_periods == sum(1 for m in times if not inside(m, covered))
    assert (found.rows, found.surplus_rows) == (len(rows), len(rows) - len(times))
    assert found.row_periods + found.empty_periods == sum(1 for m in every if inside(m, covered))


@given(rows=st.lists(st.integers(0, 50), max_size=60), covered=periods, cut=st.integers(1, 50))
def test_windows_put_together_say_what_the_whole_says(
    rows: list[int], covered: list[tuple[int, int]], cut: int
) -> None:
    whole = RangeSet(span(start, start + length) for start, length in covered)
    together = CoverageComparison()
    for window in (span(0, cut), span(cut, 60)):
        inside = [row for row in rows if window.start_ns <= span(row, row + 1).start_ns < window.end_ns]
        together.add(compare(opens(*inside), whole.within(window), [], 60))
    assert together == compare(opens(*rows), list(whole), [], 60)


def test_runs_join_candles_that_follow_each_other() -> None:
    assert runs(opens(), 60) == runs(opens(), MONTH) == []
    assert runs(opens(0, 1, 2, 4), 60) == [span(0, 3), span(4, 5)]
    assert runs(opens(0, 1, 3, period=MONTH), MONTH) == [span(0, 2, MONTH), span(3, 4, MONTH)]
    assert on_grid(opens(0, 1, period=WEEK), WEEK).all()


def test_repairs_ask_for_what_is_lost_and_for_nothing_that_is_not_covered() -> None:
    covered = RangeSet([span(0, 50), span(60, 100)])
    lost = [span(3, 5), span(10, 20), span(40, 50), span(60, 61)]
    assert repair_ranges(lost, covered, 60, 100) == [span(3, 50), span(60, 61)]
    assert repair_ranges(lost, covered, 60, 20) == [span(3, 20), span(40, 50), span(60, 61)]
    assert repair_ranges(lost, covered, 60, 6) == [
        span(3, 5),
        span(10, 16),
        span(16, 20),
        span(40, 46),
        span(46, 50),
        span(60, 61),
    ]
    assert repair_ranges([], covered, 60, 6) == []


@given(lost=periods, covered=periods, most=st.integers(1, 30))
def test_repairs_cover_exactly_what_is_lost_of_what_is_covered(
    lost: list[tuple[int, int]], covered: list[tuple[int, int]], most: int
) -> None:
    claims = RangeSet(span(start, start + length) for start, length in [*covered, *lost])
    parts = merge(span(start, start + length) for start, length in lost)
    asked = repair_ranges(parts, claims, 60, most)
    assert not subtract(parts, asked), "everything is asked for"
    assert not subtract(asked, claims), "and nothing that was not claimed"
    assert all(one.end_ns <= two.start_ns for one, two in itertools.pairwise(asked))
    assert all((each.end_ns - each.start_ns) // MINUTE_NS <= most for each in asked)
