"""Dispatch of jobs of every kind to ingestors, and the ingestors' messages about their dispatches.

The owner of a job has its rules; slots and leases are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from dexorder_common.model.history import Dispatch
from dexorder_common.model.realtime import RealtimeDispatch, Stop
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.traces import record_dispatch
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.leases import Assignment, Loss
from dexorder_relay.state.workers import Slot

log = structlog.get_logger(__name__)
ToIngestor = Dispatch | RealtimeDispatch | Stop


class IngestorSender(Protocol):
    """Connection to the ingestors."""

    async def send(self, identity: bytes, message: ToIngestor) -> bool:
        """Send a message; return False if the ingestor cannot be reached."""


class JobOwner(Protocol):
    """Rules of the jobs of one kind. They add changes that must survive a restart to ``changes``; the dispatcher
    commits them.
    """

    def owns(self, job: int) -> bool:
        """Return whether it has this job."""

    def assign(self, assignment: Assignment, changes: Changes) -> ToIngestor:
        """Start a dispatch; return what to send once the changes is on disk."""

    def sent(self, assignment: Assignment) -> None:
        """Note that the dispatch was sent."""

    def unsent(self, assignment: Assignment, changes: Changes) -> None:
        """Queue the job again after its ingestor could not be reached; this is not a failure of the job."""

    def complete(self, dispatch_id: str, changes: Changes) -> None:
        """Note that the ingestor has done everything for a current dispatch."""

    def lose(self, dispatch_id: str, reason: str, changes: Changes, *, rejected_by: bytes | None = None) -> Loss:
        """Take back a current dispatch that ended without a result."""

    def heard(self, dispatch_id: str, identity: bytes) -> None:
        """Note which socket sent the heartbeat of a dispatch; the dispatch may belong to another owner."""

    def take_stops(self) -> list[tuple[bytes, str]]:
        """Return the dispatches to stop, with the sockets of their ingestors; each is returned once."""

    def ended(self) -> None:
        """Continue work that waited for the end of dispatches."""


class JobDispatcher:
    """Applies the broker's frames."""

    def __init__(self, context: Context, owners: Sequence[JobOwner]) -> None:
        """Dispatch jobs, each of which belongs to one of the owners."""
        self._context = context
        self._owners = owners
        self._leases = context.state.leases
        self.venues = context.venues

    async def run(self, sender: IngestorSender) -> None:
        """Send jobs to free slots until cancelled."""
        context = self._context
        while True:
            await context.wake.wait()
            context.wake.clear()
            await self._send_stops(sender)
            changes = Changes()
            made = [
                (assignment, self._owner(assignment.job).assign(assignment, changes))
                for assignment in self._leases.assign(now_ns=context.clock.monotonic_ns())
            ]
            if made:
                await context.store.commit(changes)
                for assignment, dispatch in made:
                    await self._send(sender, assignment, dispatch)

    async def _send_stops(self, sender: IngestorSender) -> None:
        """Send the stops that are due, and no longer extend their leases. A lost stop is sent again at a heartbeat."""
        for owner in self._owners:
            for identity, dispatch_id in owner.take_stops():
                self._leases.stop(dispatch_id)
                await sender.send(identity, Stop(dispatch_id))

    def _owner(self, job: int) -> JobOwner:
        return next(owner for owner in self._owners if owner.owns(job))

    async def _send(self, sender: IngestorSender, assignment: Assignment, dispatch: ToIngestor) -> None:
        context, slot = self._context, assignment.slot
        start_ns = context.clock.wall_ns()
        if self._leases.job_of(assignment.dispatch_id) is None:  # cancelled while it went to disk: the slot is free
            self._leases.offer(slot)
            context.wake.set()
        elif await sender.send(slot.identity, dispatch):
            context.metrics.dispatches.labels(slot.exchange).inc()
            record_dispatch(assignment.dispatch_id, slot.exchange, (start_ns, context.clock.wall_ns()))
            if self._leases.renew(assignment.dispatch_id, now_ns=context.clock.monotonic_ns()):
                self._owner(assignment.job).sent(assignment)
        else:
            log.warning("ingestor is gone", slots=self._leases.drop(slot.identity))
            context.metrics.requeues.labels(slot.exchange, "unreachable").inc()
            if self._leases.job_of(assignment.dispatch_id) == assignment.job:
                changes = Changes()
                self._owner(assignment.job).unsent(assignment, changes)
                context.store.commit(changes)
            context.wake.set()

    def ready(self, slot: Slot) -> bool:
        """Add a slot; return False if this ingestor has offered too many."""
        kept = self._leases.offer(slot)
        self._context.wake.set()
        return kept

    def heartbeat(self, dispatch_id: str, identity: bytes) -> bool:
        """Renew the lease of a running dispatch; return whether it is current."""
        for owner in self._owners:
            owner.heard(dispatch_id, identity)
        self._context.wake.set()
        return self._leases.renew(dispatch_id, now_ns=self._context.clock.monotonic_ns())

    def complete(self, dispatch_id: str) -> bool:
        """Record that the ingestor has done everything; return whether the dispatch is current."""
        job = self._leases.job_of(dispatch_id)
        if job is None:
            return False
        changes = Changes()
        self._owner(job).complete(dispatch_id, changes)
        self._context.store.commit(changes)
        self._context.wake.set()
        return True

    def give_back(self, dispatch_id: str, reason: str, *, kind: str, rejected_by: bytes | None = None) -> bool:
        """Take back a dispatch that has failed or was rejected; return whether it was current."""
        job = self._leases.job_of(dispatch_id)
        if job is None:
            return False
        context, owner, changes = self._context, self._owner(job), Changes()
        loss = owner.lose(dispatch_id, reason, changes, rejected_by=rejected_by)
        log.warning(
            "dispatch lost",
            dispatch_id=dispatch_id,
            reason=reason,
            made_progress=loss.made_progress,
            given_up=loss.given_up,
        )
        context.metrics.requeues.labels(loss.exchange, kind).inc()
        context.metrics.without_progress.labels(loss.exchange).inc(not loss.made_progress)
        context.metrics.given_up.labels(loss.exchange).inc(loss.given_up)
        context.store.commit(changes)
        context.wake.set()
        owner.ended()
        return True

    def take_back_expired(self, *, now_ns: int, suspended: bool) -> None:
        """Take back every dispatch with an expired lease."""
        if suspended:  # this process did not run for a while, so heartbeats wait in the socket
            self._leases.renew_all(now_ns=now_ns)
        for dispatch_id in self._leases.expired(now_ns=now_ns):
            self._leases.silent(dispatch_id)
            self.give_back(dispatch_id, "its lease expired", kind="lease")
