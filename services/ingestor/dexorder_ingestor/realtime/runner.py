"""Runs of realtime dispatches: from the question where to begin to the completion."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.realtime import RealtimeDispatch
from dexorder_ingestor.broker.dispatches import StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.job import LiveJob, Services
from dexorder_ingestor.realtime.relay_client import LivePush, Reports, resume

log = structlog.get_logger(__name__)


class RealtimeRunner:
    """Runs realtime dispatches. Keeps nothing between them except connections."""

    def __init__(
        self,
        venues: Mapping[str, CcxtVenue],
        queries: Mapping[str, LiveQueries],
        publisher: IngestorPublisher,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
    ) -> None:
        self.reports = Reports(publisher)
        self.live = LivePush(publisher, metrics)
        self._settings = settings
        self._metrics = metrics
        self._services = {
            name: Services(queries[name], LiveSockets(venue), publisher, self.reports, self.live, settings, metrics)
            for name, venue in venues.items()
        }

    async def run(self, dispatch: RealtimeDispatch, stop: StopSignal) -> DispatchEnd | None:
        """Run one dispatch until its stop; return how it ended, or None if the relay no longer wants it."""
        trace = uuid.uuid4().hex
        with structlog.contextvars.bound_contextvars(dispatch_id=dispatch.dispatch_id, trace=trace):
            ticker, params = dispatch.ticker, dispatch.params
            log.info(
                "realtime dispatch started",
                ticker=ticker,
                trades=params.include_ticks,
                periods=params.periods,
            )
            completion = await self._run(dispatch, stop, trace)
            outcome = "fenced" if completion is None else "ok" if completion.success else "handed_back"
            self._metrics.dispatches.labels(dispatch.instrument.venue, outcome).inc()
            log.info("realtime dispatch ended", outcome=outcome, message=completion.message if completion else None)
            return completion

    async def _run(self, dispatch: RealtimeDispatch, stop: StopSignal, trace: str) -> DispatchEnd | None:
        services = self._services[dispatch.instrument.venue]
        try:
            now_ns = await services.queries.know(dispatch.instrument.symbol)
            begin = await resume(
                services.publisher,
                self._settings,
                dispatch.dispatch_id,
                fallback_ns=now_ns,
                periods=dispatch.params.periods,
            )
        except (ExchangeFailure, Unavailable) as error:
            return DispatchEnd(dispatch.dispatch_id, success=False, message=str(error))
        if begin is None:
            return None
        return await LiveJob(dispatch, begin, services, trace).run(stop)

    async def close(self) -> None:
        """Close all sockets."""
        for services in self._services.values():
            await services.sockets.close()
