"""Realtime jobs: the series of one market, the four tasks that work on it, their start and their end.

SocketReader      messages of the socket -> series
Refiller          queries to REST that the series wants -> series; opens a deaf socket again
RecordPublisher   released trades and closed candles -> Kafka, then the report to the relay
CandleChecker     closed candles against the exchange's own; a difference is repaired from the trades in REST
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dexorder_common.model.realtime import RealtimeDispatch
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.dispatches import StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.candle_checker import CandleChecker
from dexorder_ingestor.realtime.candle_checks import CandleChecks
from dexorder_ingestor.realtime.live_series import LiveSeries, Resume
from dexorder_ingestor.realtime.record_publisher import RecordPublisher
from dexorder_ingestor.realtime.records import RecordHeaders, encode_live
from dexorder_ingestor.realtime.refiller import Refiller
from dexorder_ingestor.realtime.relay_client import LivePush, Reports
from dexorder_ingestor.realtime.socket_reader import SocketReader
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb

_STOP_SECONDS = 0.8
"""Time for the last records after a stop; WorkStop is obeyed within a second."""


@dataclass(frozen=True)
class Services:
    """Connections and settings that the realtime jobs of a venue share."""

    queries: LiveQueries
    sockets: LiveSockets
    publisher: IngestorPublisher
    reports: Reports
    live: LivePush
    settings: IngestorSettings
    metrics: IngestorMetrics


class LiveJob:
    """One realtime dispatch; `run` once."""

    def __init__(self, dispatch: RealtimeDispatch, resume: Resume, services: Services, trace: str) -> None:
        queries, sockets, settings, metrics = services.queries, services.sockets, services.settings, services.metrics
        venue, symbol, changed = queries.venue, dispatch.instrument.symbol, self._changed
        self._job_id = dispatch.dispatch_id
        self._live = services.live
        self._reports = services.reports
        self._series = series = LiveSeries(
            venue.trade_series,
            resume,
            include_trades=dispatch.params.include_ticks,
            periods=dispatch.params.periods,
            poll_ns=int(settings.trade_poll_seconds * SECOND_NS),
            now_ns=venue.clock.monotonic_ns(),
        )
        headers, checks = RecordHeaders(dispatch, trace), CandleChecks(dispatch.params.periods)
        self._reader = SocketReader(venue, sockets, symbol, series, changed, metrics)
        self._refiller = Refiller(queries, sockets, symbol, series, changed, metrics)
        self._publisher = RecordPublisher(
            headers, series, checks.add, changed, services.publisher, services.reports, venue.clock, metrics
        )
        self._checker = CandleChecker(
            *(queries, symbol, checks, series, self._publisher.alarm.ring, metrics),
            pause_seconds=settings.candle_check_seconds,
        )

    async def run(self, stop: StopSignal) -> DispatchEnd | None:
        """Work until the stop; return how the job ended, or None if the relay no longer wants it."""
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(self._publisher.run(stop))
            others = [group.create_task(each.run()) for each in (self._reader, self._refiller, self._checker)]
            stopping = group.create_task(stop.wait())
            try:
                await asyncio.wait({publishing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                self._publisher.alarm.ring()
                await asyncio.wait({publishing}, timeout=_STOP_SECONDS)
            finally:
                for task in (publishing, *others, stopping):
                    task.cancel()
        self._reports.forget(self._job_id)
        if self._publisher.is_fenced:
            return None
        failure = publishing.result() if not publishing.cancelled() else None
        return failure or stop.completion(self._job_id)

    def take_live(self) -> relay_pb.JobMarketData | None:
        """See `LiveSource.take_live`."""
        found = self._series.take_live()
        return encode_live(self._job_id, *found) if found else None

    def _changed(self) -> None:
        """Wake the tasks that have something to do before they wake up by themselves."""
        if self._series.has_news:
            self._live.changed(self)
        if self._series.wake_ns < self._refiller.alarm.at_ns:
            self._refiller.alarm.ring()
        if self._series.has_records_before(self._publisher.alarm.at_ns):
            self._publisher.alarm.ring()
