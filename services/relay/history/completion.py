"""How requests come to their end: when all their jobs are over, when they are cancelled, when nothing goes on."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from services.common.model.errors import Unavailable
from services.common.model.history import Outcome, RequestStatus
from services.common.model.times import SECOND_NS
from services.relay.history import planner
from services.relay.history import request as requests
from services.relay.history.context import Context
from services.relay.history.job import LiveRequest
from services.relay.history.outcome import OutcomeDecider
from services.relay.history.progress import progress, timed_out
from services.relay.store.schema import Batch

log = structlog.get_logger(__name__)
RETRY_NS = 5 * SECOND_NS


class Completion:
    """The only one who ends requests."""

    def __init__(self, context: Context, decider: OutcomeDecider) -> None:
        self._context = context
        self._decider = decider
        self._ending: dict[str, LiveRequest] = {}

    def live(self, request_id: str) -> LiveRequest | None:
        """A request whose end is not on disk."""
        return self._context.state.requests.get(request_id) or self._ending.get(request_id)

    def consider(self, of: Iterable[LiveRequest] | None = None) -> None:
        """Start to decide those requests, or all, whose jobs are all over."""
        context, now_ns = self._context, self._context.clock.monotonic_ns()
        for request in list(context.state.requests.values() if of is None else of):
            idle = not request.deciding and not request.ending and now_ns >= request.retry_ns
            if context.tasks is not None and idle and context.state.ready(request):
                request.deciding = True
                context.start(self._decide(request))

    async def _decide(self, request: LiveRequest) -> None:
        """Count, then end the request or plan its next wave."""
        try:
            batch = Batch()
            outcome = await self._decider.decide(request, batch)
            if outcome is None or request.ending:
                await self._context.store.commit(batch)
                self._context.wake.set()
            else:
                await self._finish(request, outcome, batch)
        except Unavailable as error:  # counting goes on at the next round, until the request times out
            log.warning("rows can't be counted", request_id=request.submission.request_id, error=str(error))
            request.retry_ns = self._context.clock.monotonic_ns() + RETRY_NS
        finally:
            request.deciding = False
        if not request.ending:
            self.consider([request])  # its next wave may be covered already

    async def cancel(self, request_id: str) -> None:
        """End a request; one that has ended, or was never there, is left as it is."""
        live = self._context.state.requests.get(request_id)
        if live is not None:
            await self._cut_short(live, RequestStatus.ERROR, requests.CANCELLED)

    async def time_out(self, *, now_ns: int) -> None:
        """End what has been without progress for too long."""
        seconds = self._context.settings.request_timeout_seconds
        for request in list(timed_out(self._context.state, int(seconds * SECOND_NS), now_ns=now_ns)):
            await self._cut_short(request, RequestStatus.TIMEOUT, f"no progress for {seconds:g} s")

    async def _cut_short(self, request: LiveRequest, status: RequestStatus, error: str) -> None:
        if request.ending:
            await self._context.store.commit(Batch())  # its end is on its way to disk
            return
        end_ns = request.submission.end_ns if request.submission.limit is None else request.planned_end_ns
        missing = self._context.state.missing(request, end_ns)
        if status is RequestStatus.TIMEOUT and missing:
            error = "; ".join([error, requests.describe_missing(missing)])
        now_ns = self._context.clock.wall_ns()
        outcome = requests.cut_short(status, error, end_ns=end_ns, missing=missing, completed_ns=now_ns)
        await self._finish(request, outcome, Batch())

    async def _finish(self, request: LiveRequest, outcome: Outcome, batch: Batch) -> None:
        request.ending = True
        context, submission = self._context, request.submission
        batch.finish(submission, outcome, progress(context.state, request, outcome.end_ns))
        planner.leave(context.state, request, batch)
        context.quotas.leave(submission)
        self._ending[submission.request_id] = request  # off the board and not on disk yet
        await context.store.commit(batch)
        del self._ending[submission.request_id]
        context.metrics.finished.labels(outcome.status.name).inc()
        log.info("request ended", request_id=submission.request_id, status=outcome.status.name, rows=outcome.row_count)
        context.changed([submission.request_id])
        for topic in submission.topics:
            context.signals.notify(f"topic:{topic}")
