"""Everything the relay knows in memory about realtime: subscriptions, their jobs, candles still to fetch. Pure.

``realtime.py`` changes it. A change that must survive a restart is also added to the list of changes that the
caller passes; the caller commits it before anyone outside sees the change.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.realtime import StartedSubscription
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.realtime_job import RealtimeJob

MAX_FENCED = 10_000


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A range of candles that is fetched as history for a subscription, once it is over."""

    request_id: str
    subscription_id: str
    ticker: str
    period_seconds: int
    span: TimeRange
    client_id: str

    @property
    def request(self) -> HistoryRequest:
        """The request that fetches it."""
        span = self.span
        return HistoryRequest(
            self.request_id, self.ticker, span.start_ns, span.end_ns, self.period_seconds, client_id=self.client_id
        )


class Registry:
    """The one owner of subscriptions and realtime jobs; single-threaded."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.subscriptions: dict[str, StartedSubscription] = {}
        self.jobs: dict[int, RealtimeJob] = {}
        self.history: dict[str, HistoryPart] = {}
        self.last_sequence = 0
        self.dirty: set[int] = set()
        """Jobs with positions of trades that are not on disk."""
        self._by_ticker: dict[str, RealtimeJob] = {}
        self._fenced: OrderedDict[str, None] = OrderedDict()

    def job_for(self, ticker: str) -> RealtimeJob | None:
        """Return the job of an instrument."""
        return self._by_ticker.get(ticker)

    def current_job(self, dispatch_id: str) -> RealtimeJob | None:
        """Return the job whose current dispatch this is."""
        job_id = self.leases.job_of(dispatch_id)
        return None if job_id is None else self.jobs.get(job_id)

    def add_job(self, job: RealtimeJob) -> None:
        """Add a job that is new, or read from the database at start."""
        self.jobs[job.id] = self._by_ticker[job.ticker] = job

    def drop_job(self, job: RealtimeJob) -> None:
        """Forget a job."""
        del self.jobs[job.id], self._by_ticker[job.ticker]
        self.dirty.discard(job.id)

    def fence(self, dispatch_id: str) -> None:
        """Remember a dispatch that ended without its ingestor, which is told to stop if it is heard of again."""
        self._fenced[dispatch_id] = None
        if len(self._fenced) > MAX_FENCED:
            self._fenced.popitem(last=False)

    def is_fenced(self, dispatch_id: str) -> bool:
        """Return whether the dispatch ended lately without its ingestor."""
        return dispatch_id in self._fenced
