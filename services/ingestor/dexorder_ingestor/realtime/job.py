"""A realtime job: trades of one market from its socket and from REST, the candles made of them, and their records.

Four tasks share the state, and change it without waiting in between. A message wakes `refill` and `publish` only if it
gives them something to do before they wake up by themselves, as waking them costs more than the message.

listen    messages of the socket -> feed
refill    queries to REST that the feed wants -> feed; opens a deaf socket again
publish   released trades and closed candles -> Kafka, one record after the other, then the report to the relay
check     closed candles against the exchange's own; a difference is repaired from the trades in REST
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import ccxt.async_support as ccxt
import structlog

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.periods import ceil_to_grid
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.requests import RealtimeDispatch
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.broker.stop import StopSignal
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.live_sockets import LiveSockets, SocketSubscription
from dexorder_ingestor.exchange.socket_thread import Received
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeSeries
from dexorder_ingestor.exchange.validation import BadAnswer
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.agreed_feed import AgreedFeed
from dexorder_ingestor.realtime.batches import Batch, Batches, lower, lowest_after
from dexorder_ingestor.realtime.candle_builder import CandleBuilder, ClosedCandles
from dexorder_ingestor.realtime.candle_checks import CandleChecks
from dexorder_ingestor.realtime.live_buffer import LiveBuffer
from dexorder_ingestor.realtime.numbered_feed import MARGIN_NS, NumberedFeed
from dexorder_ingestor.realtime.records import candle_pages, encode_live, trades_value
from dexorder_ingestor.realtime.refetch import refetch
from dexorder_ingestor.realtime.relay_client import LivePush, Progress, Reports, Resume
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb

log = structlog.get_logger(__name__)
_STOP_SECONDS = 0.8
"""Time for the last records after a stop; WorkStop is obeyed within a second."""
_SHORTEST_WAIT_NS, _LONGEST_WAIT_NS = SECOND_NS // 1_000, SECOND_NS
_MAX_BACKLOG = 20_000
"""Trades that wait for their records; no further ones are queried meanwhile."""
_RECONNECT_SECONDS, _LONGEST_RECONNECT_SECONDS = 0.1, 10.0


@dataclass(frozen=True)
class Services:
    """What all realtime jobs of a venue use."""

    queries: LiveQueries
    sockets: LiveSockets
    publisher: IngestorPublisher
    reports: Reports
    live: LivePush
    settings: IngestorSettings
    metrics: IngestorMetrics


class RealtimeJob:
    """One realtime dispatch; `run` once."""

    def __init__(
        self, dispatch: RealtimeDispatch, resume: Resume, services: Services, stop: StopSignal, trace: str
    ) -> None:
        self.job_id = dispatch.id
        self._dispatch = dispatch
        self._services = services
        self._stop = stop
        self._trace = trace
        self._venue = dispatch.instrument.venue
        self._symbol = dispatch.instrument.symbol
        self._clock = services.queries.venue.clock
        self._wake = asyncio.Event()
        self._turn = asyncio.Event()
        self._publish_at_ns = self._refill_at_ns = 0
        self._fenced = False
        self._pages = 0
        self._last_id = resume.last_trade_id
        self._start_ns = resume.start_ns
        starts = {p: ceil_to_grid(resume.candles.get(p, resume.start_ns), p) for p in dispatch.periods}
        now_ns = self._clock.monotonic_ns()
        series, begin_ns = services.queries.venue.trade_series, min([resume.start_ns, *starts.values()])
        self._feed: NumberedFeed | AgreedFeed
        if series.numbered:
            known = begin_ns == resume.start_ns and resume.last_trade_id.isdecimal()
            last_number = int(resume.last_trade_id) if known else None
            self._feed = NumberedFeed(series, begin_ns, last_number, now_ns=now_ns)
        else:
            poll_ns = int(services.settings.trade_poll_seconds * SECOND_NS)
            self._feed = AgreedFeed(begin_ns, now_ns=now_ns, poll_ns=poll_ns, by_time=series.by_time)
        self._settled_number = self._last_number = -1
        if series.numbered and resume.last_trade_id.isdecimal():
            self._settled_number = self._last_number = int(resume.last_trade_id)
        self._builder = CandleBuilder(starts)
        self._batches = Batches(resume.start_ns, now_ns=now_ns)
        self._checks = CandleChecks(starts)
        self._live = LiveBuffer(include_trades=dispatch.include_ticks)
        self._asked_ns = 0
        self._before_lost: tuple[list[Batch], list[ClosedCandles]] = [], []

    async def run(self) -> DispatchEnd | None:
        """Work until the stop; return how the job ended, or None if the relay no longer wants it."""
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(self._publish())
            others = [group.create_task(each) for each in (self._listen(), self._refill(), self._check())]
            stopping = group.create_task(self._stop.wait())
            try:
                await asyncio.wait({publishing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                self._wake.set()
                await asyncio.wait({publishing}, timeout=_STOP_SECONDS)
            finally:
                for task in (publishing, *others, stopping):
                    task.cancel()
        self._services.reports.forget(self.job_id)
        if self._fenced:
            return None
        failure = publishing.result() if not publishing.cancelled() else None
        return failure or self._stop.completion(self.job_id)

    def fence(self) -> None:
        """End the job without a completion."""
        self._fenced = True
        self._wake.set()

    def take_live(self) -> relay_pb.JobMarketData | None:
        """See `LiveSource.take_live`."""
        news = self._live.take()
        return encode_live(self.job_id, news, self._builder.running()) if news else None

    # --- socket -----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        sockets, series = self._services.sockets, self._services.queries.venue.trade_series
        if not sockets.can_watch:
            log.warning("ccxt.pro has no trades of this exchange: REST only", exchange=self._venue)
            return
        with sockets.watching(self._symbol) as subscription:
            await self._watch(subscription, series)

    async def _watch(self, subscription: SocketSubscription, series: TradeSeries) -> None:
        pause = _RECONNECT_SECONDS
        while True:
            try:
                for message in await subscription.next():
                    self._take(message, series)
                pause = _RECONNECT_SECONDS
            except ccxt.BaseError as error:
                self._disconnected(str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RECONNECT_SECONDS)

    def _take(self, message: Received, series: TradeSeries) -> None:
        try:
            self._received([series.read(row, message.received_ns) for row in message.rows])
        except BadAnswer as error:
            self._services.metrics.bad_messages.labels(self._venue).inc()
            log.info("message of the socket dropped", exchange=self._venue, reason=str(error)[:200])

    def _received(self, trades: Sequence[Trade]) -> None:
        released = self._feed.received(trades, now_ns=self._clock.monotonic_ns())
        self._release(released, live=released if self._feed.is_numbered else trades)
        if self._feed.wake_ns < self._refill_at_ns:
            self._turn.set()

    def _disconnected(self, reason: str) -> None:
        self._services.metrics.disconnects.labels(self._venue).inc()
        log.info("socket lost", exchange=self._venue, symbol=self._symbol, reason=reason[:200])
        self._feed.disconnected(now_ns=self._clock.monotonic_ns())
        self._turn.set()

    # --- REST -------------------------------------------------------------------------------------------------------

    async def _refill(self) -> None:
        feed, queries = self._feed, self._services.queries
        while True:
            await self._until_due()
            if len(self._batches) > _MAX_BACKLOG:
                await asyncio.sleep(0.05)
                continue
            if feed.is_deaf(now_ns=self._clock.monotonic_ns()):
                log.warning("socket is deaf; opening it again", exchange=self._venue, symbol=self._symbol)
                self._services.metrics.reopened.labels(self._venue).inc()
                self._services.sockets.reopen(self._symbol)
                continue
            if self._clock.monotonic_ns() < feed.due_ns:
                continue
            try:
                released = await queries.trades(self._symbol, feed.query(), self._answered)
                self._services.metrics.refills.labels(self._venue).inc()
                self._note_skipped()
                self._release(released, live=released if feed.is_numbered else ())
            except ExchangeFailure as error:
                log.warning("trades not queried", exchange=self._venue, symbol=self._symbol, reason=str(error))
                feed.failed(now_ns=self._clock.monotonic_ns())

    def _note_skipped(self) -> None:
        for gap in self._feed.skipped:
            log.warning("trades do not exist", symbol=self._symbol, first=gap.first, last=gap.last)
            self._services.metrics.skipped_trades.labels(self._venue).inc(gap.last - gap.first + 1)
        self._feed.skipped.clear()

    def _answered(self, answer: TradeAnswer) -> list[Trade]:
        return self._feed.answered(answer, now_ns=self._clock.monotonic_ns())

    async def _until_due(self) -> None:
        """Wait until the feed wants something; ask it to settle the candles that should be closed by now."""
        while True:
            self._turn.clear()
            now_ns = self._clock.monotonic_ns()
            close_ns = self._builder.next_close_ns()
            if close_ns is not None and self._feed.settled_ns < close_ns:
                is_over = self._services.queries.clock_estimate_ns >= close_ns + 2 * MARGIN_NS
                if is_over and now_ns >= self._asked_ns + SECOND_NS:
                    self._asked_ns = now_ns
                    self._feed.ask(now_ns)
            wait_ns = self._feed.wake_ns - now_ns
            if wait_ns <= 0:
                return
            wait_ns = min(wait_ns, _LONGEST_WAIT_NS)
            self._refill_at_ns = now_ns + wait_ns
            try:
                async with asyncio.timeout(wait_ns / SECOND_NS):
                    await self._turn.wait()
            except TimeoutError:
                pass

    # --- released trades --------------------------------------------------------------------------------------------

    def _leave_out_lost(self) -> None:
        """Let the next spans begin behind trades that are lost for good; what is known before them is due at once."""
        batches, closed = self._before_lost
        for span in self._feed.lost:
            log.warning("trades are lost: the exchange no longer has them", span=str(span), symbol=self._symbol)
            self._services.metrics.lost_spans.labels(self._venue).inc()
            batches += self._batches.take(span.start_ns, now_ns=self._clock.monotonic_ns(), flush=True)
            closed += self._builder.close(span.start_ns)
            self._batches.skip(span.end_ns)
            self._builder.skip(span.end_ns)
        self._feed.lost.clear()

    def _release(self, released: Sequence[Trade], *, live: Sequence[Trade]) -> None:
        self._leave_out_lost()
        if released:
            self._builder.add(released)
            wanted = [trade for trade in released if self._is_new(trade)]
            self._batches.add(wanted, now_ns=self._clock.monotonic_ns())
        if live:
            self._live.add_trades(filter(self._is_new, live), received_ns=live[-1].received_ns)
            self._services.live.changed(self)
        if self._has_records_due():
            self._wake.set()

    def _has_records_due(self) -> bool:
        """Return whether there are records before the time at which the publishing task wakes up by itself."""
        batches, closed = self._before_lost
        close_ns = self._builder.next_close_ns()
        is_closed = close_ns is not None and self._feed.settled_ns >= close_ns
        is_sooner = self._dispatch.include_ticks and self._batches.due_ns() < self._publish_at_ns
        return bool(batches or closed or is_closed or is_sooner)

    def _is_new(self, trade: Trade) -> bool:
        """Return whether no earlier dispatch has produced a trade for certain."""
        if self._settled_number >= 0:
            return trade.number > self._settled_number
        return trade.time_ns >= self._start_ns

    # --- records ----------------------------------------------------------------------------------------------------

    async def _publish(self) -> DispatchEnd | None:
        """Publish until the stop or the fence; return a completion only if that fails."""
        try:
            while not self._fenced and not self._stop.is_set:
                self._wake.clear()
                if not await self._publish_due(flush=False):
                    await self._until_wanted()
            if not self._fenced:
                await self._publish_due(flush=True)
                await self._services.reports.flush()
        except Unavailable as error:
            return DispatchEnd(self.job_id, success=False, message=str(error))
        return None

    async def _until_wanted(self) -> None:
        now_ns = self._clock.monotonic_ns()
        wait_ns = _LONGEST_WAIT_NS
        if self._dispatch.include_ticks:
            wait_ns = max(_SHORTEST_WAIT_NS, min(self._batches.due_ns() - now_ns, wait_ns))
        self._publish_at_ns = now_ns + wait_ns
        try:
            async with asyncio.timeout(wait_ns / SECOND_NS):
                await self._wake.wait()
                await asyncio.sleep(0)
        except TimeoutError:
            pass

    async def _publish_due(self, *, flush: bool) -> bool:
        """Publish the records that are due; return whether there were any."""
        now_ns, settled_ns = self._clock.monotonic_ns(), self._feed.settled_ns
        batches, closed = self._before_lost
        self._before_lost = [], []
        closed += self._builder.close(settled_ns)
        if closed:
            self._live.add_closed(closed)
            self._services.live.changed(self)
        batches += self._batches.take(settled_ns, now_ns=now_ns, flush=flush)
        if self._dispatch.include_ticks:
            for batch, lowest in zip(batches, lowest_after(batches), strict=False):
                await self._produce_trades(batch, lowest)
        for each in closed:
            await self._produce_candles(each)
        return bool(closed or (batches and self._dispatch.include_ticks))

    async def _produce_trades(self, batch: Batch, lowest_later: int | None) -> None:
        headers = self._headers(Kind.TRADES, 0, batch.span)
        ticker = str(self._dispatch.instrument)
        publisher, metrics = self._services.publisher, self._services.metrics
        await publisher.produce(headers, trades_value(batch.trades), dataset=TRADES, key=ticker)
        metrics.trades.labels(self._venue).inc(len(batch.trades))
        self._report(0, batch.span, len(batch.trades), self._last_settled_id(batch, lowest_later))

    def _last_settled_id(self, batch: Batch, lowest_later: int | None) -> str:
        """Return the id of the last trade up to which Kafka has all; empty if it is not known.

        A trade still to come may have a smaller number, as trades are in the order of time.
        """
        last = max(batch.trades, key=lambda trade: trade.number, default=None)
        if not self._feed.is_numbered:
            return ""
        if last and last.number > self._last_number:
            self._last_number = last.number
            self._last_id = last.trade_id
        waiting = lower(lowest_later, self._batches.lowest)
        return self._last_id if waiting is None or waiting > self._last_number else ""

    async def _produce_candles(self, closed: ClosedCandles) -> None:
        period, ticker = closed.period_seconds, str(self._dispatch.instrument)
        for page in candle_pages(closed, self._clock.wall_ns()):
            headers = self._headers(Kind.PAGE, period, page.span, empty=page.empty, amends=closed.amends)
            value = page_value(self._dispatch.request_id, page.candles)
            await self._services.publisher.produce(headers, value, key=ticker)
            self._services.metrics.candles.labels(self._venue).inc(len(page.candles))
            self._report(period, page.span, len(page.candles))
        self._checks.add(closed)

    def _headers(
        self,
        kind: Kind,
        period_seconds: int,
        span: TimeRange,
        *,
        empty: tuple[TimeRange, ...] = (),
        amends: bool = False,
    ) -> PageHeaders:
        page, self._pages = self._pages, self._pages + 1
        return PageHeaders(
            kind=kind,
            ticker=str(self._dispatch.instrument),
            period_seconds=period_seconds,
            dispatch_id=self.job_id,
            page=page,
            span=span,
            fetched_ns=self._clock.wall_ns(),
            empty=empty,
            trace=self._trace,
            amends=amends,
        )

    def _report(self, period_seconds: int, span: TimeRange, count: int, last_trade_id: str = "") -> None:
        lag_ns = self._clock.wall_ns() - span.end_ns
        progress = Progress(self.job_id, period_seconds, span, count, last_trade_id, lag_ns)
        self._services.reports.add(self, progress)

    # --- checksums --------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        differing: list[tuple[int, int]] = []
        while True:
            await asyncio.sleep(self._services.settings.candle_check_seconds)
            differing += await self._compare()
            differing = [each for each in differing if not await self._is_repaired(*each)]

    async def _compare(self) -> list[tuple[int, int]]:
        """Compare closed candles with the exchange's own; return period and open time of those that differ."""
        queries, metrics = self._services.queries, self._services.metrics
        found = []
        for period, span in self._checks.due(queries.venue.limits.candles):
            try:
                theirs = await queries.candles(self._symbol, period, span)
            except ExchangeFailure as error:
                log.info("candles not checked", exchange=self._venue, symbol=self._symbol, reason=str(error)[:300])
                continue
            metrics.candles_checked.labels(self._venue).inc()
            for open_ns in self._checks.compare(period, span, theirs):
                metrics.candle_differences.labels(self._venue).inc()
                log.warning(
                    "candle differs from the exchange's own",
                    symbol=self._symbol,
                    period_seconds=period,
                    open_ns=open_ns,
                )
                found.append((period, open_ns))
        return found

    async def _is_repaired(self, period: int, open_ns: int) -> bool:
        """Query the trades of a candle and build it again; return False if the exchange does not answer."""
        try:
            trades = await refetch(self._services.queries, self._symbol, self._checks.span_of(period, open_ns))
        except ExchangeFailure as error:
            log.info("candle not repaired yet", exchange=self._venue, symbol=self._symbol, reason=str(error)[:300])
            return False
        if trades is None:
            log.warning("candle can't be repaired: its trades are too many, or some are missing", symbol=self._symbol)
            return True
        self._builder.rebuild(period, open_ns, trades)
        self._batches.add(trades, now_ns=self._clock.monotonic_ns())
        self._wake.set()
        return True
