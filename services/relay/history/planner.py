"""Requests come and go: what each needs is planned into jobs that others may share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.common.model.history import Market, State, Submission
from services.common.model.periods import count_periods
from services.common.model.time_range import RangeSet, TimeRange
from services.relay.history import planning
from services.relay.history.job import Job, LiveRequest
from services.relay.history.state import Board
from services.relay.store.schema import Batch


def accept(board: Board, submission: Submission, batch: Batch, *, wall_ns: int, now_ns: int) -> LiveRequest:
    """Take a checked request on and plan it."""
    start_ns, end_ns, period = submission.start_ns, submission.end_ns, submission.period_seconds
    planned_end_ns = (
        end_ns if submission.limit is None else planning.wave_end(start_ns, end_ns, period, submission.limit)
    )
    request = LiveRequest(submission, wall_ns, planned_end_ns, now_ns)
    board.requests[submission.request_id] = request
    batch.accept(request)
    plan(board, request, request.planned, batch)
    return request


def widen(board: Board, request: LiveRequest, lacking_candles: int, batch: Batch, *, now_ns: int) -> None:
    """Plan the next wave of a request with a limit: as much again as so far, or what it lacks if that is more."""
    period = request.submission.period_seconds
    periods = max(lacking_candles, count_periods(request.planned, period))
    end_ns = planning.wave_end(request.planned_end_ns, request.submission.end_ns, period, periods)
    wave = TimeRange(request.planned_end_ns, end_ns)
    request.planned_end_ns = end_ns
    request.progress_ns = now_ns
    batch.request(request)
    plan(board, request, wave, batch)


def plan(board: Board, request: LiveRequest, span: TimeRange, batch: Batch) -> None:
    """Attach the request to jobs in flight and make jobs for the rest of ``span``."""
    market = request.submission.market
    covered = board.coverage[market].covered
    in_flight = {job.number: job.will_bring(covered) for job in board.jobs_of(market) if job.span.overlaps(span)}
    made = planning.plan(
        span,
        market.period_seconds,
        covered=covered.within(span),
        in_flight=in_flight,
        most_periods=board.job_periods,
    )
    for number in made.attach:
        _attach(board, request, board.jobs[number], batch)
    for part in made.new:
        job = Job(board.next_job, request.submission.request_id, request.submission.client_id, market, part)
        board.next_job += 1
        batch.job(job)
        board.add_job(job)
        board.dispatcher.queue(job.number, market.exchange)
        _attach(board, request, job, batch)


def _attach(board: Board, request: LiveRequest, job: Job, batch: Batch) -> None:
    job.requests.add(request.submission.request_id)
    request.jobs.add(job.number)
    batch.attach(request.submission.request_id, job.number)
    if job.job_ids and request.state is State.QUEUED:
        request.state = State.RUNNING
        batch.request(request)


def replan(board: Board, market: Market, spans: Sequence[TimeRange], batch: Batch, but: str = "") -> None:
    """Plan what was taken back for every request that waits for it, except the one whose end is being written."""
    if not spans:
        return
    taken = RangeSet(spans)
    for request_id, request in board.requests.items():
        if request.submission.market == market and request_id != but and not request.ending:
            for part in taken.within(request.planned):
                plan(board, request, part, batch)


def leave(board: Board, request: LiveRequest, batch: Batch) -> None:
    """Take an ended request off the board; jobs nobody else waits for are fenced and forgotten."""
    request_id = request.submission.request_id
    del board.requests[request_id]
    for number in request.jobs:
        job = board.jobs[number]
        job.requests.discard(request_id)
        if not job.requests:
            board.dispatcher.remove(number)
            board.drop_job(job)
            batch.forget(number)
