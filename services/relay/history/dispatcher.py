"""Jobs out to ingestors, and what ingestors and the pipeline say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from services.common.model.history import Dispatch, FinalResult, PageResult
from services.common.model.time_range import TimeRange
from services.relay.broker.leases import Assign, Slot
from services.relay.history import dispatches, reports
from services.relay.history.completion import Finisher
from services.relay.history.context import Hub
from services.relay.store.schema import Batch

log = structlog.get_logger(__name__)


class Sender(Protocol):
    """How a dispatch reaches an ingestor."""

    async def send(self, identity: bytes, dispatch: Dispatch) -> bool:
        """False when the ingestor can't be reached."""


class Assigner:
    """What the broker's frames and the reports of pages and jobs do."""

    def __init__(self, hub: Hub, finisher: Finisher, venues: frozenset[str]) -> None:
        self._hub = hub
        self._finisher = finisher
        self._dispatcher = hub.board.dispatcher
        self.venues = venues
        self.reported_ns = hub.clock.monotonic_ns()
        """When the pipeline last reported, or this began; monotonic."""

    async def run(self, sender: Sender) -> None:
        """Send jobs to free slots until cancelled."""
        hub = self._hub
        while True:
            await hub.wake.wait()
            hub.wake.clear()
            batch = Batch()
            made = dispatches.assign(hub.board, batch, now_ns=hub.clock.monotonic_ns())
            if made:
                await hub.store.commit(batch)
                for assign, dispatch in made:
                    await self._send(sender, assign, dispatch)

    async def _send(self, sender: Sender, assign: Assign, dispatch: Dispatch) -> None:
        hub = self._hub
        if self._dispatcher.job_of(assign.job_id) is None:  # cancelled while it went to disk: the slot is still free
            self._dispatcher.offer(assign.slot)
            hub.wake.set()
        elif await sender.send(assign.slot.identity, dispatch):
            hub.metrics.dispatches.labels(assign.slot.exchange).inc()
            self._dispatcher.renew(assign.job_id, now_ns=hub.clock.monotonic_ns())
            hub.changed(hub.board.jobs[assign.job].requests if assign.job in hub.board.jobs else ())
        else:
            log.warning("ingestor is gone", slots=self._dispatcher.drop(assign.slot.identity))
            hub.metrics.requeues.labels(assign.slot.exchange, "unreachable").inc()
            batch = Batch()
            dispatches.unsent(hub.board, assign, batch)
            hub.store.commit(batch)
            hub.wake.set()

    # ---- the broker's frames ---------------------------------------------------------------------------------------

    def ready(self, slot: Slot) -> bool:
        """One more slot; False when this ingestor has offered too many."""
        kept = self._dispatcher.offer(slot)
        self._hub.wake.set()
        return kept

    def heartbeat(self, job_id: str, identity: bytes) -> bool:
        """A sign of life of a running job; whether it is current."""
        return self._dispatcher.renew(job_id, now_ns=self._hub.clock.monotonic_ns(), identity=identity)

    def complete(self, job_id: str) -> bool:
        """Kafka has the job's final record; whether the dispatch is current."""
        batch = Batch()
        current = dispatches.produced(self._hub.board, job_id, batch)
        self._hub.store.commit(batch)
        return current

    def give_back(self, job_id: str, reason: str, *, kind: str, rejected_by: bytes | None = None) -> bool:
        """An ingestor can't take a job (``rejected_by``) or can't go on with it; whether the dispatch is current."""
        hub, batch = self._hub, Batch()
        lost = dispatches.lose(
            hub.board, job_id, reason, batch, now_ns=hub.clock.monotonic_ns(), rejected_by=rejected_by
        )
        if lost is None:
            return False
        log.warning("dispatch lost", job_id=job_id, reason=reason, brought=lost.brought, given_up=lost.dead)
        exchange = lost.job.market.exchange
        hub.metrics.requeues.labels(exchange, kind).inc()
        hub.metrics.fruitless.labels(exchange).inc(not lost.brought)
        hub.metrics.given_up.labels(exchange).inc(lost.dead)
        hub.changed(lost.job.requests)
        hub.store.commit(batch)
        hub.wake.set()
        self._finisher.consider()
        return True

    def take_back(self, *, now_ns: int, slept: bool) -> None:
        """Take back what has run out of its lease; none when this process ``slept``: heartbeats wait in the socket."""
        if slept:
            self._dispatcher.renew_all(now_ns=now_ns)
        for job_id in self._dispatcher.expired(now_ns=now_ns):
            self.give_back(job_id, "its lease ran out", kind="lease")

    # ---- reports ---------------------------------------------------------------------------------------------------

    async def report_page(self, job_id: str, span: TimeRange, empty: Sequence[TimeRange]) -> bool:
        """A page that Kafka has acknowledged; whether the dispatch is current."""
        hub, batch = self._hub, Batch()
        job = reports.page(hub.board, job_id, span, empty, batch, now_ns=hub.clock.monotonic_ns())
        if job is None:
            return False
        hub.changed(job.requests)
        await hub.store.commit(batch)
        return True

    async def report_jobs(
        self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalResult]
    ) -> None:
        """What the pipeline committed; on disk when this returns. Ends that follow from it come a moment later."""
        hub, batch = self._hub, Batch()
        self.reported_ns = hub.clock.monotonic_ns()
        reports.report(hub.board, snapshot_id, pages, finals, batch, now_ns=self.reported_ns)
        markets = {page.market for page in pages}
        hub.changed(r for r, live in hub.board.requests.items() if finals or live.submission.market in markets)
        await hub.store.commit(batch)
        hub.wake.set()  # a final may have left a further range of its job to fetch
        self._finisher.consider()
