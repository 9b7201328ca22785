"""State machine of a job and its dispatches. Pure.

A job is a part of a series' history that at least one request waits for. It is fetched by one dispatch after the other,
each with its own id; at most one is current. A message under another id is fenced: it is ignored, except that pages
that the pipeline has committed become coverage under every id.

===========  ===========  ====================================================  ============================
Phase        Dispatch     Event                                                 Next
===========  ===========  ====================================================  ============================
OPEN         none         a slot is free (``assign``)                           OPEN, running
OPEN         none         its whole range is fetched (``settle``)               SETTLED
OPEN         running      the ingestor reports that Kafka has the final record  OPEN, produced
OPEN         running      the ingestor could not be reached (``end_dispatch``)  OPEN, none
OPEN         running,     the lease expired, the ingestor rejected or failed    OPEN, none; ENDED after too
             produced     it (``lose``)                                         many failures in a row
OPEN         running,     the pipeline reports the final record (``finish``)    OPEN, none if ranges are left;
             produced                                                           else ENDED
SETTLED,     none         final phases; pages may still be reported
ENDED
===========  ===========  ====================================================  ============================

A job is over (``is_over``) when it is not OPEN and the pipeline has reported all of its pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import Delay, Dispatch, FinalResult, FinalStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import RangeSet, TimeRange, subtract

MAX_BACKOFF_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of failures a job may have, and the wait after each.

    A failure is a dispatch that ended without a final record and without progress: no part of its range was settled by
    the time it ended. Only pages count, reported by the ingestor once Kafka has them or by the pipeline once they are
    committed; a heartbeat says only that the ingestor lives. A dispatch with progress leaves less to fetch, so a job
    ends if every dispatch makes progress, and one that kills every ingestor at the same page is given up.

    Attributes:
        max_attempts: Failures in a row after which the job is given up.
        backoff_ns: Wait after the first failure; doubles with each more, up to 30 s.
    """

    max_attempts: int
    backoff_ns: int

    def gives_up(self, failures_in_a_row: int) -> bool:
        """Return whether the job is given up."""
        return failures_in_a_row >= self.max_attempts

    def wait_ns(self, failures_in_a_row: int) -> int:
        """Return the wait before the next dispatch; 0 after one that made progress."""
        return min(self.backoff_ns << min(failures_in_a_row - 1, 10), MAX_BACKOFF_NS) if failures_in_a_row else 0


class Phase(IntEnum):
    """OPEN: something is left to fetch, or a dispatch is out. SETTLED: neither. ENDED: final record, or given up."""

    OPEN = 1
    SETTLED = 2
    ENDED = 3


@dataclass(slots=True)
class Job:
    """A part of a series' history to fetch.

    Attributes:
        request_id: The request that created it. It goes with every dispatch, even if other requests wait, too.
        error: First reason why pages of it are missing; may be empty.
        produced: Kafka has the final record of the current dispatch.
        sent: Range of the current dispatch.
        acked: Ranges of pages that Kafka has acknowledged, from any dispatch.
        acked_empty: The verified-empty part of ``acked``.
        refused: Ranges of pages that the pipeline could not use.
        handled: Ranges that no later dispatch fetches: the ranges of dispatches with a reported final record, and
            ranges with coverage that was retracted while a dispatch had them.
        calls: Calls of the exchange up to its last page, as far as they were reported since the relay's start.
        earlier_calls: Calls of earlier dispatches.
        delay: Delay of the current dispatch at the exchange, reported by its ingestor since the last page.
        row_count: Snapshots of all tickers that its final record counts; 0 for candles.
        taken_ns: Time of these snapshots; 0 while it is not known.
        requests: Ids of the requests that wait for it.
        dispatch_ids: Every dispatch so far. Late pages arrive under old ids.
        again: It fetches its range although that is covered. Its methods then take ``landed`` as ``covered``.
        landed: Ranges of committed pages that its dispatches fetched; only if ``again``.
        present: Ranges in which a committed page of its first dispatch, or of any later one, has candles; only if
            ``again``.
        trace: Context of the span of the request that created it, as text; empty if that is not traced.
    """

    id: int
    request_id: str
    client_id: str
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
    calls: int = 0
    earlier_calls: int = 0
    delay: Delay | None = None
    row_count: int = 0
    taken_ns: int = 0
    requests: set[str] = field(default_factory=set)
    dispatch_ids: set[str] = field(default_factory=set)
    again: bool = False
    landed: RangeSet = field(default_factory=RangeSet)
    present: RangeSet = field(default_factory=RangeSet)
    trace: str = ""

    @property
    def first_dispatch(self) -> int:
        """Number of its first dispatch; it has one."""
        return min(map(number_of, self.dispatch_ids))

    def assign(self, dispatch_id: str, covered: RangeSet) -> Dispatch:
        """Start a dispatch of the first range to fetch; other ranges follow after its final record."""
        self.dispatch_id = dispatch_id
        self.dispatch_ids.add(dispatch_id)
        self.sent = self.to_fetch(covered)[0]
        if not self.series.dataset.pages_count:  # everything is taken again
            self.error = ""
            self.taken_ns = 0
        return Dispatch(dispatch_id, self.request_id, self.series, self.sent, self.client_id)

    def end_dispatch(self) -> None:
        """End the current dispatch and fence its id."""
        self.dispatch_id = None
        self.produced = False
        self.sent = None
        self.delay = None
        self.earlier_calls = self.calls

    def lose(self, reason: str, covered: RangeSet, policy: RetryPolicy) -> None:
        """Count a dispatch that ended without a final record. It is a failure unless it made progress."""
        self.failures_in_a_row = 0 if self.made_progress(covered) else self.failures_in_a_row + 1
        if policy.gives_up(self.failures_in_a_row):
            self.phase = Phase.ENDED
            self.error = (
                f"given up after {self.failures_in_a_row} attempts in a row without a page, the last because {reason}"
            )

    def finish(self, final: FinalResult, covered: RangeSet) -> None:
        """End the current dispatch with its final record."""
        self.end_dispatch()
        self.failures_in_a_row = 0
        if final.status is FinalStatus.ERROR:
            self.error = final.error or "the ingestor gave no reason"
        if not self.series.dataset.pages_count:
            self.row_count = final.total_records
        if final.status is FinalStatus.ERROR or not self.to_fetch(covered):
            self.phase = Phase.ENDED

    def settle(self, covered: RangeSet) -> bool:
        """Settle a job without a dispatch if its whole range is fetched; return whether it was settled now."""
        if self.phase is not Phase.OPEN or self.dispatch_id is not None or self.to_fetch(covered):
            return False
        self.phase = Phase.SETTLED
        return True

    def to_fetch(self, covered: RangeSet) -> list[TimeRange]:
        """Return the ranges that are neither settled nor handled."""
        return subtract(covered.holes(self.span), [*self.acked, *self.handled])

    def made_progress(self, covered: RangeSet) -> bool:
        """Return whether part of the current dispatch's range was settled since it was sent, by any dispatch.

        The range was unsettled when it was sent. A late page of an earlier dispatch leaves less to fetch as well.
        """
        settled = [*self.acked.within(self.sent), *covered.within(self.sent)] if self.sent else []
        return bool(subtract(settled, self.handled))

    def in_pipeline(self, covered: RangeSet) -> list[TimeRange]:
        """Return the ranges of pages that Kafka has and the pipeline has not reported yet."""
        return subtract(self.acked, [*covered.within(self.span), *self.refused])

    def may_cover(self, covered: RangeSet) -> list[TimeRange]:
        """Return the ranges that the job may still cover."""
        in_pipeline = self.in_pipeline(covered)
        if self.phase is not Phase.OPEN:
            return in_pipeline
        refused = [part for each in self.refused for part in self.acked.within(each)]  # the rest is fetched again
        return subtract([self.span], subtract([*refused, *self.handled], in_pipeline))

    def is_over(self, covered: RangeSet) -> bool:
        """Return whether the job is over: no page is to come, not even a late one of a fenced dispatch."""
        return self.phase is not Phase.OPEN and not self.in_pipeline(covered)
