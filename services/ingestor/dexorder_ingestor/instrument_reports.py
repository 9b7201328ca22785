"""Reports of each exchange's instruments and candles to the relay, independent of the dispatches.

An exchange is reported at start, every hour, and when something new was learnt of its answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.instrument import InstrumentList
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import CallRefused, IngestorPublisher

log = structlog.get_logger(__name__)
_FIRST_PAUSE_SECONDS = 5.0
_LEARNT_SECONDS = 5.0
"""Time between two looks at the learnt shapes."""


@dataclass(frozen=True)
class InstrumentReporter:
    """Reports periodically; logs the first failure in a row and retries after growing pauses."""

    venues: Sequence[CcxtVenue]
    publisher: IngestorPublisher
    settings: IngestorSettings
    metrics: IngestorMetrics
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _reported: dict[str, InstrumentList] = field(default_factory=dict)

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as group:
            for venue in self.venues:
                group.create_task(self._keep_reporting(venue))
            group.create_task(self._report_learnt())

    async def _report_learnt(self) -> None:
        """Report an exchange again, with the same instruments, when something was learnt of its answers."""
        while True:
            await asyncio.sleep(_LEARNT_SECONDS)
            for venue in self.venues:
                last = self._reported.get(venue.name)
                if last and last.candles != venue.offer():
                    with suppress(Unavailable):  # it is tried again
                        await self._send(last._replace(candles=venue.offer()))

    async def _keep_reporting(self, venue: CcxtVenue) -> None:
        refresh_seconds, pause, failing = self.settings.instruments_refresh_seconds, _FIRST_PAUSE_SECONDS, False
        while True:
            outcome, reason = await self._report(venue)
            self.metrics.instrument_reports.labels(venue.name, outcome).inc()
            if reason and not failing:
                log.warning("instruments not reported", exchange=venue.name, outcome=outcome, reason=reason)
            failing = bool(reason)
            if outcome == "failed":
                jitter = random.uniform(0.5, 1.0)  # noqa: S311
                await self.sleep(min(pause, refresh_seconds) * jitter)
                pause *= 2
            else:
                pause = _FIRST_PAUSE_SECONDS
                await self.sleep(refresh_seconds)

    async def _report(self, venue: CcxtVenue) -> tuple[str, str]:
        """Report once; return the outcome, and the reason unless it was accepted."""
        try:
            instruments, fetched_ns = await venue.instruments()
            await self._send(InstrumentList(venue.name, instruments, fetched_ns, venue.offer()))
        except CallRefused as error:  # the relay is older than this RPC or rejects the report, and would do so again
            return "refused", str(error)
        except (ExchangeFailure, Unavailable) as error:
            return "failed", str(error)
        except Exception as error:  # a fault here must not end the dispatches
            log.exception("instruments not reported", exchange=venue.name)
            return "failed", f"internal error: {type(error).__name__}"
        return "ok", ""

    async def _send(self, listed: InstrumentList) -> None:
        await self.publisher.report_instruments(listed)
        self._reported[listed.venue] = listed
