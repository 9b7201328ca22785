"""Events of dispatches: which of them change a job, and which are fenced."""

from __future__ import annotations

from typing import Any

import pytest

from dexorder_common.lake.coverage import Order
from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.history import Delay, FinalResult, FinalStatus, HistoryRequest, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.state import coverage, dispatches, planner
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.history import timed_out
from dexorder_relay.state.job import Phase, RetryPolicy
from dexorder_relay.state.workers import Slot, SlotKind
from dexorder_relay.store.changes import statements
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import SERIES, Driver, at, counts, dispatch_all, history_state, minute, span


@pytest.mark.parametrize("status", FinalStatus)
@pytest.mark.parametrize("reassigned", [False, True], ids=["job is queued", "job is at another ingestor"])
def test_the_final_record_of_a_fenced_dispatch_counts_for_nothing(status: FinalStatus, reassigned: bool) -> None:
    d = Driver()
    live = d.accept("r", 0, 10)
    (fenced,) = d.dispatch()
    d.now_ns = 15
    d.lose(fenced.dispatch_id)
    if reassigned:
        d.dispatch()
    (job,) = d.state.jobs.values()

    def known() -> tuple[Any, ...]:
        return job.phase, job.dispatch_id, job.sent, job.error, job.failures_in_a_row, counts(d.state.leases)

    before, d.changes, d.now_ns = known(), Changes(), 16
    d.report(finals=[FinalResult(fenced.dispatch_id, status, "too late")])
    assert not statements(d.changes)
    assert known() == before
    assert job.phase is Phase.OPEN and job.to_fetch(d.state.covered(SERIES)) == [span(0, 10)]
    assert not d.state.is_ready(live) and d.state.missing(live, at(10)) == [span(0, 10)]


def test_further_ranges_of_a_job_go_out_after_the_first_ones_final() -> None:
    d = Driver()
    live = d.accept("a", 0, 10)
    d.report([PageResult(dispatch_id(9), SERIES, span(3, 6))])
    spans = []
    for _ in range(2):
        (dispatch,) = d.dispatch()
        spans.append((minute(dispatch.span.start_ns), minute(dispatch.span.end_ns)))
        assert not d.state.is_ready(live)
        page = PageResult(dispatch.dispatch_id, SERIES, dispatch.span)
        d.report([page], [FinalResult(dispatch.dispatch_id, FinalStatus.OK)])
    assert spans == [(0, 3), (6, 10)] and d.state.is_ready(live)
    assert d.state.missing(live, at(10)) == []


def test_queued_job_that_others_covered_is_never_sent() -> None:
    d = Driver()
    live = d.accept("a", 0, 10)
    d.report([PageResult(dispatch_id(9), SERIES, span(0, 10))])
    assert d.dispatch() == []
    assert d.state.is_ready(live) and [job.phase for job in d.state.jobs.values()] == [Phase.SETTLED]


def test_range_of_a_refused_page_is_fetched_again_for_the_next_request() -> None:
    d = Driver()
    d.accept("a", 0, 10)
    (dispatch,) = d.dispatch()
    d.page(dispatch.dispatch_id, 2, 5)
    d.report([PageResult(dispatch.dispatch_id, SERIES, span(2, 5), (), "bad")])
    assert [job.error for job in d.state.jobs.values()] == ["a page was refused: bad"]
    live = d.accept("b", 0, 10)
    assert [d.state.jobs[job_id].span for job_id in sorted(live.jobs)] == [span(0, 10), span(2, 5)]


@pytest.mark.parametrize("wrong", [Series("ETH/USDT.SIM", 60), SERIES], ids=["another series", "outside its job"])
def test_a_page_refused_for_its_series_or_range_marks_no_other_range(wrong: Series) -> None:
    d = Driver()
    d.accept("a", 0, 10)
    (dispatch,) = d.dispatch()
    d.report([PageResult(dispatch.dispatch_id, wrong, span(0, 10) if wrong != SERIES else span(10, 20), (), "bad")])
    (job,) = d.state.jobs.values()
    assert not job.refused and not job.error and job.dispatch_id == dispatch.dispatch_id


def test_unsent_dispatch_is_first_again_and_is_not_a_failure() -> None:
    d = Driver()
    d.accept("a", 0, 20)
    for _ in range(5):  # more often than a job may be attempted
        d.state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
        ((assignment, dispatch),) = dispatch_all(d.state, d.changes, wall_ns=0, now_ns=0)
        assert minute(dispatch.span.start_ns) == 0
        dispatches.unsent(d.state, assignment, d.changes)
    assert counts(d.state.leases) == (2, 0, 0)


def test_a_lost_job_waits_before_it_is_sent_again_and_leaves_the_queue_with_its_last_failure() -> None:
    d = Driver(history_state(attempts=2))
    d.state.retry_policy = RetryPolicy(2, backoff_ns=10)
    d.accept("a", 0, 10)
    (first,) = d.dispatch()
    d.now_ns = 20
    d.lose(first.dispatch_id)
    assert d.dispatch() == [] and counts(d.state.leases) == (1, 0, 1)
    d.now_ns = 29
    assert d.dispatch(0) == []
    d.now_ns = 30
    (second,) = d.dispatch(0)
    d.lose(second.dispatch_id)
    assert counts(d.state.leases) == (0, 0, 0) and [job.phase for job in d.state.jobs.values()] == [Phase.ENDED]


def test_time_queued_behind_other_jobs_of_the_exchange_does_not_count() -> None:
    d = Driver()
    d.accept("first", 0, 10)
    (dispatch,) = d.dispatch()
    d.accept("behind", 50, 60)
    d.now_ns = 90
    d.page(dispatch.dispatch_id, 0, 1)
    assert [r.request.request_id for r in timed_out(d.state, 100, now_ns=150)] == []
    assert [r.request.request_id for r in timed_out(d.state, 100, now_ns=190)] == ["first"]
    d.now_ns = 190
    d.lose(dispatch.dispatch_id, "gone")
    assert [r.request.request_id for r in timed_out(d.state, 100, now_ns=290)] == ["first", "behind"]


def test_snapshot_has_the_time_of_its_last_page_and_forgets_the_dispatch_before() -> None:
    d = Driver()
    request = HistoryRequest.of_exchange("t", "SIM", TICKERS, "")
    planner.accept(d.state, request, d.changes, wall_ns=0, now_ns=0)
    (first,) = d.dispatch()
    (job,) = d.state.jobs.values()

    def take(dispatch_id: str, time_ns: int, refused: str | None = None) -> None:
        d.report([PageResult(dispatch_id, request.series, TimeRange(time_ns, time_ns), refused=refused)])

    for time_ns in (5, 9, 7):
        take(first.dispatch_id, time_ns)
    take(first.dispatch_id, 8, "price -1")
    assert (job.taken_ns, job.error) == (9, "a page was refused: price -1")
    d.lose(first.dispatch_id)
    (second,) = d.dispatch()
    take(first.dispatch_id, 20)
    take(second.dispatch_id, 6)
    assert (job.taken_ns, job.error) == (6, "")


def test_delay_of_a_dispatch_that_ended_is_not_that_of_the_next() -> None:
    d = Driver()
    d.accept("r", 0, 10)
    (first,) = d.dispatch()
    (job,) = d.state.jobs.values()
    job.delay = Delay("HTTP 502", retries=3, next_attempt_ns=5, banned_until_ns=0)
    d.lose(first.dispatch_id)
    assert job.delay is None


def test_ranges_that_a_job_has_fetched_before_their_retraction_are_left_to_a_later_job() -> None:
    d = Driver()
    d.accept("r", 0, 10)
    (dispatch,) = d.dispatch()
    d.page(dispatch.dispatch_id, 0, 10)
    (job,) = d.state.jobs.values()
    d.changes = Changes()
    coverage.retract(d.state, SERIES, [span(2, 4)], Order(1, 1), d.changes)
    assert job.handled.holes(span(0, 10)) == [span(0, 2), span(4, 10)] and job.acked.holes(span(0, 10)) == [span(2, 4)]
