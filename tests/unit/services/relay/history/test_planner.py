"""Plans: they cover the whole request, and fetch nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.common.model.periods import MONTH_SECONDS, count_periods, is_on_grid
from services.common.model.time_range import TimeRange, intersect, merge
from services.common.model.times import SECOND_NS
from services.relay.history.planner import make_plan, wave_end

MINUTE_NS = 60 * SECOND_NS


def minutes(start: int, length: int) -> TimeRange:
    return TimeRange(start * MINUTE_NS, (start + length) * MINUTE_NS)


SPANS = st.builds(minutes, st.integers(0, 80), st.integers(1, 40))


@given(SPANS, st.lists(SPANS, max_size=5), st.lists(st.lists(SPANS, max_size=2), max_size=4), st.integers(1, 50))
def test_new_attached_and_covered_make_up_the_request_and_new_jobs_are_disjoint(
    span: TimeRange, covered: list[TimeRange], running: list[list[TimeRange]], most: int
) -> None:
    in_flight = dict(enumerate(running))
    attach, new = make_plan(span, 60, covered=covered, in_flight=in_flight, max_periods=most)
    attached = [part for job in attach for part in in_flight[job]]
    assert intersect([*covered, *attached, *new], span) == [span]
    assert new == sorted(new)
    total = sum(part.end_ns - part.start_ns for part in new)
    assert total == sum(part.end_ns - part.start_ns for part in merge(new))
    for part in new:
        assert 1 <= count_periods(part, 60) <= most and span.contains(part)
        assert not intersect([*covered, *attached], part)
    for job in attach:  # nobody waits for a job that brings nothing it lacks
        assert any(span.intersect(part) for part in in_flight[job])


def test_covered_request_needs_nothing() -> None:
    attach, new = make_plan(
        minutes(5, 5), 60, covered=[minutes(0, 20)], in_flight={1: [minutes(0, 20)]}, max_periods=10
    )
    assert (attach, new) == ([], [])


@given(st.sampled_from([60, 604_800, MONTH_SECONDS]), st.integers(1, 2**32 - 1))
def test_wave_stays_inside_the_request_and_on_the_grid(period: int, periods: int) -> None:
    start_ns = 1_704_067_200 * SECOND_NS  # 2024-01-01: a minute, a Monday and the first of a month
    end_ns = start_ns + 4_000 * 604_800 * SECOND_NS if period == 604_800 else 4_102_444_800 * SECOND_NS  # 2100
    end = wave_end(start_ns, end_ns, period, periods)
    assert start_ns < end <= end_ns and is_on_grid(end, period)
    whole = count_periods(TimeRange(start_ns, end_ns), period)
    assert count_periods(TimeRange(start_ns, end), period) == min(periods, whole)
