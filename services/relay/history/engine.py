"""The relay at work: joins the board's rules with the store, the broker and the table. Runs in one event loop.

`submitting.py` takes requests on, `assigning.py` gives their jobs to ingestors, `finishing.py` ends them; `hub.py` has
what they share, and the order in which memory, disk and answers change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from services.common.clock import Clock
from services.common.model.times import SECOND_NS
from services.relay.access import Quotas
from services.relay.config import RelaySettings
from services.relay.history.completion import Finisher
from services.relay.history.context import Hub
from services.relay.history.dispatcher import Assigner, Sender
from services.relay.history.outcome import Decider
from services.relay.history.queries import Views
from services.relay.history.retraction_log import Retractor
from services.relay.history.state import Board
from services.relay.history.submitter import Submitter
from services.relay.metrics import RelayMetrics, sample
from services.relay.store.database import FORGOTTEN_AT_ONCE, Store

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.25
FORGET_SECONDS = 3_600
MEASURE_SECONDS = 1.0


class Engine:
    """The rooms, and what goes on by itself."""

    def __init__(
        self,
        settings: RelaySettings,
        *,
        board: Board,
        store: Store,
        decider: Decider,
        retractor: Retractor,
        venues: Iterable[str],
        clock: Clock,
        metrics: RelayMetrics,
    ) -> None:
        self.venues = frozenset(venues)
        self.quotas = Quotas(settings.limits(), lambda client_id, quota: metrics.refused.labels(client_id, quota).inc())
        for live in board.requests.values():
            self.quotas.enter(live.submission)
        self._hub = hub = Hub(settings, board, store, self.quotas, clock, metrics)
        self.views = Views(board, store, hub.signals, metrics)
        self.finisher = Finisher(hub, decider)
        self.submitter = Submitter(hub, self.finisher, retractor, self.venues)
        self.assigner = Assigner(hub, self.finisher, self.venues)

    async def run(self, sender: Sender) -> None:
        """Dispatch, watch leases and timeouts, decide; until cancelled, or until the store fails."""
        async with asyncio.TaskGroup() as tasks:
            self._hub.tasks = tasks
            tasks.create_task(self.assigner.run(sender))
            tasks.create_task(self._tick())
            tasks.create_task(self._forget())
            tasks.create_task(self._measure())
            tasks.create_task(self._fail_stop())
            self.finisher.consider()
            self._hub.wake.set()

    def close_streams(self) -> None:
        """End progress and notification streams; they have no end of their own."""
        self._hub.signals.close()

    async def _tick(self) -> None:
        hub = self._hub
        last_ns = hub.clock.monotonic_ns()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now_ns = hub.clock.monotonic_ns()
            self.assigner.take_back(now_ns=now_ns, slept=now_ns - last_ns > hub.settings.lease_seconds * SECOND_NS / 2)
            last_ns = now_ns
            await self.finisher.time_out(now_ns=now_ns)
            self.finisher.consider()
            hub.wake.set()  # a job's wait after a failure may be over

    async def _measure(self) -> None:
        clock = self._hub.clock
        while True:
            age_ns = clock.monotonic_ns() - self.assigner.reported_ns
            self._hub.metrics.sample(sample(self._hub.board, wall_ns=clock.wall_ns(), report_age_ns=age_ns))
            await asyncio.sleep(MEASURE_SECONDS)

    async def _forget(self) -> None:
        """Forget what has ended long ago; piece by piece, so that nobody waits behind the whole of it."""
        while True:
            days = self._hub.settings.retention_days
            before_ns = self._hub.clock.wall_ns() - int(days * 86_400 * SECOND_NS)
            while await self._hub.store.forget(before_ns) == FORGOTTEN_AT_ONCE:
                pass
            await asyncio.sleep(FORGET_SECONDS)

    async def _fail_stop(self) -> None:
        try:
            await asyncio.shield(self._hub.store.failed)
        except Exception as error:
            log.error("the database can't be written; the relay ends, nothing answered is lost", error=str(error))
            raise
