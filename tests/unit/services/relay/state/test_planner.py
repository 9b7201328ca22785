"""Plans: they cover the whole request, and fetch nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_common.model.history import FinalResult, FinalStatus, HistoryRequest
from dexorder_common.model.periods import MONTH_SECONDS, count_periods, is_on_grid
from dexorder_common.model.time_range import TimeRange, intersect, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state import dispatches
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases, Slot, SlotKind
from dexorder_relay.state.planner import accept, make_plan, wave_end
from dexorder_relay.state.request import LiveRequest
from tests.unit.services.relay.harness import dispatch_all

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


# ---- requests of the relay itself, which fetch a range although it is covered ---------------------------------------


def new_state() -> HistoryState:
    leases = Leases(lease_ns=15, new_id=DispatchNumbers().new_id)
    return HistoryState(leases, RetryPolicy(3, 0), job_periods=100, page_periods=10)


def accepted(state: HistoryState, request_id: str, start: int, end: int, *, again: bool = False) -> LiveRequest:
    part = minutes(start, end - start)
    request = HistoryRequest(request_id, "BTC/USDT.SIM", part.start_ns, part.end_ns, 60, again=again)
    return accept(state, request, Changes(), wall_ns=0, now_ns=0)


def dispatched(state: HistoryState) -> str:
    """Give the first queued job to a slot; return its dispatch."""
    state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
    return dispatch_all(state, Changes(), wall_ns=0, now_ns=0)[0][0].dispatch_id


def test_a_client_does_not_wait_for_a_job_of_the_relay_that_no_ingestor_has() -> None:
    state = new_state()
    accepted(state, "recheck", 0, 10, again=True)
    client = accepted(state, "client", 5, 20)
    (job_id,) = client.jobs
    assert state.jobs[job_id].span == minutes(5, 15) and not state.jobs[job_id].again
    assert state.jobs[job_id].requests == {"client"}


def test_a_client_waits_for_a_job_of_the_relay_that_an_ingestor_has() -> None:
    state = new_state()
    recheck = accepted(state, "recheck", 0, 10, again=True)
    dispatched(state)
    client = accepted(state, "client", 5, 20)
    assert client.jobs > recheck.jobs
    assert [state.jobs[each].span for each in client.jobs - recheck.jobs] == [minutes(10, 10)]


def test_a_client_that_waits_for_a_job_of_the_relay_lacks_no_more_than_what_is_not_covered() -> None:
    state = new_state()
    series = accepted(state, "recheck", 0, 10, again=True).request.series
    state.coverage[series].covered.add(minutes(0, 5))
    dispatch_id = dispatched(state)
    client = accepted(state, "client", 0, 10)
    failed = FinalResult(dispatch_id, FinalStatus.ERROR, "the exchange is down")
    dispatches.report(state, [], [failed], Changes(), wall_ns=0, now_ns=0)
    assert state.is_ready(client)
    assert state.missing(client, client.planned_end_ns) == [minutes(5, 5)]
    assert state.missing(state.requests["recheck"], client.planned_end_ns) == [minutes(0, 10)]
