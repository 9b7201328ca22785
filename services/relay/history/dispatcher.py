"""Dispatch of jobs to ingestors, and the reports of ingestors and pipeline about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from services.common.model.history import Delay, Dispatch, FinalResult, PageResult
from services.common.model.time_range import TimeRange
from services.relay.broker.leases import Assignment, Slot
from services.relay.history import dispatches
from services.relay.history.completion import Completion
from services.relay.history.context import Context
from services.relay.history.job import Phase
from services.relay.store.schema import Batch

log = structlog.get_logger(__name__)


class Sender(Protocol):
    """Connection to the ingestors."""

    async def send(self, identity: bytes, dispatch: Dispatch) -> bool:
        """Send a dispatch; return False if the ingestor cannot be reached."""


class Dispatcher:
    """Applies the broker's frames and the reports of pages and dispatches."""

    def __init__(self, context: Context, completion: Completion, venues: frozenset[str]) -> None:
        """Take slots for ``venues``."""
        self._context = context
        self._completion = completion
        self._leases = context.state.leases
        self.venues = venues
        self.reported_ns = context.clock.monotonic_ns()
        """Monotonic time of the pipeline's last report, or of the start."""

    async def run(self, sender: Sender) -> None:
        """Send jobs to free slots until cancelled."""
        context = self._context
        while True:
            await context.wake.wait()
            context.wake.clear()
            batch = Batch()
            made = dispatches.assign(
                context.state, batch, wall_ns=context.clock.wall_ns(), now_ns=context.clock.monotonic_ns()
            )
            if made:
                await context.store.commit(batch)
                for assignment, dispatch in made:
                    await self._send(sender, assignment, dispatch)

    async def _send(self, sender: Sender, assignment: Assignment, dispatch: Dispatch) -> None:
        context, slot = self._context, assignment.slot
        if self._leases.job_of(assignment.dispatch_id) is None:  # cancelled while it went to disk: the slot is free
            self._leases.offer(slot)
            context.wake.set()
        elif await sender.send(slot.identity, dispatch):
            context.metrics.dispatches.labels(slot.exchange).inc()
            self._leases.renew(assignment.dispatch_id, now_ns=context.clock.monotonic_ns())
            job = context.state.jobs.get(assignment.job)
            context.changed(job.requests if job else ())
        else:
            log.warning("ingestor is gone", slots=self._leases.drop(slot.identity))
            context.metrics.requeues.labels(slot.exchange, "unreachable").inc()
            batch = Batch()
            dispatches.unsent(context.state, assignment, batch)
            context.store.commit(batch)
            context.wake.set()

    def ready(self, slot: Slot) -> bool:
        """Add a slot; return False if this ingestor has offered too many."""
        kept = self._leases.offer(slot)
        self._context.wake.set()
        return kept

    def heartbeat(self, dispatch_id: str) -> bool:
        """Renew the lease of a running dispatch; return whether it is current."""
        return self._leases.renew(dispatch_id, now_ns=self._context.clock.monotonic_ns())

    def complete(self, dispatch_id: str) -> bool:
        """Record that Kafka has the final record; return whether the dispatch is current."""
        batch = Batch()
        current = dispatches.produced(self._context.state, dispatch_id, batch)
        self._context.store.commit(batch)
        return current

    def give_back(self, dispatch_id: str, reason: str, *, kind: str, rejected_by: bytes | None = None) -> bool:
        """Take back a dispatch that has failed or was rejected; return whether it was current."""
        context, batch = self._context, Batch()
        job = dispatches.lose(
            context.state, dispatch_id, reason, batch, now_ns=context.clock.monotonic_ns(), rejected_by=rejected_by
        )
        if job is None:
            return False
        made_progress, given_up = not job.failures_in_a_row, job.phase is Phase.ENDED
        log.warning(
            "dispatch lost", dispatch_id=dispatch_id, reason=reason, made_progress=made_progress, given_up=given_up
        )
        exchange = job.series.exchange
        context.metrics.requeues.labels(exchange, kind).inc()
        context.metrics.without_progress.labels(exchange).inc(not made_progress)
        context.metrics.given_up.labels(exchange).inc(given_up)
        context.changed(job.requests)
        context.store.commit(batch)
        context.wake.set()
        self._completion.check_ready()
        return True

    def take_back_expired(self, *, now_ns: int, suspended: bool) -> None:
        """Take back every dispatch whose lease has expired."""
        if suspended:  # this process did not run for a while, so heartbeats wait in the socket
            self._leases.renew_all(now_ns=now_ns)
        for dispatch_id in self._leases.expired(now_ns=now_ns):
            self.give_back(dispatch_id, "its lease expired", kind="lease")

    async def report_page(self, dispatch_id: str, span: TimeRange, empty: Sequence[TimeRange], calls: int = 0) -> bool:
        """Record a page that Kafka has acknowledged, and the dispatch's calls of the exchange up to it.

        Returns:
            Whether the dispatch is current.
        """
        context, batch = self._context, Batch()
        job = dispatches.page(context.state, dispatch_id, span, empty, batch, now_ns=context.clock.monotonic_ns())
        if job is None:
            return False
        job.calls = job.earlier_calls + calls
        context.changed(job.requests)
        await context.store.commit(batch)
        return True

    def report_delay(self, dispatch_id: str, delay: Delay | None) -> bool:
        """Keep what holds up a dispatch, for those who watch; return whether the dispatch is current."""
        job = self._context.state.current_job(dispatch_id)
        if job is None:
            return False
        if job.delay != delay:
            job.delay = delay
            self._context.changed(job.requests)
        return True

    async def report_jobs(self, pages: Sequence[PageResult], finals: Sequence[FinalResult]) -> None:
        """Apply a micro-batch of the pipeline; on disk when this returns. Outcomes of requests follow later."""
        context, batch = self._context, Batch()
        self.reported_ns = context.clock.monotonic_ns()
        dispatches.report(context.state, pages, finals, batch, now_ns=self.reported_ns)
        landed = {page.series for page in pages}
        context.changed(r for r, live in context.state.requests.items() if finals or live.request.series in landed)
        await context.store.commit(batch)
        context.wake.set()  # a final may have left a further range of its job to fetch
        self._completion.check_ready()
