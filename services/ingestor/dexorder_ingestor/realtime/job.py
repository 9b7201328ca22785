"""Realtime jobs: from the question where to start to the completion.

SocketReader      messages of the socket -> series
Refiller          queries to REST that the series wants -> series; opens a deaf socket again
RecordPublisher   released trades and closed candles -> Kafka, then the report to the relay
CandleChecker     closed candles against the exchange's own; a difference is repaired from the trades in REST
ValueChecker      trades of the socket alone against REST, a minute later
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.realtime import RealtimeDispatch
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.dispatches import StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.candle_checker import CandleChecker
from dexorder_ingestor.realtime.candle_checks import CandleChecks
from dexorder_ingestor.realtime.exchange_tasks import Refiller, Services, SocketReader
from dexorder_ingestor.realtime.live_series import LiveSeries, Resume
from dexorder_ingestor.realtime.record_joiner import RecordJoiner
from dexorder_ingestor.realtime.record_publisher import RecordPublisher
from dexorder_ingestor.realtime.records import RecordHeaders, encode_live
from dexorder_ingestor.realtime.relay_client import LivePush, Reports, resume
from dexorder_ingestor.realtime.sources.comparison_limits import ComparisonLimits
from dexorder_ingestor.realtime.value_checker import ValueChecker
from dexorder_ingestor.realtime.wait_teller import WaitTeller
from dexorder_ingestor.realtime.waiting import Progress
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb

log = structlog.get_logger(__name__)
_STOP_SECONDS = 0.8
"""Time for the last records after a stop; WorkStop is obeyed within a second."""


class RealtimeRunner:
    """Runs realtime dispatches. Keeps only connections between them."""

    def __init__(
        self,
        queries: Mapping[str, LiveQueries],
        publisher: IngestorPublisher,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        *,
        sockets: Callable[[CcxtVenue], LiveSockets] = LiveSockets,
    ) -> None:
        self.reports = reports = Reports(publisher)
        self.live = live = LivePush(publisher, metrics)
        self._metrics = metrics
        self._joiner = joiner = RecordJoiner(publisher)
        self._services = {
            name: Services(
                each.venue,
                each,
                sockets(each.venue),
                publisher,
                joiner,
                reports,
                live,
                settings,
                metrics,
                ComparisonLimits(each.venue.calls_per_second, now_ns=each.venue.clock.monotonic_ns()),
            )
            for name, each in queries.items()
        }

    async def run(self, dispatch: RealtimeDispatch, stop: StopSignal) -> DispatchEnd | None:
        """Run one dispatch until its stop; return how it ended, or None if the relay no longer wants it."""
        trace, params = uuid.uuid4().hex, dispatch.params
        with structlog.contextvars.bound_contextvars(dispatch_id=dispatch.dispatch_id, trace=trace):
            wanted = {"trades": params.include_ticks, "periods": params.periods}
            log.info("realtime dispatch started", ticker=dispatch.ticker, **wanted)
            completion = await self._run(dispatch, stop, trace)
            outcome = "fenced" if completion is None else "ok" if completion.success else "handed_back"
            self._metrics.dispatches.labels(dispatch.instrument.venue, outcome).inc()
            log.info("realtime dispatch ended", outcome=outcome, message=completion.message if completion else None)
            return completion

    async def _run(self, dispatch: RealtimeDispatch, stop: StopSignal, trace: str) -> DispatchEnd | None:
        services, job_id = self._services[dispatch.instrument.venue], dispatch.dispatch_id
        periods = dispatch.params.periods
        try:
            now_ns = await services.queries.know(dispatch.instrument.symbol)
            begin = await resume(services.publisher, services.settings, job_id, fallback_ns=now_ns, periods=periods)
        except (ExchangeFailure, Unavailable) as error:
            return DispatchEnd(job_id, success=False, message=str(error))
        if begin is None:
            return None
        self._joiner.markets += 1
        try:
            return await LiveJob(dispatch, begin, services, trace).run(stop)
        finally:
            self._joiner.markets -= 1

    async def close(self) -> None:
        """Close all sockets, and stop sending records."""
        await self._joiner.close()
        for services in self._services.values():
            await services.sockets.close()


class LiveJob:
    """One realtime dispatch: the series of one market, and the tasks that work on it. `run` once."""

    def __init__(self, dispatch: RealtimeDispatch, resume: Resume, services: Services, trace: str) -> None:
        venue, params, symbol = services.venue, dispatch.params, dispatch.instrument.symbol
        self._job_id, self._ticker = dispatch.dispatch_id, dispatch.ticker
        self._services = services
        silent_ns = services.queries.clock_estimate_ns - resume.start_ns
        self._series = series = LiveSeries(
            venue.trade_series,
            resume,
            include_trades=params.include_ticks,
            periods=params.periods,
            poll_ns=int(services.settings.trade_poll_seconds * SECOND_NS),
            now_ns=venue.clock.monotonic_ns(),
            has_socket=services.sockets.can_watch,
            silent_ns=silent_ns,
            room=services.comparisons.room,
        )
        checks = CandleChecks(params.periods, resume.unchecked, has_quotes=venue.dialect.candles.quote_is_sum)
        progress = Progress(resume.start_ns, silent_ns=silent_ns, now_ns=venue.clock.monotonic_ns())
        self._reader = SocketReader(services, symbol, series, self._changed, progress)
        self._refiller = Refiller(services, symbol, series, self._changed, progress)
        self._publisher = RecordPublisher(services, RecordHeaders(dispatch, trace), series, self._changed, checks)
        self._checker = CandleChecker(
            services, symbol, series, self._publisher.alarm.ring, checks, self._publisher.tell
        )
        self._values = ValueChecker(services, symbol, series, self._changed, bool(params.periods))
        self._teller = WaitTeller(services, symbol, series, progress, self._tell)

    async def run(self, stop: StopSignal) -> DispatchEnd | None:
        """Work until the stop; return how the job ended, or None if the relay no longer wants it."""
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(self._publisher.run(stop))
            others = [group.create_task(each.run()) for each in self._tasks()]
            stopping = group.create_task(stop.wait())
            try:
                await asyncio.wait({publishing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                self._publisher.alarm.ring()
                await asyncio.wait({publishing}, timeout=_STOP_SECONDS)
            finally:
                for task in (publishing, *others, stopping):
                    task.cancel()
        self._services.reports.forget(self._job_id)
        if self._publisher.is_fenced:
            return None
        failure = publishing.result() if not publishing.cancelled() else None
        return failure or stop.completion(self._job_id)

    def _tasks(self) -> tuple[SocketReader | Refiller | CandleChecker | ValueChecker | WaitTeller, ...]:
        return self._reader, self._refiller, self._checker, self._values, self._teller

    def _tell(self) -> None:
        self._publisher.waiting = self._teller.text
        self._publisher.tell(again=bool(self._teller.text))

    def take_live(self) -> relay_pb.JobMarketData | None:
        """See `LiveSource.take_live`."""
        found = self._series.take_live()
        return encode_live(self._job_id, self._ticker, *found, self._series.provisional) if found else None

    def _changed(self) -> None:
        """Wake the tasks that have something to do before they wake up by themselves."""
        if self._series.has_news:
            self._services.live.changed(self)
        if self._series.wake_ns < self._refiller.alarm.at_ns:
            self._refiller.alarm.ring()
        if self._series.has_records_before(self._publisher.wake_ns):
            self._publisher.alarm.ring()
        if self._series.has_doubtful:
            self._checker.alarm.ring()
