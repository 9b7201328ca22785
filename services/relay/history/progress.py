"""How far requests are, and which have waited too long. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from services.common.model.history import Progress
from services.common.model.periods import count_periods, total_periods
from services.common.model.time_range import TimeRange, subtract
from services.common.model.times import MAX_TIME_NS
from services.relay.history.job import LiveRequest
from services.relay.history.state import HistoryState


def progress(state: HistoryState, request: LiveRequest, end_ns: int | None = None) -> Progress:
    """How far a request is, up to ``end_ns`` (as far as it is planned)."""
    span = request.planned if end_ns is None else TimeRange(request.submission.start_ns, end_ns)
    period, coverage = request.submission.period_seconds, state.coverage[request.submission.series]
    jobs = [state.jobs[number] for number in request.jobs]
    acked = [part for job in jobs for part in job.acked.within(span)]
    acked_empty = [part for job in jobs for part in job.acked_empty.within(span)]
    expected = count_periods(span, period)
    settled = expected - total_periods(subtract(coverage.covered.holes(span), acked), period)
    candles = settled - total_periods([*coverage.empty.within(span), *acked_empty], period)
    expected_pages = -(-expected // state.page_periods)
    return Progress(
        expected_periods=expected,
        settled_periods=settled,
        candles=max(candles, 0),
        expected_pages=expected_pages,
        settled_pages=expected_pages if settled == expected else settled // state.page_periods,
        jobs=len(jobs),
        finished_jobs=sum(state.is_over(job.id) for job in jobs),
        running_jobs=sum(state.leases.is_running(job.id) for job in jobs),
    )


def waiting_since(state: HistoryState) -> dict[str, int]:
    """By exchange with queued jobs: when the oldest request that waits for one of them came, wall clock."""
    since: dict[str, int] = {}
    for number, job in state.jobs.items():
        if state.leases.is_queued(number):
            came = (request.submitted_ns for request in state.requests_of(job))
            since[job.series.exchange] = min([since.get(job.series.exchange, MAX_TIME_NS), *came])
    return since


def timed_out(state: HistoryState, timeout_ns: int, *, now_ns: int) -> Iterator[LiveRequest]:
    """Requests without progress for too long; time queued behind other jobs of the exchange does not count."""
    busy = state.leases.busy_exchanges()
    for request in state.requests.values():
        if request.submission.series.exchange in busy and _only_queued(state, request):
            request.progress_ns = now_ns
        elif now_ns - request.progress_ns >= timeout_ns and not request.ending:
            yield request


def _only_queued(state: HistoryState, request: LiveRequest) -> bool:
    waiting = [number for number in request.jobs if not state.is_over(number)]
    return bool(waiting) and all(state.leases.is_queued(number) for number in waiting)
