"""How far requests are, and which have waited too long. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from services.common.model.history import Progress
from services.common.model.periods import count_periods, total_periods
from services.common.model.time_range import TimeRange, subtract
from services.common.model.times import MAX_TIME_NS
from services.relay.history.job import LiveRequest
from services.relay.history.state import Board


def progress(board: Board, request: LiveRequest, end_ns: int | None = None) -> Progress:
    """How far a request is, up to ``end_ns`` (as far as it is planned)."""
    span = request.planned if end_ns is None else TimeRange(request.submission.start_ns, end_ns)
    period, coverage = request.submission.period_seconds, board.coverage[request.submission.market]
    jobs = [board.jobs[number] for number in request.jobs]
    acked = [part for job in jobs for part in job.acked.within(span)]
    acked_empty = [part for job in jobs for part in job.acked_empty.within(span)]
    expected = count_periods(span, period)
    settled = expected - total_periods(subtract(coverage.covered.holes(span), acked), period)
    candles = settled - total_periods([*coverage.empty.within(span), *acked_empty], period)
    expected_pages = -(-expected // board.page_periods)
    return Progress(
        expected_periods=expected,
        settled_periods=settled,
        candles=max(candles, 0),
        expected_pages=expected_pages,
        settled_pages=expected_pages if settled == expected else settled // board.page_periods,
        jobs=len(jobs),
        finished_jobs=sum(board.is_over(job.number) for job in jobs),
        running_jobs=sum(board.dispatcher.is_running(job.number) for job in jobs),
    )


def waiting_since(board: Board) -> dict[str, int]:
    """By exchange with queued jobs: when the oldest request that waits for one of them came, wall clock."""
    since: dict[str, int] = {}
    for number, job in board.jobs.items():
        if board.dispatcher.is_queued(number):
            came = (request.submitted_ns for request in board.requests_of(job))
            since[job.market.exchange] = min([since.get(job.market.exchange, MAX_TIME_NS), *came])
    return since


def timed_out(board: Board, timeout_ns: int, *, now_ns: int) -> Iterator[LiveRequest]:
    """Requests without progress for too long; time queued behind other jobs of the exchange does not count."""
    busy = board.dispatcher.busy_exchanges()
    for request in board.requests.values():
        if request.submission.market.exchange in busy and _only_queued(board, request):
            request.progress_ns = now_ns
        elif now_ns - request.progress_ns >= timeout_ns and not request.ending:
            yield request


def _only_queued(board: Board, request: LiveRequest) -> bool:
    waiting = [number for number in request.jobs if not board.is_over(number)]
    return bool(waiting) and all(board.dispatcher.is_queued(number) for number in waiting)
