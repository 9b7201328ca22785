"""What there is: requests without an end, their jobs, every dispatch of those, coverage. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, ValuesView
from dataclasses import dataclass, field

from services.common.lake.coverage import Retractions
from services.common.model.instrument import Series
from services.common.model.time_range import RangeSet, TimeRange
from services.relay.broker.leases import Leases
from services.relay.broker.retry_policy import RetryPolicy
from services.relay.history.job import Job, LiveRequest


@dataclass(slots=True)
class Coverage:
    """What a market has in the table: committed ranges, and the verified-empty part of them."""

    covered: RangeSet = field(default_factory=RangeSet)
    empty: RangeSet = field(default_factory=RangeSet)


class HistoryState:
    """The one owner of requests, jobs and coverage; single-threaded."""

    def __init__(self, leases: Leases, retry_policy: RetryPolicy, *, job_periods: int, page_periods: int) -> None:
        self.leases = leases
        self.retry_policy = retry_policy
        self.job_periods = job_periods
        self.page_periods = page_periods
        self.requests: dict[str, LiveRequest] = {}
        self.jobs: dict[int, Job] = {}
        self.coverage: defaultdict[Series, Coverage] = defaultdict(Coverage)
        self.retractions: defaultdict[Series, Retractions] = defaultdict(Retractions)
        self.snapshot_id: int | None = None
        self.next_job = 1
        self._by_dispatch_id: dict[str, int] = {}
        self._by_market: defaultdict[Series, dict[int, Job]] = defaultdict(dict)

    def add_job(self, job: Job) -> None:
        """Put a job on the board; new, or read back at start."""
        self.jobs[job.id] = job
        self._by_market[job.series][job.id] = job
        self._by_dispatch_id.update(dict.fromkeys(job.dispatch_ids, job.id))

    def add_dispatch(self, job: Job, dispatch_id: str) -> None:
        """A job goes out under a new job_id, which stays known as long as the job: late pages come under old ones."""
        job.dispatch_id = dispatch_id
        job.produced = False
        job.dispatch_ids[dispatch_id] = self.retractions[job.series].latest_ns
        self._by_dispatch_id[dispatch_id] = job.id

    def drop_job(self, job: Job) -> None:
        """Forget a job and all its dispatches."""
        del self.jobs[job.id]
        self._by_market[job.series].pop(job.id)
        for dispatch_id in job.dispatch_ids:
            del self._by_dispatch_id[dispatch_id]

    def job_of(self, dispatch_id: str) -> Job | None:
        """The job of a dispatch, fenced ones too."""
        number = self._by_dispatch_id.get(dispatch_id)
        return None if number is None else self.jobs[number]

    def current_job(self, dispatch_id: str) -> Job | None:
        """The job whose current dispatch this is."""
        number = self.leases.job_of(dispatch_id)
        return None if number is None else self.jobs[number]

    def jobs_of(self, series: Series) -> ValuesView[Job]:
        """The jobs of a market, oldest first."""
        return self._by_market[series].values()

    def is_over(self, number: int) -> bool:
        """Whether nothing more will come of a job."""
        job = self.jobs[number]
        return job.is_over(self.coverage[job.series].covered)

    def ready(self, request: LiveRequest) -> bool:
        """Whether all jobs of a request are over, so that its end, or its next wave, can be worked out."""
        return all(self.is_over(number) for number in request.jobs)

    def missing(self, request: LiveRequest, end_ns: int) -> list[TimeRange]:
        """What the table lacks of a request's range up to ``end_ns``."""
        span = TimeRange(request.submission.start_ns, end_ns)
        return self.coverage[request.submission.series].covered.holes(span)

    def empty(self, request: LiveRequest, end_ns: int) -> list[TimeRange]:
        """The verified-empty part of a request's range up to ``end_ns``."""
        span = TimeRange(request.submission.start_ns, end_ns)
        return self.coverage[request.submission.series].empty.within(span)

    def errors(self, request: LiveRequest) -> list[str]:
        """Why jobs of a request failed, in time order."""
        jobs = sorted((self.jobs[number] for number in request.jobs), key=lambda job: job.span)
        return [job.error for job in jobs if job.error]

    def requests_of(self, job: Job) -> Iterator[LiveRequest]:
        """Who waits for a job."""
        return (self.requests[request_id] for request_id in job.requests)
