"""How a request whose jobs are all over ends: look at coverage, read the open times, compare, decide.

Coverage promises a row or a verified hole for every period. The table has to bear the promise out period by period,
since a row too many in one place would make up for a lost one in a mere count. Where it lacks rows that coverage
claims, and still does after some tries, the request ends as ERROR with the exact lost periods, and their coverage is
taken back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    wait_exponential,
)

from services.common.clock import Clock
from services.common.model.errors import Unavailable
from services.common.model.history import Outcome
from services.common.model.periods import next_open, total_periods
from services.common.model.time_range import TimeRange, intersect, merge, subtract
from services.relay.history import coverage, planner
from services.relay.history import request as requests
from services.relay.history.job import LiveRequest
from services.relay.history.retraction_log import RetractionLog
from services.relay.history.state import HistoryState
from services.relay.history.table_reader import RowCount, TableReader
from services.relay.store.schema import Batch

log = structlog.get_logger(__name__)
MOST_TAKEN = 1_000
LOST = "the table lacks rows that were reported as committed"


@dataclass(frozen=True, slots=True)
class Finding:
    """Coverage and table, looked at together; everything inside ``span``, which ends where the limit was reached.

    Attributes:
        lost: Claimed as rows, and there is none.
    """

    span: TimeRange
    missing: list[TimeRange]
    empty: list[TimeRange]
    count: RowCount
    lost: list[TimeRange]


class OutcomeDecider:
    """Works out ends; the only one who reads the table."""

    def __init__(
        self, state: HistoryState, reader: TableReader, retraction_log: RetractionLog, clock: Clock, *, attempts: int
    ) -> None:
        self._state = state
        self._reader = reader
        self._retraction_log = retraction_log
        self._clock = clock
        self._attempts = attempts

    async def decide(self, request: LiveRequest, batch: Batch) -> Outcome | None:
        """The request's end, or None when a further wave was planned or the request was ended meanwhile.

        Whatever it returns, the batch holds changes that must be made durable next.

        Raises:
            Unavailable: The table can't be read, or coverage can't be taken back now.
        """
        finding = await self._look(request)
        if finding.lost:
            await self._take_back(request, finding.lost, batch)
        if request.ending:
            return None
        limit, count = request.submission.limit, finding.count
        lacking = 0 if limit is None or count.last_open_ns is not None else limit - count.rows
        missing = merge([*finding.missing, *finding.lost])
        if not missing and lacking and request.planned_end_ns < request.submission.end_ns:
            planner.widen(self._state, request, lacking, batch, now_ns=self._clock.monotonic_ns())
            return None
        return requests.decide(
            end_ns=finding.span.end_ns,
            missing=missing,
            job_errors=[LOST] * bool(finding.lost) + self._state.errors(request),
            row_count=count.rows,
            empty_periods=total_periods(finding.empty, request.submission.period_seconds),
            snapshot_id=count.snapshot_id,
            completed_ns=self._clock.wall_ns(),
        )

    async def _take_back(self, request: LiveRequest, lost: list[TimeRange], batch: Batch) -> None:
        """Others who wait for what is lost get new jobs for it; this request ends and says so."""
        series = request.submission.series
        log.error(LOST, request_id=request.submission.request_id, ranges=len(lost))
        # too many to follow one by one without keeping everybody waiting: then all between them too
        taken = lost if len(lost) <= MOST_TAKEN else [TimeRange(lost[0].start_ns, lost[-1].end_ns)]
        retracted_ns = await self._retraction_log.record(series, taken, LOST)
        coverage.retract(self._state, series, taken, retracted_ns, batch)
        planner.replan(self._state, series, taken, batch, but=request.submission.request_id)

    async def _look(self, request: LiveRequest) -> Finding:
        """Look until the table bears out what coverage says, or the tries are used up."""
        tries = AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential(multiplier=0.2, max=5),
            retry=retry_if_result(lambda finding: bool(finding.lost)) | retry_if_exception_type(Exception),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        try:
            found: Finding = await tries(self._look_once, request)
        except Exception as error:  # catalog, object store, file system: each has errors of its own
            raise Unavailable(f"trading.ohlc can't be read: {error}") from error
        return found

    async def _look_once(self, request: LiveRequest) -> Finding:
        # coverage and snapshot before the count: what is committed later may add rows, never take some away
        submission, state, span = request.submission, self._state, request.planned
        missing, empty = state.missing(request, span.end_ns), state.empty(request, span.end_ns)
        count = await asyncio.to_thread(
            self._reader.count, submission.series, span, state.snapshot_id, submission.limit
        )
        if count.last_open_ns is not None:
            span = TimeRange(span.start_ns, next_open(count.last_open_ns, submission.period_seconds))
        return make_finding(span, missing, empty, count)


def make_finding(span: TimeRange, missing: list[TimeRange], empty: list[TimeRange], count: RowCount) -> Finding:
    """Cut what coverage says to ``span`` and work out which of the rows it claims the table lacks. Pure."""
    missing, empty = intersect(missing, span), intersect(empty, span)
    return Finding(span, missing, empty, count, subtract([span], [*missing, *empty, *count.candles]))
