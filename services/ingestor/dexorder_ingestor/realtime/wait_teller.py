"""Task of a realtime job: reports why it does not settle data, to the relay and to a metric, after each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.realtime.exchange_tasks import Services
from dexorder_ingestor.realtime.live_series import LiveSeries
from dexorder_ingestor.realtime.waiting import Progress, Wait, WaitReason

log = structlog.get_logger(__name__)
_LOOK_SECONDS = 1.0
_REPEAT_NS = 20 * SECOND_NS
"""Time after which a reason is reported again: a relay that has started again does not know it."""


@dataclass(eq=False)
class WaitTeller:
    """Looks once a second at the progress of a job.

    Attributes:
        tell: Called after a change of ``wait``, and from time to time as long as there is a reason.
        wait: Why the job does not settle data; None if it does.
    """

    services: Services
    symbol: str
    series: LiveSeries
    progress: Progress
    tell: Callable[[], object]
    wait: Wait | None = None
    _told_ns: int = 0

    @property
    def text(self) -> str:
        """The reason as people read it; empty without one."""
        return self.wait.text if self.wait else ""

    async def run(self) -> None:
        """Look until cancelled; then remove the job from the metric."""
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                self._change(self._look())
        finally:
            self._count(self.wait, -1)

    def _look(self) -> Wait | None:
        now_ns = self.services.venue.clock.monotonic_ns()
        return self.progress.wait(self.series.settled_ns, self.series.waits, ban=self._ban(), now_ns=now_ns)

    def _ban(self) -> Wait | None:
        venue = self.services.venue
        left_ns = venue.ban_left_ns
        if left_ns <= 0:
            return None
        until = iso(venue.clock.wall_ns() + left_ns)
        return Wait(WaitReason.BANNED, f"{venue.name} refuses all calls from this host until {until}")

    def _change(self, found: Wait | None) -> None:
        before, self.wait = self.wait, found
        now_ns = self.services.venue.clock.monotonic_ns()
        if found == before and (found is None or now_ns < self._told_ns + _REPEAT_NS):
            return
        self._told_ns = now_ns
        self._count(before, -1)
        self._count(found, 1)
        if (found and found.reason) != (before and before.reason):
            event = "trades are not settled" if found else "trades are settled again"
            log.warning(event, symbol=self.symbol, reason=found and found.reason, text=found and found.text)
        self.tell()

    def _count(self, wait: Wait | None, step: int) -> None:
        if wait is not None:
            self.services.metrics.silent_jobs.labels(self.services.venue.name, wait.reason.value).inc(step)
