"""States of days: against a model that looks at each hour by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.coverage import Coverage, CoverageKind, CoverageRange
from dexorder_common.model.coverage_days import MAX_DAYS, DayState, coverage_days
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.time_range import TimeRange, merge

HOUR = 3_600 * 10**9
FIRST = 19_000 * 24
KINDS = [kind for kind in CoverageKind if kind is not CoverageKind.MISSING]
PROVISIONAL = (CoverageKind.PROVISIONAL, CoverageKind.PROVISIONAL_ROWS)


def hours(start: int, end: int) -> TimeRange:
    return TimeRange((FIRST + start) * HOUR, (FIRST + end) * HOUR)


@given(
    known=st.lists(st.sampled_from([None, None, *KINDS]), min_size=100, max_size=100),
    asked=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), max_size=3),
    part=st.tuples(st.integers(0, 60), st.integers(1, 40)),
)
def test_each_hour_counts_once_and_a_day_has_its_worst_state(
    known: list[CoverageKind | None], asked: list[tuple[int, int]], part: tuple[int, int]
) -> None:
    ranges = [CoverageRange(hours(n, n + 1), kind) for n, kind in enumerate(known) if kind]
    wanted = [hours(start, start + length) for start, length in asked]
    start, length = part
    found = coverage_days(Coverage("A.B", 3_600, tuple(ranges)), "1h", hours(start, start + length), wanted)
    expected: dict[int, list[DayState]] = {}
    for hour in range(start, start + length):
        kind = known[hour]
        is_asked = any(first <= hour < first + count for first, count in asked)
        state = DayState.MISSING if is_asked else DayState.NOT_ASKED
        if kind:
            state = DayState.PROVISIONAL if kind in PROVISIONAL else DayState.PROVEN
        expected.setdefault(hour // 24, []).append(state)
    assert [day.span.start_ns // (24 * HOUR) - FIRST // 24 for day in found.days] == list(expected)
    assert merge(day.span for day in found.days) == [hours(start, start + length)]
    order = list(DayState)
    for day, states in zip(found.days, expected.values(), strict=True):
        assert day.shares == pytest.approx({state: states.count(state) / len(states) for state in set(states)})
        assert day.state is max(states, key=order.index)
    assert found.unproven == tuple(day for day in found.days if set(day.shares) != {DayState.PROVEN})


def test_without_a_range_the_days_are_those_that_are_known_or_were_asked_for() -> None:
    rows = Coverage("A.B", 3_600, (CoverageRange(hours(0, 24), CoverageKind.ROWS),))
    assert [day.state for day in coverage_days(rows, "1h", None, [hours(24, 48)]).days] == ["proven", "missing"]
    assert coverage_days(Coverage("A.B", 3_600, ()), "1h", None, []).days == ()


def test_a_range_of_too_many_days_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 40,000 days"):
        coverage_days(Coverage("A.B", 3_600, ()), "1h", TimeRange(0, (MAX_DAYS * 24 + 1) * HOUR), [])
