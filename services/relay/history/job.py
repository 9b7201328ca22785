"""A job and a request while they live in memory, with what can be said of one alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from services.common.model.history import RequestState, Submission
from services.common.model.instrument import Series
from services.common.model.time_range import RangeSet, TimeRange, subtract


class Phase(IntEnum):
    """OPEN: something to fetch or a dispatch out. SETTLED: neither. ENDED: has its final, or no more tries."""

    OPEN = 1
    SETTLED = 2
    ENDED = 3


@dataclass(slots=True)
class Job:
    """A part of a market's history that somebody waits for.

    Attributes:
        request_id: The request that made it; it goes with every dispatch, whoever else waits.
        fruitless: Attempts in a row that brought nothing (`attempts.py`).
        acked: Settled by pages that Kafka has acknowledged, of any of its dispatches.
        acked_empty: The verified-empty part of that.
        refused: Pages the pipeline could not use.
        sent: The range of the current dispatch.
        handled: What no dispatch of it is to bring any more: ranges of dispatches that had their final record reported,
            and those whose coverage was taken back while it had them in hand.
        job_ids: Every dispatch so far, with the time of the market's latest retraction before it (nanoseconds); late
            pages come under old ones.
    """

    id: int
    request_id: str
    client_id: str | None
    series: Series
    span: TimeRange
    phase: Phase = Phase.OPEN
    error: str = ""
    failures_in_a_row: int = 0
    dispatch_id: str | None = None
    produced: bool = False
    sent: TimeRange | None = None
    acked: RangeSet = field(default_factory=RangeSet)
    acked_empty: RangeSet = field(default_factory=RangeSet)
    refused: RangeSet = field(default_factory=RangeSet)
    handled: RangeSet = field(default_factory=RangeSet)
    requests: set[str] = field(default_factory=set)
    dispatch_ids: dict[str, int] = field(default_factory=dict)

    def to_fetch(self, covered: RangeSet) -> list[TimeRange]:
        """What the next dispatch must bring: nobody has settled it, and no final was given for it."""
        return subtract(covered.holes(self.span), [*self.acked, *self.handled])

    def made_progress(self, covered: RangeSet) -> bool:
        """Whether part of what the current dispatch was sent for has been settled since; none of it was when it went.

        By whomever: a late page of a dispatch before it leaves less to fetch as well.
        """
        settled = [*self.acked.within(self.sent), *covered.within(self.sent)] if self.sent else []
        return bool(subtract(settled, self.handled))

    def under_way(self, covered: RangeSet) -> list[TimeRange]:
        """Pages that Kafka has and the pipeline has not reported yet, good or refused."""
        return subtract(self.acked, [*covered.within(self.span), *self.refused])

    def will_bring(self, covered: RangeSet) -> list[TimeRange]:
        """The part of its range that it may still cover."""
        under_way = self.under_way(covered)
        if self.phase is not Phase.OPEN:
            return under_way
        refused = [part for each in self.refused for part in self.acked.within(each)]  # the rest is fetched again
        return subtract([self.span], subtract([*refused, *self.handled], under_way))

    def is_over(self, covered: RangeSet) -> bool:
        """Whether nothing more will come of it, late pages of fenced dispatches included."""
        return self.phase is not Phase.OPEN and not self.under_way(covered)


@dataclass(frozen=True, slots=True)
class LostDispatch:
    """A dispatch that ended without a result.

    Attributes:
        dead: Its job is given up; else it is queued again, or has nothing left to fetch.
    """

    job: Job
    made_progress: bool
    dead: bool


@dataclass(slots=True)
class LiveRequest:
    """A request without its final status.

    Attributes:
        planned_end_ns: How far it is planned; before its end only where ``limit`` makes it go in waves.
        progress_ns: Monotonic time of its last progress, for the timeout.
        deciding: Its end is being worked out or written; nothing else may end it meanwhile, except as ``ending`` says.
        ending: Its end is chosen and on its way to disk.
    """

    submission: Submission
    submitted_ns: int
    planned_end_ns: int
    progress_ns: int
    state: RequestState = RequestState.QUEUED
    jobs: set[int] = field(default_factory=set)
    deciding: bool = False
    ending: bool = False
    retry_ns: int = 0

    @property
    def planned(self) -> TimeRange:
        """The part of its range that is planned."""
        return TimeRange(self.submission.start_ns, self.planned_end_ns)
