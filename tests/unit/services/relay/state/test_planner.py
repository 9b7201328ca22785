"""Plans: they cover the whole request, and fetch nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.history import FinalResult, FinalStatus
from dexorder_common.model.periods import MONTH_SECONDS, count_periods, is_on_grid
from dexorder_common.model.time_range import TimeRange, intersect, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state import planner
from dexorder_relay.state.history import progress
from dexorder_relay.state.job import Phase
from dexorder_relay.state.planner import make_plan, wave_end
from tests.unit.services.relay.harness import MINUTE_NS, SERIES, Driver, at, history_state, span


def minutes(start: int, length: int) -> TimeRange:
    return TimeRange(start * MINUTE_NS, (start + length) * MINUTE_NS)


SPANS = st.builds(minutes, st.integers(0, 80), st.integers(1, 40))


@given(SPANS, st.lists(SPANS, max_size=5), st.lists(st.lists(SPANS, max_size=2), max_size=4), st.integers(1, 50))
def test_new_attached_and_covered_make_up_the_request_and_new_jobs_are_disjoint(
    whole: TimeRange, covered: list[TimeRange], running: list[list[TimeRange]], most: int
) -> None:
    in_flight = dict(enumerate(running))
    attach, new = make_plan(whole, 60, covered=covered, in_flight=in_flight, max_periods=most)
    attached = [part for job in attach for part in in_flight[job]]
    assert intersect([*covered, *attached, *new], whole) == [whole]
    assert new == sorted(new)
    total = sum(part.end_ns - part.start_ns for part in new)
    assert total == sum(part.end_ns - part.start_ns for part in merge(new))
    for part in new:
        assert 1 <= count_periods(part, 60) <= most and whole.contains(part)
        assert not intersect([*covered, *attached], part)
    for job in attach:  # nobody waits for a job that brings nothing it lacks
        assert any(whole.intersect(part) for part in in_flight[job])


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


def test_a_wave_of_all_periods_but_one_ends_before_the_last() -> None:
    assert [wave_end(at(0), at(10), 60, periods) for periods in (9, 10, 11)] == [at(9), at(10), at(10)]


def test_a_request_with_a_limit_is_planned_as_far_as_its_limit_at_once() -> None:
    d = Driver()
    live = d.accept("r", 0, 30, limit=3)
    assert [job.span for job in d.state.jobs.values()] == [span(0, 3)] == [live.planned]


def test_waves_of_a_limit_double_or_reach_for_what_is_lacking_and_follow_one_another() -> None:
    d = Driver(history_state(job_periods=1_000))
    live = d.accept("r", 0, 200, limit=10)
    assert live.planned == span(0, 10)
    ends = []
    for now_ns, lacking in ((3, 4), (5, 60), (7, 1)):
        planner.widen(d.state, live, lacking, d.changes, now_ns=now_ns)
        ends.append((live.planned, live.progress_ns))
        assert [d.state.jobs[each].span for each in sorted(live.jobs)][-1].end_ns == live.planned_end_ns
    assert ends == [(span(0, 20), 3), (span(0, 80), 5), (span(0, 160), 7)]


# ---- requests of the relay itself, which fetch a range although it is covered ---------------------------------------


def test_a_client_does_not_wait_for_a_job_of_the_relay_that_no_ingestor_has() -> None:
    d = Driver(history_state(job_periods=100))
    d.accept("recheck", 0, 10, again=True)
    (job_id,) = d.accept("client", 5, 20).jobs
    assert d.state.jobs[job_id].span == span(5, 20) and not d.state.jobs[job_id].again
    assert d.state.jobs[job_id].requests == {"client"}


def test_a_client_waits_for_a_job_of_the_relay_that_an_ingestor_has() -> None:
    d = Driver(history_state(job_periods=100))
    recheck = d.accept("recheck", 0, 10, again=True)
    d.dispatch()
    client = d.accept("client", 5, 20)
    assert client.jobs > recheck.jobs
    assert [d.state.jobs[each].span for each in client.jobs - recheck.jobs] == [span(10, 20)]


def test_a_client_that_waits_for_a_job_of_the_relay_lacks_no_more_than_what_is_not_covered() -> None:
    d = Driver(history_state(job_periods=100))
    recheck = d.accept("recheck", 0, 10, again=True)
    d.state.coverage[SERIES].covered.add(span(0, 5))
    (dispatch,) = d.dispatch()
    client = d.accept("client", 0, 10)
    d.report(finals=[FinalResult(dispatch.dispatch_id, FinalStatus.ERROR, "the exchange is down")])
    assert d.state.is_ready(client)
    assert d.state.missing(client, client.planned_end_ns) == [span(5, 10)]
    assert d.state.missing(recheck, client.planned_end_ns) == [span(0, 10)]


# ---- long requests, which are planned in steps -----------------------------------------------------------------------


@pytest.mark.parametrize("refresh", [False, True])
@given(minutes=st.integers(1, 400), covered=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200)), max_size=3))
def test_steps_make_the_jobs_of_one_plan_and_no_request_is_ready_before_its_last_step(
    refresh: bool, minutes: int, covered: list[tuple[int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "STEP_JOBS", 4)
        patch.setattr(planner, "MAX_OPEN_JOBS", 6)
        d = Driver()
        for start, length in covered:
            d.state.coverage[SERIES].covered.add(span(start, start + length))
        live = d.accept("long", 0, minutes, refresh=refresh)
        for _ in range(200):
            assert sum(not d.state.is_over(each) for each in live.jobs) <= 6 + 2 * 4, "a step is small"
            assert d.state.is_ready(live) <= live.is_planned
            assert refresh or d.state.missing(live, at(minutes)) == d.state.covered(SERIES).holes(span(0, minutes))
            if refresh:
                assert d.state.missing(live, at(minutes)) == [span(0, minutes)], "steps to come count as not fetched"
            planner.plan_on(d.state, live, d.changes)
            if live.is_planned:
                break
            for job_id in live.jobs:
                d.state.jobs[job_id].phase = Phase.ENDED
        jobs = [d.state.jobs[each].span for each in live.jobs]
        wanted = [span(0, minutes)] if refresh else d.state.covered(SERIES).holes(span(0, minutes))
        assert merge(jobs) == wanted
        assert sum(count_periods(each, 60) for each in jobs) == sum(count_periods(each, 60) for each in wanted)


def test_progress_of_a_long_request_is_of_its_whole_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "STEP_JOBS", 2)
    d = Driver()
    live = d.accept("long", 0, 100)
    assert (len(live.jobs), progress(d.state, live).expected_periods) == (2, 100)


def test_a_long_request_that_is_covered_is_planned_at_once() -> None:
    d = Driver()
    d.state.coverage[SERIES].covered.add(span(0, 100_000))
    live = d.accept("long", 0, 100_000)
    assert (live.jobs, d.state.is_ready(live)) == (set(), True)
