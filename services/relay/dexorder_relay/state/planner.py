"""Jobs that a request needs: its range without parts that are covered or that jobs in flight may cover. Pure.

A long request is planned in steps, because thousands of jobs at once would delay every other request: the next step
follows when few of its jobs are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import count_periods, next_open, split_by_periods
from dexorder_common.model.time_range import RangeSet, TimeRange, intersect, subtract
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.state.changes import (
    Changes,
    JobForgotten,
    RequestAccepted,
    RequestAttached,
    RequestChanged,
    ValueStored,
)
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job
from dexorder_relay.state.request import LiveRequest

STEP_JOBS = 32
"""Jobs after which a step ends."""
MAX_OPEN_JOBS = 128
"""Unfinished jobs of a request above which its next step waits."""


def make_plan(
    span: TimeRange,
    period_seconds: int,
    *,
    covered: Iterable[TimeRange],
    in_flight: Mapping[int, Sequence[TimeRange]],
    max_periods: int,
) -> tuple[list[int], list[TimeRange]]:
    """Split the uncovered part of ``span`` into jobs of at most ``max_periods``.

    Args:
        span: Starts and ends on the grid.
        in_flight: By job of the same series, the ranges that it may still cover.

    Returns:
        Ids of jobs to wait for, and ranges of new jobs in time order: disjoint from each other, from ``covered`` and
        from the ranges of the jobs to wait for. If both are empty, the range is covered.
    """
    uncovered = subtract([span], covered)
    attach, shared = [], []
    for job_id, ranges in in_flight.items():
        useful = [common for part in uncovered for common in intersect(ranges, part)]
        if useful:
            attach.append(job_id)
            shared.extend(useful)
    new = [job for part in subtract(uncovered, shared) for job in split_by_periods(part, period_seconds, max_periods)]
    return attach, new


def wave_end(start_ns: int, end_ns: int, period_seconds: int, periods: int) -> int:
    """Return the end of a wave of ``periods`` periods from ``start_ns``, at most ``end_ns``."""
    # a limit may be 2**32 - 1 months, which is beyond every calendar, so compare before stepping
    whole = (end_ns - start_ns) // (min(period_seconds, 28 * 86_400) * 1_000_000_000) + 1
    return end_ns if periods >= whole else min(next_open(start_ns, period_seconds, periods), end_ns)


def accept(
    state: HistoryState, request: HistoryRequest, changes: Changes, *, wall_ns: int, now_ns: int, trace: str = ""
) -> LiveRequest:
    """Add a checked request and plan it; ``trace`` is the context in which it was submitted."""
    start_ns, end_ns, period = request.start_ns, request.end_ns, request.period_seconds
    planned_end_ns = end_ns if request.limit is None else wave_end(start_ns, end_ns, period, request.limit)
    live = LiveRequest(request, wall_ns, planned_end_ns, now_ns, trace=trace)
    state.requests[request.request_id] = live
    changes.append(RequestAccepted(live))
    if request.dataset.whole_exchange:
        _create(state, live, TimeRange(0, MAX_TIME_NS), changes)
    elif request.limit is None and request.dataset.has_periods:
        live.planned_end_ns = start_ns
        _step(state, live, changes)
    else:
        _plan_part(state, live, live.planned, changes)
    return live


def plan_on(state: HistoryState, live: LiveRequest, changes: Changes) -> None:
    """Plan the next step of a request of which few jobs are left, if there is one."""
    if live.is_planned or live.ending:
        return
    if sum(not state.is_over(job_id) for job_id in live.jobs) <= MAX_OPEN_JOBS:
        _step(state, live, changes)
        changes.append(RequestChanged(live))


def _step(state: HistoryState, live: LiveRequest, changes: Changes) -> None:
    request, before = live.request, len(live.jobs)
    while not live.is_planned and len(live.jobs) - before < STEP_JOBS:
        start_ns, periods = live.planned_end_ns, STEP_JOBS * state.job_periods
        live.planned_end_ns = wave_end(start_ns, request.end_ns, request.period_seconds, periods)
        _plan_part(state, live, TimeRange(start_ns, live.planned_end_ns), changes)


def _plan_part(state: HistoryState, live: LiveRequest, part: TimeRange, changes: Changes) -> None:
    if not live.request.fetches_covered:
        plan(state, live, part, changes)
        return
    for each in split_by_periods(part, live.request.period_seconds, state.job_periods):  # covered or not
        _create(state, live, each, changes, again=True)


def widen(state: HistoryState, live: LiveRequest, lacking_candles: int, changes: Changes, *, now_ns: int) -> None:
    """Plan the next wave of a request with a limit: as many periods as so far, or as it lacks candles if more."""
    period = live.request.period_seconds
    periods = max(lacking_candles, count_periods(live.planned, period))
    end_ns = wave_end(live.planned_end_ns, live.request.end_ns, period, periods)
    wave = TimeRange(live.planned_end_ns, end_ns)
    live.planned_end_ns = end_ns
    live.progress_ns = now_ns
    changes.append(RequestChanged(live))
    plan(state, live, wave, changes)


def plan(state: HistoryState, live: LiveRequest, span: TimeRange, changes: Changes) -> None:
    """Attach a request to jobs in flight, and create jobs for the rest of ``span``."""
    series = live.request.series
    covered = state.covered(series)
    in_flight = {
        job.id: job.may_cover(state.settled(job))
        for job in state.jobs_of(series)
        if job.span.overlaps(span) and not (job.again and job.dispatch_id is None)  # those wait after all others
    }
    attach, new = make_plan(
        span, series.period_seconds, covered=covered.within(span), in_flight=in_flight, max_periods=state.job_periods
    )
    for job_id in attach:
        _attach(live, state.jobs[job_id], changes)
    for part in new:
        _create(state, live, part, changes)


def _create(state: HistoryState, live: LiveRequest, span: TimeRange, changes: Changes, *, again: bool = False) -> None:
    request, trace = live.request, live.span.text if live.span else ""
    job = Job(state.new_job_id(), request.request_id, request.client_id, request.series, span, again=again, trace=trace)
    changes.append(ValueStored(job))
    state.add_job(job)
    state.leases.queue(job.id, request.series.exchange, trace=trace)
    _attach(live, job, changes)


def _attach(live: LiveRequest, job: Job, changes: Changes) -> None:
    job.requests.add(live.request.request_id)
    live.jobs.add(job.id)
    changes.append(RequestAttached(live.request.request_id, job.id))
    if job.dispatch_ids and live.start():
        changes.append(RequestChanged(live))


def replan(state: HistoryState, series: Series, spans: Sequence[TimeRange], changes: Changes, skip: str = "") -> None:
    """Plan retracted ranges for every request that waits for them, except ``skip`` and requests that are ending."""
    if not spans:
        return
    retracted = RangeSet(spans)
    for request_id, live in state.requests.items():
        if live.request.series == series and request_id != skip and not live.ending:
            for part in retracted.within(live.planned):
                plan(state, live, part, changes)


def remove(state: HistoryState, live: LiveRequest, changes: Changes) -> None:
    """Remove an ended request; jobs that no other request waits for are fenced and forgotten."""
    request_id = live.request.request_id
    del state.requests[request_id]
    for job_id in live.jobs:
        job = state.jobs[job_id]
        job.requests.discard(request_id)
        if not job.requests:
            state.leases.remove(job_id)
            state.drop_job(job)
            changes.append(JobForgotten(job_id))
