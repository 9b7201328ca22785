"""Everything the relay knows in memory: unfinished requests, their jobs and dispatches, coverage. Pure.

The other modules of this folder change it. A change that must survive a restart is also added to the caller's list of
changes; the caller commits it before anyone outside sees the change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, ValuesView
from dataclasses import dataclass, field

from dexorder_common.lake.coverage import Retractions
from dexorder_common.model.history import Dispatch, Progress
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import count_periods, total_periods
from dexorder_common.model.time_range import RangeSet, TimeRange, intersect, merge, subtract
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.state.job import Job, RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.provisional import ProvisionalRanges, hull, join_near
from dexorder_relay.state.request import LiveRequest

WITHOUT_PERIODS_SECONDS = 3_600
"""Progress of a dataset without periods counts hours in place of periods."""
MAX_LISTED = 100
"""Number of provisional ranges above which near ones are listed as one."""


@dataclass(slots=True)
class SeriesCoverage:
    """Coverage of one series: committed ranges, and the verified-empty part of them.

    Attributes:
        found: Provisional absences that turned out to have candles, until that is announced.
    """

    covered: RangeSet = field(default_factory=RangeSet)
    empty: RangeSet = field(default_factory=RangeSet)
    found: RangeSet = field(default_factory=RangeSet)


class HistoryState:
    """The one owner of requests, jobs and coverage; single-threaded."""

    def __init__(
        self,
        leases: Leases,
        retry_policy: RetryPolicy,
        *,
        job_periods: int,
        page_periods: int,
        recheck_after_ns: Sequence[int] = (),
    ) -> None:
        self.leases = leases
        self.provisional = ProvisionalRanges(recheck_after_ns)
        self.retry_policy = retry_policy
        self.job_periods = job_periods
        self.page_periods = page_periods
        self.requests: dict[str, LiveRequest] = {}
        self.jobs: dict[int, Job] = {}
        self.coverage: defaultdict[Series, SeriesCoverage] = defaultdict(SeriesCoverage)
        self.retractions: defaultdict[Series, Retractions] = defaultdict(Retractions)
        self.next_job = 1
        self._by_dispatch_id: dict[str, Job] = {}
        self._by_series: defaultdict[Series, dict[int, Job]] = defaultdict(dict)

    def new_job_id(self) -> int:
        """Return the id of a new job, of history or not."""
        self.next_job += 1
        return self.next_job - 1

    def add_job(self, job: Job) -> None:
        """Add a job that is new, or read from the database at start."""
        self.jobs[job.id] = job
        self._by_series[job.series][job.id] = job
        self._by_dispatch_id.update(dict.fromkeys(job.dispatch_ids, job))

    def drop_job(self, job: Job) -> None:
        """Forget a job and all its dispatches."""
        del self.jobs[job.id]
        self._by_series[job.series].pop(job.id)
        for dispatch_id in job.dispatch_ids:
            del self._by_dispatch_id[dispatch_id]

    def add_dispatch(self, job: Job, dispatch_id: str) -> Dispatch:
        """Start a dispatch; its id stays known as long as the job, as late pages arrive under old ids."""
        self._by_dispatch_id[dispatch_id] = job
        return job.assign(dispatch_id, self.settled(job))

    def job_of(self, dispatch_id: str) -> Job | None:
        """Return the job of a dispatch, which may be fenced."""
        return self._by_dispatch_id.get(dispatch_id)

    def current_job(self, dispatch_id: str) -> Job | None:
        """Return the job of history with this current dispatch."""
        job_id = self.leases.job_of(dispatch_id)
        return None if job_id is None else self.jobs.get(job_id)

    def jobs_of(self, series: Series) -> ValuesView[Job]:
        """Return the jobs of a series, oldest first."""
        return self._by_series[series].values()

    def is_over(self, job_id: int) -> bool:
        """Return whether a job is over."""
        job = self.jobs[job_id]
        return job.is_over(self.settled(job))

    def requests_of(self, job: Job) -> Iterator[LiveRequest]:
        """Yield the requests that wait for a job."""
        return (self.requests[request_id] for request_id in job.requests)

    def is_ready(self, live: LiveRequest) -> bool:
        """Return whether all jobs of a request are over, so that its outcome or next wave can be worked out."""
        return live.is_planned and all(map(self.is_over, live.jobs))

    def covered(self, series: Series) -> RangeSet:
        """Return the committed ranges of a series."""
        return self.coverage[series].covered

    def settled(self, job: Job) -> RangeSet:
        """Return the ranges that a job need not fetch: the covered ones, or those it has fetched although covered."""
        return job.landed if job.again else self.covered(job.series)

    def not_fetched(self, live: LiveRequest) -> list[TimeRange]:
        """Return the ranges that a request fetches although they are covered, and that are not fetched yet.

        Another request that waits for such a job needs only the ranges that are not covered.
        """
        holes = [hole for job in self.jobs_again(live) for hole in job.landed.holes(job.span)]
        if live.request.fetches_covered and not live.is_planned:
            holes.append(TimeRange(live.planned_end_ns, live.request.end_ns))
        return merge(holes)

    def jobs_again(self, live: LiveRequest) -> list[Job]:
        """Return the jobs of a request that fetch its range although it is covered."""
        jobs = [self.jobs[job_id] for job_id in live.jobs if live.request.fetches_covered]
        return [job for job in jobs if job.again]

    def vanished(self, job: Job) -> list[TimeRange]:
        """Return the ranges in which a job that fetches again found no candle, and coverage claims some."""
        coverage = self.coverage[job.series]
        absent = subtract(job.landed, job.present)
        claimed = [part for each in absent for part in coverage.covered.within(each)]
        return subtract(claimed, coverage.empty)

    def queried_again(self, series: Series) -> list[TimeRange]:
        """Return the covered ranges of a series that jobs are fetching again, without ranges that have new pages."""
        jobs = (job for job in self.jobs_of(series) if job.again and not self.is_over(job.id))
        return merge(hole for job in jobs for hole in job.landed.holes(job.span))

    def claims(self, series: Series, span: TimeRange) -> tuple[list[TimeRange], list[TimeRange]]:
        """Return the committed ranges of a series inside ``span``, and the verified-empty part of them."""
        coverage = self.coverage.get(series)
        return (coverage.covered.within(span), coverage.empty.within(span)) if coverage else ([], [])

    def provisional_in(self, series: Series, span: TimeRange) -> list[TimeRange]:
        """Return the verified-empty ranges of a series inside ``span`` that are not final.

        In a thin market they are joined, with the rows between them, because their number would exceed every message.
        """
        coverage = self.coverage.get(series)
        known = self.provisional.within(series, span) if coverage else []
        parts = [part for each in known if coverage and (part := hull(coverage.empty.within(each)))]
        if len(parts) <= MAX_LISTED:
            return parts
        return [each for each, _ in join_near(((part, 0) for part in parts), series.period_seconds)]

    def missing(self, live: LiveRequest, end_ns: int) -> list[TimeRange]:
        """Return the ranges of a request up to ``end_ns`` that are not covered, or not fetched again as they must."""
        span = TimeRange(live.request.start_ns, end_ns)
        return merge([*self.covered(live.request.series).holes(span), *intersect(self.not_fetched(live), span)])

    def errors(self, live: LiveRequest) -> list[str]:
        """Return the errors of a request's jobs, in time order."""
        jobs = sorted((self.jobs[job_id] for job_id in live.jobs), key=lambda job: job.span)
        return [job.error for job in jobs if job.error]


def progress(state: HistoryState, live: LiveRequest, end_ns: int | None = None) -> Progress:
    """Return the progress of a request up to ``end_ns``, or the end of its range or of its waves."""
    if end_ns is None:
        end_ns = live.request.end_ns if live.request.limit is None else live.planned_end_ns
    span = TimeRange(live.request.start_ns, end_ns)
    dataset, coverage = live.request.dataset, state.coverage[live.request.series]
    period = live.request.period_seconds if dataset.has_periods else WITHOUT_PERIODS_SECONDS
    jobs = [state.jobs[job_id] for job_id in live.jobs]
    acked = [part for job in jobs for part in job.acked.within(span)]
    acked_empty = [part for job in jobs for part in job.acked_empty.within(span)]
    expected = count_periods(span, period)
    unsettled = [*coverage.covered.holes(span), *intersect(state.not_fetched(live), span)]
    settled = expected - total_periods(subtract(unsettled, acked), period)
    candles = settled - total_periods([*coverage.empty.within(span), *acked_empty], period)
    expected_pages = -(-expected // state.page_periods)
    return Progress(
        live.state,
        expected_periods=expected,
        settled_periods=settled,
        candles=max(candles, 0) if dataset.has_periods else 0,
        expected_pages=expected_pages,
        settled_pages=expected_pages if settled == expected else settled // state.page_periods,
        jobs=len(jobs),
        finished_jobs=sum(state.is_over(job.id) for job in jobs),
        running_jobs=sum(state.leases.is_running(job.id) for job in jobs),
        waiting=live.waiting,
        calls=sum(job.calls for job in jobs),
        delay=next((job.delay for job in jobs if job.delay), None),
    )


def waiting_since(state: HistoryState) -> dict[str, int]:
    """Return, by exchange with queued jobs, the wall clock time of the oldest request that waits for one of them."""
    since: dict[str, int] = {}
    for job_id, job in state.jobs.items():
        if state.leases.is_queued(job_id):
            submitted = (live.submitted_ns for live in state.requests_of(job))
            since[job.series.exchange] = min([since.get(job.series.exchange, MAX_TIME_NS), *submitted])
    return since


def timed_out(state: HistoryState, timeout_ns: int, *, now_ns: int) -> Iterator[LiveRequest]:
    """Yield requests without progress for the timeout; time queued behind other jobs of the exchange does not count."""
    busy = state.leases.busy_exchanges()
    for live in state.requests.values():
        if live.request.series.exchange in busy and _only_queued(state, live):
            live.progress_ns = now_ns
        elif now_ns - live.progress_ns >= timeout_ns and not live.ending:
            yield live


def _only_queued(state: HistoryState, live: LiveRequest) -> bool:
    waiting = [job_id for job_id in live.jobs if not state.is_over(job_id)]
    return bool(waiting) and all(map(state.leases.is_queued, waiting))
