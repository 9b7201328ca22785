"""What a ccxt client waits for before each request: its turn in the host's rate budget, and the end of a ban."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from services.common.clock import Clock
from services.common.model.times import SECOND_NS
from services.ingestor.exchange.failures import ExchangeFailure
from services.ingestor.exchange.rate_budget import Reservation, SharedBucket
from services.ingestor.metrics import IngestorMetrics


class RateLimiter:
    """Stands in for ccxt's throttler, one for all clients of a venue."""

    def __init__(
        self,
        venue: str,
        budget: SharedBucket,
        metrics: IngestorMetrics,
        clock: Clock,
        *,
        longest_ban_seconds: float,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.loop: Any = None  # ccxt sets it
        self._venue = venue
        self._budget = budget
        self._metrics = metrics
        self._clock = clock
        self._longest_ban_ns = int(longest_ban_seconds * SECOND_NS)
        self._sleep = sleep

    async def __call__(self, cost: Any = None) -> None:
        """Return when the call may leave; if anything is awaited before the request leaves, look at `is_banned` again.

        Raises:
            ExchangeFailure: A ban lasts longer than ``longest_ban_seconds`` from now.
        """
        started_ns = self._clock.monotonic_ns()
        while not await self._wait_for(self._take(1.0 if cost is None else float(cost))):
            pass  # a ban came meanwhile: all turns taken before it are void
        self._metrics.budget_wait_seconds.labels(self._venue).inc((self._clock.monotonic_ns() - started_ns) / SECOND_NS)

    def ban(self, seconds: float) -> None:
        """Let no process of this host ask for this long."""
        now_ns = self._clock.monotonic_ns()
        longer_ns = self._budget.ban(now_ns + int(seconds * SECOND_NS), now_ns=now_ns)
        self._metrics.ban_seconds.labels(self._venue).inc(longer_ns / SECOND_NS)

    def is_banned(self) -> bool:
        """Whether a ban that any process was told of is in force."""
        return self._budget.ban_ns() > self._clock.monotonic_ns()

    def _take(self, cost: float) -> Reservation:
        now_ns = self._clock.monotonic_ns()
        left_ns = self._budget.ban_ns() - now_ns
        if left_ns > self._longest_ban_ns:
            raise ExchangeFailure(f"{self._venue} bans this address for another {left_ns / SECOND_NS:.0f} s")
        turn = self._budget.take(cost, now_ns=now_ns)
        if turn.at_ns > now_ns:
            self._metrics.budget_waits.labels(self._venue).inc()
        return turn

    async def _wait_for(self, turn: Reservation) -> bool:
        while (left_ns := turn.at_ns - self._clock.monotonic_ns()) > 0:
            await self._sleep(left_ns / SECOND_NS)
        return self._budget.ban_ns() == turn.ban_ns
