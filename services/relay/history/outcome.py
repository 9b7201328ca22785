"""Outcome of a request whose jobs are all over: coverage compared with the open times in the table.

Coverage promises a row or a verified hole for every period. The table must confirm it period by period, since a surplus
row in one place would make up for a lost one in a mere count. Where the table still lacks rows after some attempts, the
request ends as ERROR with the exact lost ranges, and their coverage is retracted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, retry_if_result, stop_after_attempt, wait_exponential

from services.common.clock import Clock
from services.common.lake.tables import OHLC
from services.common.model.errors import Unavailable
from services.common.model.history import Outcome
from services.common.model.periods import next_open, total_periods
from services.common.model.time_range import TimeRange, intersect, merge, subtract
from services.relay.history import coverage, planner
from services.relay.history.request import LiveRequest, decide
from services.relay.history.retraction_log import RetractionLog
from services.relay.history.state import HistoryState
from services.relay.history.table_reader import RowCount, TableReader
from services.relay.store.schema import Batch

log = structlog.get_logger(__name__)
MAX_RETRACTED_RANGES = 1_000
LOST = "the table lacks rows that were reported as committed"


@dataclass(frozen=True, slots=True)
class Reading:
    """Coverage and table read together. All ranges are inside ``span``, which ends where the limit was reached.

    Attributes:
        lost: Ranges claimed as rows that have no row.
    """

    span: TimeRange
    missing: list[TimeRange]
    empty: list[TimeRange]
    count: RowCount
    lost: list[TimeRange]


class OutcomeDecider:
    """Works out outcomes."""

    def __init__(
        self, state: HistoryState, reader: TableReader, retraction_log: RetractionLog, clock: Clock, *, attempts: int
    ) -> None:
        """Read the table at most ``attempts`` times before rows are considered lost."""
        self._state = state
        self._reader = reader
        self._retraction_log = retraction_log
        self._clock = clock
        self._attempts = attempts

    async def decide(self, live: LiveRequest, batch: Batch) -> Outcome | None:
        """Return the outcome, or None if a further wave was planned or the request was ended meanwhile.

        In either case the batch holds changes that must be made durable next.

        Raises:
            Unavailable: The table cannot be read, or coverage cannot be retracted now.
        """
        reading = await self._read(live)
        if reading.lost:
            await self._retract(live, reading.lost, batch)
        if live.ending:
            return None
        limit, count = live.request.limit, reading.count
        lacking = 0 if limit is None or count.last_open_ns is not None else limit - count.rows
        missing = merge([*reading.missing, *reading.lost])
        if not missing and lacking and live.planned_end_ns < live.request.end_ns:
            planner.widen(self._state, live, lacking, batch, now_ns=self._clock.monotonic_ns())
            return None
        return decide(
            end_ns=reading.span.end_ns,
            missing=missing,
            job_errors=[LOST] * bool(reading.lost) + self._state.errors(live),
            row_count=count.rows,
            empty_periods=total_periods(reading.empty, live.request.period_seconds),
            snapshot_id=count.snapshot_id,
            completed_ns=self._clock.wall_ns(),
        )

    async def _retract(self, live: LiveRequest, lost: list[TimeRange], batch: Batch) -> None:
        """Plan new jobs for other requests that wait for lost ranges; this request ends and names them."""
        series, request_id = live.request.series, live.request.request_id
        log.error(LOST, request_id=request_id, ranges=len(lost))
        # following very many ranges one by one would delay everybody, so the ranges between them are retracted too
        spans = lost if len(lost) <= MAX_RETRACTED_RANGES else [TimeRange(lost[0].start_ns, lost[-1].end_ns)]
        retracted_ns = await self._retraction_log.record(series, spans, LOST)
        coverage.retract(self._state, series, spans, retracted_ns, batch)
        planner.replan(self._state, series, spans, batch, skip=request_id)

    async def _read(self, live: LiveRequest) -> Reading:
        """Read until the table confirms coverage, or the attempts are used up."""
        attempts = AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential(multiplier=0.2, max=5),
            retry=retry_if_result(lambda reading: bool(reading.lost)) | retry_if_exception_type(Exception),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        try:
            found: Reading = await attempts(self._read_once, live)
        except Exception as error:  # catalog, object store and file system raise errors of their own
            raise Unavailable(f"{OHLC.name} can't be read: {error}") from error
        return found

    async def _read_once(self, live: LiveRequest) -> Reading:
        # coverage and snapshot before the count: later commits may add rows but never remove any
        request, state, span = live.request, self._state, live.planned
        missing, empty = state.missing(live, span.end_ns), state.empty(live, span.end_ns)
        count = await asyncio.to_thread(self._reader.count, request.series, span, state.snapshot_id, request.limit)
        if count.last_open_ns is not None:
            span = TimeRange(span.start_ns, next_open(count.last_open_ns, request.period_seconds))
        return make_reading(span, missing, empty, count)


def make_reading(span: TimeRange, missing: list[TimeRange], empty: list[TimeRange], count: RowCount) -> Reading:
    """Cut coverage to ``span`` and return it with the rows that it claims and the table lacks. Pure."""
    missing, empty = intersect(missing, span), intersect(empty, span)
    return Reading(span, missing, empty, count, subtract([span], [*missing, *empty, *count.candles]))
