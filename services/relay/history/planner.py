"""Requests come and go: what each needs is planned into jobs that others may share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.common.model.history import RequestState, Submission
from services.common.model.instrument import Series
from services.common.model.periods import count_periods
from services.common.model.time_range import RangeSet, TimeRange
from services.relay.history import planning
from services.relay.history.job import Job, LiveRequest
from services.relay.history.state import HistoryState
from services.relay.store.schema import Batch


def accept(state: HistoryState, submission: Submission, batch: Batch, *, wall_ns: int, now_ns: int) -> LiveRequest:
    """Take a checked request on and plan it."""
    start_ns, end_ns, period = submission.start_ns, submission.end_ns, submission.period_seconds
    planned_end_ns = (
        end_ns if submission.limit is None else planning.wave_end(start_ns, end_ns, period, submission.limit)
    )
    request = LiveRequest(submission, wall_ns, planned_end_ns, now_ns)
    state.requests[submission.request_id] = request
    batch.accept(request)
    plan(state, request, request.planned, batch)
    return request


def widen(state: HistoryState, request: LiveRequest, lacking_candles: int, batch: Batch, *, now_ns: int) -> None:
    """Plan the next wave of a request with a limit: as much again as so far, or what it lacks if that is more."""
    period = request.submission.period_seconds
    periods = max(lacking_candles, count_periods(request.planned, period))
    end_ns = planning.wave_end(request.planned_end_ns, request.submission.end_ns, period, periods)
    wave = TimeRange(request.planned_end_ns, end_ns)
    request.planned_end_ns = end_ns
    request.progress_ns = now_ns
    batch.request(request)
    plan(state, request, wave, batch)


def plan(state: HistoryState, request: LiveRequest, span: TimeRange, batch: Batch) -> None:
    """Attach the request to jobs in flight and make jobs for the rest of ``span``."""
    series = request.submission.series
    covered = state.coverage[series].covered
    in_flight = {job.id: job.will_bring(covered) for job in state.jobs_of(series) if job.span.overlaps(span)}
    made = planning.plan(
        span,
        series.period_seconds,
        covered=covered.within(span),
        in_flight=in_flight,
        most_periods=state.job_periods,
    )
    for number in made.attach:
        _attach(state, request, state.jobs[number], batch)
    for part in made.new:
        job = Job(state.next_job, request.submission.request_id, request.submission.client_id, series, part)
        state.next_job += 1
        batch.job(job)
        state.add_job(job)
        state.leases.queue(job.id, series.exchange)
        _attach(state, request, job, batch)


def _attach(state: HistoryState, request: LiveRequest, job: Job, batch: Batch) -> None:
    job.requests.add(request.submission.request_id)
    request.jobs.add(job.id)
    batch.attach(request.submission.request_id, job.id)
    if job.dispatch_ids and request.state is RequestState.QUEUED:
        request.state = RequestState.RUNNING
        batch.request(request)


def replan(state: HistoryState, series: Series, spans: Sequence[TimeRange], batch: Batch, but: str = "") -> None:
    """Plan what was taken back for every request that waits for it, except the one whose end is being written."""
    if not spans:
        return
    taken = RangeSet(spans)
    for request_id, request in state.requests.items():
        if request.submission.series == series and request_id != but and not request.ending:
            for part in taken.within(request.planned):
                plan(state, request, part, batch)


def leave(state: HistoryState, request: LiveRequest, batch: Batch) -> None:
    """Take an ended request off the board; jobs nobody else waits for are fenced and forgotten."""
    request_id = request.submission.request_id
    del state.requests[request_id]
    for number in request.jobs:
        job = state.jobs[number]
        job.requests.discard(request_id)
        if not job.requests:
            state.leases.remove(number)
            state.drop_job(job)
            batch.forget(number)
