"""Jobs out to ingestors, and what ingestors and the pipeline say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from services.common.model.history import Dispatch, FinalResult, PageResult
from services.common.model.time_range import TimeRange
from services.relay.broker.leases import Assignment, Slot
from services.relay.history import dispatches, reports
from services.relay.history.completion import Completion
from services.relay.history.context import Context
from services.relay.store.schema import Batch

log = structlog.get_logger(__name__)


class Sender(Protocol):
    """How a dispatch reaches an ingestor."""

    async def send(self, identity: bytes, dispatch: Dispatch) -> bool:
        """False when the ingestor can't be reached."""


class Dispatcher:
    """What the broker's frames and the reports of pages and jobs do."""

    def __init__(self, context: Context, completion: Completion, venues: frozenset[str]) -> None:
        self._context = context
        self._completion = completion
        self._leases = context.state.leases
        self.venues = venues
        self.reported_ns = context.clock.monotonic_ns()
        """When the pipeline last reported, or this began; monotonic."""

    async def run(self, sender: Sender) -> None:
        """Send jobs to free slots until cancelled."""
        context = self._context
        while True:
            await context.wake.wait()
            context.wake.clear()
            batch = Batch()
            made = dispatches.assign(context.state, batch, now_ns=context.clock.monotonic_ns())
            if made:
                await context.store.commit(batch)
                for assign, dispatch in made:
                    await self._send(sender, assign, dispatch)

    async def _send(self, sender: Sender, assign: Assignment, dispatch: Dispatch) -> None:
        context = self._context
        if self._leases.job_of(assign.dispatch_id) is None:  # cancelled while it went to disk: the slot is still free
            self._leases.offer(assign.slot)
            context.wake.set()
        elif await sender.send(assign.slot.identity, dispatch):
            context.metrics.dispatches.labels(assign.slot.exchange).inc()
            self._leases.renew(assign.dispatch_id, now_ns=context.clock.monotonic_ns())
            context.changed(context.state.jobs[assign.job].requests if assign.job in context.state.jobs else ())
        else:
            log.warning("ingestor is gone", slots=self._leases.drop(assign.slot.identity))
            context.metrics.requeues.labels(assign.slot.exchange, "unreachable").inc()
            batch = Batch()
            dispatches.unsent(context.state, assign, batch)
            context.store.commit(batch)
            context.wake.set()

    # ---- the broker's frames ---------------------------------------------------------------------------------------

    def ready(self, slot: Slot) -> bool:
        """One more slot; False when this ingestor has offered too many."""
        kept = self._leases.offer(slot)
        self._context.wake.set()
        return kept

    def heartbeat(self, dispatch_id: str, identity: bytes) -> bool:
        """A sign of life of a running job; whether it is current."""
        return self._leases.renew(dispatch_id, now_ns=self._context.clock.monotonic_ns(), identity=identity)

    def complete(self, dispatch_id: str) -> bool:
        """Kafka has the job's final record; whether the dispatch is current."""
        batch = Batch()
        current = dispatches.produced(self._context.state, dispatch_id, batch)
        self._context.store.commit(batch)
        return current

    def give_back(self, dispatch_id: str, reason: str, *, kind: str, rejected_by: bytes | None = None) -> bool:
        """An ingestor can't take a job (``rejected_by``) or can't go on with it; whether the dispatch is current."""
        context, batch = self._context, Batch()
        lost = dispatches.lose(
            context.state, dispatch_id, reason, batch, now_ns=context.clock.monotonic_ns(), rejected_by=rejected_by
        )
        if lost is None:
            return False
        log.warning(
            "dispatch lost",
            dispatch_id=dispatch_id,
            reason=reason,
            made_progress=lost.made_progress,
            given_up=lost.dead,
        )
        exchange = lost.job.series.exchange
        context.metrics.requeues.labels(exchange, kind).inc()
        context.metrics.failures_in_a_row.labels(exchange).inc(not lost.made_progress)
        context.metrics.given_up.labels(exchange).inc(lost.dead)
        context.changed(lost.job.requests)
        context.store.commit(batch)
        context.wake.set()
        self._completion.consider()
        return True

    def take_back(self, *, now_ns: int, slept: bool) -> None:
        """Take back what has run out of its lease; none when this process ``slept``: heartbeats wait in the socket."""
        if slept:
            self._leases.renew_all(now_ns=now_ns)
        for dispatch_id in self._leases.expired(now_ns=now_ns):
            self.give_back(dispatch_id, "its lease ran out", kind="lease")

    # ---- reports ---------------------------------------------------------------------------------------------------

    async def report_page(self, dispatch_id: str, span: TimeRange, empty: Sequence[TimeRange]) -> bool:
        """A page that Kafka has acknowledged; whether the dispatch is current."""
        context, batch = self._context, Batch()
        job = reports.page(context.state, dispatch_id, span, empty, batch, now_ns=context.clock.monotonic_ns())
        if job is None:
            return False
        context.changed(job.requests)
        await context.store.commit(batch)
        return True

    async def report_jobs(
        self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalResult]
    ) -> None:
        """What the pipeline committed; on disk when this returns. Ends that follow from it come a moment later."""
        context, batch = self._context, Batch()
        self.reported_ns = context.clock.monotonic_ns()
        reports.report(context.state, snapshot_id, pages, finals, batch, now_ns=self.reported_ns)
        markets = {page.series for page in pages}
        context.changed(r for r, live in context.state.requests.items() if finals or live.submission.series in markets)
        await context.store.commit(batch)
        context.wake.set()  # a final may have left a further range of its job to fetch
        self._completion.consider()
