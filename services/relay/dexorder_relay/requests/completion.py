"""End of requests: all jobs are over, a client cancels, or progress is missing for too long."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import Outcome, RequestStatus
from dexorder_common.model.periods import total_periods
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.outcome import OutcomeDecider
from dexorder_relay.requests.traces import deciding, record_request
from dexorder_relay.state import planner
from dexorder_relay.state.changes import AbsencesChanged, Changes, RangesChanged, RequestEnded, RequestRevised
from dexorder_relay.state.history import progress, timed_out
from dexorder_relay.state.request import CANCELLED, LiveRequest, describe_missing

log = structlog.get_logger(__name__)
RETRY_NS = 5 * SECOND_NS


class Completion:
    """The only part that ends requests."""

    def __init__(self, context: Context, decider: OutcomeDecider) -> None:
        """End requests with the outcomes that ``decider`` works out."""
        self._context = context
        self._decider = decider
        self._ending: dict[str, LiveRequest] = {}

    def live(self, request_id: str) -> LiveRequest | None:
        """Return a request if its outcome is not on disk yet."""
        return self._context.state.requests.get(request_id) or self._ending.get(request_id)

    def check_ready(self, requests: Iterable[LiveRequest] | None = None) -> None:
        """Start to work out the outcome of the given requests, or of all, if their jobs are over."""
        context, now_ns = self._context, self._context.clock.monotonic_ns()
        for live in list(context.state.requests.values() if requests is None else requests):
            idle = not live.deciding and not live.ending and now_ns >= live.retry_ns
            if context.tasks is not None and idle and context.state.is_ready(live):
                live.deciding = True
                context.start(self._decide(live))

    async def _decide(self, live: LiveRequest) -> None:
        """Work out the outcome, then end the request or dispatch its next wave."""
        try:
            changes = Changes()
            with deciding(live) as span:
                outcome = await self._decider.decide(live, changes)
                span.set_attribute("dexorder.status", outcome.status.name if outcome else "further jobs")
            live.waiting = ""
            if outcome is None or live.ending:
                await self._context.store.commit(changes)
                self._context.wake.set()
            else:
                await self._finish(live, outcome, changes)
        except Unavailable as error:  # tried again later, until the request times out
            log.warning("the outcome of a request waits", request_id=live.request.request_id, error=str(error))
            live.retry_ns = self._context.clock.monotonic_ns() + RETRY_NS
            live.waiting = str(error)
            self._context.changed([live.request.request_id])
        finally:
            live.deciding = False
        if not live.ending:
            self.check_ready([live])  # its next wave may be covered already

    async def cancel(self, request_id: str, *, stop_work: bool = True) -> None:
        """End a request; do nothing if it has ended or is unknown.

        Args:
            stop_work: Tell ingestors to stop their work for it; False if the caller does that.
        """
        live = self._context.state.requests.get(request_id)
        if live is not None:
            await self._cut_short(live, RequestStatus.ERROR, CANCELLED, stop_work=stop_work)

    async def time_out(self, *, now_ns: int) -> None:
        """End every request without progress for the timeout."""
        seconds = self._context.settings.request_timeout_seconds
        for live in list(timed_out(self._context.state, int(seconds * SECOND_NS), now_ns=now_ns)):
            reason = f": {live.waiting}" if live.waiting else ""
            await self._cut_short(live, RequestStatus.TIMEOUT, f"no progress for {seconds:g} s{reason}")

    async def _cut_short(self, live: LiveRequest, status: RequestStatus, error: str, *, stop_work: bool = True) -> None:
        if live.ending:
            await self._context.store.commit(Changes())  # returns when the outcome, given before, is on disk
            return
        end_ns = live.request.end_ns if live.request.limit is None else live.planned_end_ns
        missing = self._context.state.missing(live, end_ns)
        if status is RequestStatus.TIMEOUT and missing:
            error = f"{error}; {describe_missing(missing)}"
        outcome = Outcome(status, error, end_ns, self._context.clock.wall_ns(), missing=tuple(missing))
        works = stop_work and self._works_alone(live)
        await self._finish(live, outcome, Changes())
        if works:
            self._context.stop_work(live.request)

    def _works_alone(self, live: LiveRequest) -> bool:
        """Return whether an ingestor works for the request, on jobs that no other request waits for."""
        state, request_id = self._context.state, live.request.request_id
        own = [job for job in map(state.jobs.__getitem__, live.jobs) if job.request_id == request_id]
        return any(state.leases.is_running(job.id) for job in own) and all(len(job.requests) == 1 for job in own)

    async def _finish(self, live: LiveRequest, outcome: Outcome, changes: Changes) -> None:
        live.ending = True
        context, request = self._context, live.request
        context.request_ends(live, outcome)
        changes.append(RequestEnded(request, outcome, progress(context.state, live, outcome.end_ns)))
        topics = [*request.topics, *self._revise(live, outcome, changes)]
        job_traces = [context.state.jobs[job_id].trace for job_id in live.jobs]
        planner.remove(context.state, live, changes)
        context.quotas.leave(request)
        self._ending[request.request_id] = live  # no longer in the state, and not on disk yet
        await context.store.commit(changes)
        del self._ending[request.request_id]
        context.metrics.finished.labels(outcome.status.name).inc()
        record_request(live, outcome, job_traces, end_ns=context.clock.wall_ns())
        log.info("request ended", request_id=request.request_id, status=outcome.status.name, rows=outcome.row_count)
        context.changed([request.request_id])
        for topic in topics:
            context.signals.notify(f"topic:{topic}")

    def _revise(self, live: LiveRequest, outcome: Outcome, changes: Changes) -> list[str]:
        """Count a query of provisional ranges, and announce candles that turned up; return the topics to notify."""
        request, state = live.request, self._context.state
        now_ns = self._context.clock.wall_ns()
        if request.fetches_covered:
            state.provisional.looked(request.series, request.span, asked_ns=live.submitted_ns, now_ns=now_ns)
        if not request.again:
            return []
        answered = outcome.status in (RequestStatus.OK, RequestStatus.NOT_FOUND)
        change = state.provisional.queried(
            request.series, request.span, asked_ns=live.submitted_ns, now_ns=now_ns, answered=answered
        )
        changes.append(AbsencesChanged(request.series, change))
        if not outcome.revised:
            return []
        found = state.coverage[request.series].found
        turned_up = [part for each in outcome.revised for part in found.within(each)]
        for part in outcome.revised:
            diff = found.remove(part)
            changes.append(RangesChanged(request.series, "found", diff))
        changes.append(RequestRevised(request, outcome.revised))
        log.warning("candles turned up or changed", request_id=request.request_id, **request.series.encode())
        self._context.metrics.revised.labels(request.series.exchange).inc(
            total_periods(turned_up, request.period_seconds)
        )
        return [f"REVISED:{request.ticker}", *self._context.signals.listened("RESPONSE:")]
