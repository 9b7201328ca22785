"""Outcome of a request after the end of its jobs: coverage compared with the open times in the table.

Coverage promises a row or a verified hole for every period. The table, at its current snapshot, must confirm it period
by period, since a surplus row in one place would make up for a lost one in a mere count. Where the table still lacks
rows after some attempts, the request ends as ERROR with the exact lost ranges, and their coverage is retracted. Rows
that the table must not have (duplicates, off the grid, in verified-empty ranges) end it as ERROR too.
"""

from __future__ import annotations

import asyncio
import time

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, retry_if_result, stop_after_attempt, wait_exponential

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import HistoryRequest, Outcome
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_relay.reading.table_reader import Reading, compare_rows
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.retraction_log import RetractionLog
from dexorder_relay.state import coverage, planner
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.compare import CoverageComparison
from dexorder_relay.state.request import LiveRequest, decide, describe_wrong

log = structlog.get_logger(__name__)
MAX_RETRACTED_RANGES = 1_000
LOST = "the table lacks rows that were reported as committed"


class OutcomeDecider:
    """Works out outcomes."""

    def __init__(self, context: Context, retraction_log: RetractionLog) -> None:
        self._context = context
        self._state = context.state
        self._store = context.store
        self._reader = context.reader
        self._clock = context.clock
        self._attempts = context.settings.count_attempts
        self._retraction_log = retraction_log

    async def decide(self, live: LiveRequest, changes: Changes) -> Outcome | None:
        """Return the outcome, or None if another wave was planned or the request has ended in the meantime.

        In either case ``changes`` has changes that must be made durable next.

        Raises:
            Unavailable: The table cannot be read, or coverage cannot be retracted now.
        """
        if not live.request.dataset.pages_count:
            return self._final_alone(live)
        if live.request.refresh:
            await self._replace(live)
        await self._context.look_again(live)
        reading = await self._read(live)
        found, request = reading.found, live.request
        if found.lost:
            await self._retract(live, found.lost, changes)
        if live.ending:
            return None
        rows = found.rows if request.limit is None else min(found.rows, request.limit)
        lacking = 0 if request.limit is None else request.limit - rows
        self._check_settled(live, found)
        again = intersect(self._state.not_fetched(live), reading.span)
        missing = merge([*reading.missing, *found.lost, *again])
        if not missing and not found.wrong and lacking and live.planned_end_ns < request.end_ns:
            planner.widen(self._state, live, lacking, changes, now_ns=self._clock.monotonic_ns())
            return None
        return decide(
            end_ns=reading.span.end_ns,
            missing=missing,
            job_errors=[LOST] * bool(found.lost) + self._state.errors(live),
            wrong=describe_wrong(found, request.series),
            row_count=rows,
            empty_periods=found.empty_periods,
            snapshot_id=reading.snapshot_id,
            completed_ns=self._clock.wall_ns(),
            provisional=self._state.provisional_in(request.series, reading.span),
            revised=await self._revised(request, reading.span),
        )

    async def _revised(self, request: HistoryRequest, span: TimeRange) -> list[TimeRange]:
        """Return the candles that turned up, or have got other values, since the relay asked about them before."""
        if not request.again:
            return []
        changed = await self._context.changed_values(request)
        return merge([*self._state.coverage[request.series].found.within(span), *changed])

    def _check_settled(self, live: LiveRequest, found: CoverageComparison) -> None:
        """Raise Unavailable if rows are in ranges verified empty that a job queries again.

        The table may have its candles before the pipeline has reported them.
        """
        queried = self._state.queried_again(live.request.series)
        if found.unexpected and len(subtract(found.unexpected, queried)) < len(merge(found.unexpected)):
            raise Unavailable("candles that turned up are committed and not reported yet")

    def _final_alone(self, live: LiveRequest) -> Outcome:
        """Return the outcome of a request for which only the final record counts; its end is the time of its rows."""
        (job,) = (self._state.jobs[job_id] for job_id in live.jobs)
        now_ns = self._clock.wall_ns()
        return decide(end_ns=job.taken_ns, completed_ns=now_ns, row_count=job.row_count, wrong=job.error)

    async def _retract(self, live: LiveRequest, lost: list[TimeRange], changes: Changes) -> None:
        """Plan new jobs for other requests that wait for lost ranges; this request ends and names them."""
        series, request_id = live.request.series, live.request.request_id
        log.error(LOST, request_id=request_id, ranges=len(lost))
        # following very many ranges one by one would delay other requests, so the ranges between them are retracted too
        spans = lost if len(lost) <= MAX_RETRACTED_RANGES else [TimeRange(lost[0].start_ns, lost[-1].end_ns)]
        order = await self._retraction_log.record(series, spans, LOST)
        coverage.retract(self._state, series, spans, order, changes)
        planner.replan(self._state, series, spans, changes, skip=request_id)

    async def _replace(self, live: LiveRequest) -> None:
        """Take back older claims of candles that a refresh did not find, now that all of its pages are there.

        The request then ends as ERROR and names their rows.
        """
        state, store = self._state, self._store
        for job in state.jobs_again(live):
            if gone := state.vanished(job):
                reason = f"request {live.request.request_id} did not find its candles"
                order = await self._retraction_log.record(job.series, gone, reason, before=job.first_dispatch)
                changes = Changes()
                coverage.replace(state, job, gone, order, changes)
                await store.commit(changes)

    async def _read(self, live: LiveRequest) -> Reading:
        """Read until the table confirms coverage, or the attempts are used up."""
        attempts = AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential(multiplier=0.2, max=5),
            retry=retry_if_result(lambda reading: reading.found.suspect) | retry_if_exception_type(Unavailable),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        reading: Reading = await attempts(self._read_once, live)
        return reading

    async def _read_once(self, live: LiveRequest) -> Reading:
        # coverage before the table: a commit in between may add rows but does not remove any
        request, span = live.request, live.planned
        covered, empty = self._state.claims(request.series, span)
        if not request.dataset.has_periods:
            return await asyncio.to_thread(self._reader.compare_times, request.series, span, covered)
        asked_ns = time.monotonic_ns()
        return await asyncio.to_thread(
            lambda: compare_rows(
                self._reader.newest_candles(asked_ns), request.series, span, covered, empty, request.limit
            )
        )
