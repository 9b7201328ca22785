"""Events of dispatches: which of them change a job, and which are fenced."""

from __future__ import annotations

import pytest

from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_common.model.history import FinalResult, FinalStatus, HistoryRequest, PageResult
from dexorder_common.model.instrument import Series
from dexorder_relay.state import dispatches, planner
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.history import HistoryState, timed_out
from dexorder_relay.state.job import Phase, RetryPolicy
from dexorder_relay.state.leases import Leases, Slot, SlotKind
from dexorder_relay.store.changes import statements
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import SERIES, TICKER, at, counts, dispatch_all, minute, span

SLOT = Slot(b"i", "SIM", SlotKind.ANY)


def new_state() -> HistoryState:
    leases = Leases(lease_ns=15, new_id=DispatchNumbers().new_id)
    return HistoryState(leases, RetryPolicy(3, 0), job_periods=10, page_periods=10)


def history_request(request_id: str, start: int, end: int) -> HistoryRequest:
    return HistoryRequest(request_id, TICKER, at(start), at(end), 60)


@pytest.mark.parametrize("status", FinalStatus)
@pytest.mark.parametrize("reassigned", [False, True], ids=["job is queued", "job is at another ingestor"])
def test_the_final_record_of_a_fenced_dispatch_counts_for_nothing(status: FinalStatus, reassigned: bool) -> None:
    state, changes = new_state(), Changes()
    live = planner.accept(state, history_request("r", 0, 10), changes, wall_ns=0, now_ns=0)
    state.leases.offer(SLOT)
    ((fenced, _),) = dispatch_all(state, changes, wall_ns=0, now_ns=0)
    dispatches.lose(state, fenced.dispatch_id, "its lease expired", changes, now_ns=15)
    if reassigned:
        state.leases.offer(SLOT)
        dispatch_all(state, changes, wall_ns=0, now_ns=15)
    (job,) = state.jobs.values()
    before = (job.phase, job.dispatch_id, job.sent, job.error, job.failures_in_a_row, counts(state.leases))

    changes = Changes()
    dispatches.report(state, [], [FinalResult(fenced.dispatch_id, status, "too late")], changes, wall_ns=0, now_ns=16)

    assert not statements(changes)
    assert (job.phase, job.dispatch_id, job.sent, job.error, job.failures_in_a_row, counts(state.leases)) == before
    assert job.phase is Phase.OPEN and job.to_fetch(state.covered(SERIES)) == [span(0, 10)]
    assert not state.is_ready(live) and state.missing(live, at(10)) == [span(0, 10)]


def test_further_ranges_of_a_job_go_out_after_the_first_ones_final() -> None:
    state, changes = new_state(), Changes()
    live = planner.accept(state, history_request("a", 0, 10), changes, wall_ns=0, now_ns=0)
    dispatches.report(state, [PageResult(dispatch_id(9), SERIES, span(3, 6))], [], changes, wall_ns=0, now_ns=0)
    spans = []
    for _ in range(2):
        state.leases.offer(SLOT)
        ((assignment, dispatch),) = dispatch_all(state, changes, wall_ns=0, now_ns=0)
        spans.append((minute(dispatch.span.start_ns), minute(dispatch.span.end_ns)))
        assert not state.is_ready(live)
        pages = [PageResult(assignment.dispatch_id, SERIES, dispatch.span)]
        dispatches.report(
            state, pages, [FinalResult(assignment.dispatch_id, FinalStatus.OK)], changes, wall_ns=0, now_ns=0
        )
    assert spans == [(0, 3), (6, 10)] and state.is_ready(live)
    assert state.missing(live, at(10)) == []


def test_queued_job_that_others_covered_is_never_sent() -> None:
    state, changes = new_state(), Changes()
    live = planner.accept(state, history_request("a", 0, 10), changes, wall_ns=0, now_ns=0)
    dispatches.report(state, [PageResult(dispatch_id(9), SERIES, span(0, 10))], [], changes, wall_ns=0, now_ns=0)
    state.leases.offer(SLOT)
    assert dispatch_all(state, changes, wall_ns=0, now_ns=0) == []
    assert state.is_ready(live) and [job.phase for job in state.jobs.values()] == [Phase.SETTLED]


def test_range_of_a_refused_page_is_fetched_again_for_the_next_request() -> None:
    state, changes = new_state(), Changes()
    planner.accept(state, history_request("a", 0, 10), changes, wall_ns=0, now_ns=0)
    state.leases.offer(SLOT)
    ((assignment, _),) = dispatch_all(state, changes, wall_ns=0, now_ns=0)
    dispatches.page(state, assignment.dispatch_id, span(2, 5), [], changes, now_ns=0)
    dispatches.report(
        state, [PageResult(assignment.dispatch_id, SERIES, span(2, 5), (), "bad")], [], changes, wall_ns=0, now_ns=0
    )
    live = planner.accept(state, history_request("b", 0, 10), changes, wall_ns=0, now_ns=0)
    assert [state.jobs[job_id].span for job_id in sorted(live.jobs)] == [span(0, 10), span(2, 5)]


@pytest.mark.parametrize("wrong", [Series("ETH/USDT.SIM", 60), SERIES], ids=["another series", "outside its job"])
def test_a_page_refused_for_its_series_or_range_marks_no_other_range(wrong: Series) -> None:
    state, changes = new_state(), Changes()
    planner.accept(state, history_request("a", 0, 10), changes, wall_ns=0, now_ns=0)
    state.leases.offer(SLOT)
    ((assignment, _),) = dispatch_all(state, changes, wall_ns=0, now_ns=0)
    refused = PageResult(assignment.dispatch_id, wrong, span(0, 10) if wrong != SERIES else span(10, 20), (), "bad")
    dispatches.report(state, [refused], [], changes, wall_ns=0, now_ns=0)
    (job,) = state.jobs.values()
    assert not job.refused and not job.error and job.dispatch_id == assignment.dispatch_id


def test_unsent_dispatch_is_first_again_and_is_not_a_failure() -> None:
    state, changes = new_state(), Changes()
    planner.accept(state, history_request("a", 0, 20), changes, wall_ns=0, now_ns=0)
    for _ in range(5):  # more often than a job may be attempted
        state.leases.offer(SLOT)
        ((assignment, dispatch),) = dispatch_all(state, changes, wall_ns=0, now_ns=0)
        assert minute(dispatch.span.start_ns) == 0
        dispatches.unsent(state, assignment, changes)
    assert counts(state.leases) == (2, 0, 0)


def test_time_queued_behind_other_jobs_of_the_exchange_does_not_count() -> None:
    state, changes = new_state(), Changes()
    planner.accept(state, history_request("first", 0, 10), changes, wall_ns=0, now_ns=0)
    state.leases.offer(SLOT)
    ((assignment, _),) = dispatch_all(state, changes, wall_ns=0, now_ns=0)
    planner.accept(state, history_request("behind", 50, 60), changes, wall_ns=0, now_ns=0)
    dispatches.page(state, assignment.dispatch_id, span(0, 1), [], changes, now_ns=90)
    assert [r.request.request_id for r in timed_out(state, 100, now_ns=150)] == []
    assert [r.request.request_id for r in timed_out(state, 100, now_ns=190)] == ["first"]
    dispatches.lose(state, assignment.dispatch_id, "gone", changes, now_ns=190)
    assert [r.request.request_id for r in timed_out(state, 100, now_ns=290)] == ["first", "behind"]
