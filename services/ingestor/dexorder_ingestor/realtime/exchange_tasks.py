"""Tasks of a realtime job that face the exchange: its socket, and the queries to REST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ccxt.async_support as ccxt
import structlog

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.socket_thread import Received
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.live_series import LiveSeries, MissingTrades
from dexorder_ingestor.realtime.record_joiner import RecordJoiner
from dexorder_ingestor.realtime.relay_client import LivePush, Reports
from dexorder_ingestor.realtime.sources.comparison_limits import ComparisonLimits
from dexorder_ingestor.realtime.waiting import Progress, why_failed

log = structlog.get_logger(__name__)
_RECONNECT_SECONDS, _LONGEST_RECONNECT_SECONDS = 0.1, 10.0
_LONGEST_WAIT_NS = SECOND_NS
_PING_NS = SECOND_NS
"""Shortest time between two pings of a market's socket."""
_LOOK_SECONDS = 1.0
_MAX_BACKLOG = 20_000
"""Trades that wait for their records; no query is sent while there are more."""


@dataclass(frozen=True)
class Services:
    """Connections and settings that the realtime jobs of a venue share."""

    venue: CcxtVenue
    queries: LiveQueries
    sockets: LiveSockets
    publisher: IngestorPublisher
    joiner: RecordJoiner
    reports: Reports
    live: LivePush
    settings: IngestorSettings
    metrics: IngestorMetrics
    comparisons: ComparisonLimits


class Alarm:
    """Alarm of a task that waits for a time. Times are of the monotonic clock.

    To wake a task costs more than to handle a message, so `ring` is called only if there is something to do before
    ``at_ns``.
    """

    def __init__(self) -> None:
        self.at_ns = 0
        """Time at which the task wakes up by itself."""
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the task, or let its next `wait` return at once."""
        self._event.set()

    def reset(self) -> None:
        """Forget earlier calls of `ring`; the task looks for work after this."""
        self._event.clear()

    async def wait(self, wait_ns: int, *, now_ns: int) -> bool:
        """Wait for a time; return whether `ring` ended it."""
        self.at_ns = now_ns + wait_ns
        try:
            async with asyncio.timeout(wait_ns / SECOND_NS):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


@dataclass(eq=False)
class MarketTask:
    """Task about one market; ``changed`` is called after each change of the series."""

    services: Services
    symbol: str
    series: LiveSeries
    changed: Callable[[], None]

    def __post_init__(self) -> None:
        self._venue = self.services.venue
        self._metrics = self.services.metrics
        self._log = log.bind(exchange=self._venue.name, symbol=self.symbol)

    def _now_ns(self) -> int:
        return self._venue.clock.monotonic_ns()


@dataclass(eq=False)
class SocketReader(MarketTask):
    """Reads the messages of the socket into the series, and connects again when the connection is lost."""

    progress: Progress
    _dropped: int = 0

    async def run(self) -> None:
        """Read until cancelled; return at once if ccxt.pro does not offer trades of this exchange."""
        sockets = self.services.sockets
        if not sockets.can_watch:
            self._log.warning("ccxt.pro does not offer trades of this exchange: REST only")
            return
        pause = _RECONNECT_SECONDS
        with sockets.watching(self.symbol) as subscription:
            while True:
                try:
                    messages = await subscription.next()
                    self._count_dropped(subscription.dropped)
                    self._take(messages)
                    pause = _RECONNECT_SECONDS
                except ccxt.BaseError as error:
                    self._metrics.disconnects.labels(self._venue.name).inc()
                    self._log.info("socket lost", reason=str(error)[:200])
                    self.series.disconnected(now_ns=self._now_ns())
                    self.changed()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_RECONNECT_SECONDS)

    def _count_dropped(self, dropped: int) -> None:
        if more := dropped - self._dropped:
            self._dropped = dropped
            self._metrics.dropped_messages.labels(self._venue.name).inc(more)
            self.progress.dropped(more, now_ns=self._now_ns())

    def _take(self, messages: Sequence[Received]) -> None:
        """Add messages as one: most of the work is the same for one trade as for many."""
        trades = [trade for message in messages for trade in self._read(message)]
        if trades:
            self.series.received(trades, now_ns=self._now_ns())
            self.changed()

    def _read(self, message: Received) -> list[Trade]:
        """Return the trades of a message; log a malformed one and return an empty list."""
        read = self._venue.trade_series.read
        try:
            return [read(row, message.received_ns) for row in message.rows]
        except BadAnswer as error:
            self._metrics.bad_messages.labels(self._venue.name).inc()
            self._log.info("message of the socket dropped", reason=str(error)[:200])
            return []


@dataclass(eq=False)
class Refiller(MarketTask):
    """Queries trades when the series wants them, and opens a deaf socket again."""

    progress: Progress
    alarm: Alarm = field(default_factory=Alarm)
    _pinged_ns: int = 0

    async def run(self) -> None:
        """Query until cancelled."""
        while True:
            await self._until_due()
            if self.series.backlog > _MAX_BACKLOG:
                await asyncio.sleep(0.05)
            elif self.series.is_deaf(now_ns=self._now_ns()):
                self._log.warning("socket is deaf; opening it again")
                self._metrics.reopened.labels(self._venue.name).inc()
                self.services.sockets.reopen(self.symbol)
            elif query := self.series.take_query(now_ns=self._now_ns()):
                await self._query(query)

    async def _until_due(self) -> None:
        """Wait until the series wants a query, or suspects that the socket is deaf."""
        while True:
            self.alarm.reset()
            now_ns = self._now_ns()
            self._look_at_socket(now_ns)
            at_ns = self.series.next_query_ns(now_ns=now_ns, exchange_ns=self.services.queries.clock_estimate_ns)
            if at_ns <= now_ns:
                return
            await self.alarm.wait(min(at_ns - now_ns, _LONGEST_WAIT_NS), now_ns=now_ns)

    def _look_at_socket(self, now_ns: int) -> None:
        """Tell the series when something has last come on the socket; ping the socket if the series waits for that."""
        if (silence_ns := self.services.sockets.silence_ns(self.symbol)) is None:
            return
        self.series.socket_alive(now_ns - silence_ns)
        if self.series.wants_life_after_ns is not None and now_ns >= self._pinged_ns + _PING_NS:
            self._pinged_ns = now_ns
            self.services.sockets.ping(self.symbol)

    async def _keep_looking(self) -> None:
        """Look at the socket while a query takes long: a time without looks would count as a break of the socket."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look_at_socket(self._now_ns())

    async def _query(self, query: TradeQuery) -> None:
        looking = asyncio.create_task(self._keep_looking())
        try:
            missing = await self.services.queries.trades(self.symbol, query, self._answered)
        except ExchangeFailure as error:
            self._log.warning("trades not queried", reason=str(error))
            self.series.query_failed(now_ns=self._now_ns())
            self.progress.failed(why_failed(error))
            return
        finally:
            looking.cancel()
        self.progress.answered()
        self._metrics.refills.labels(self._venue.name).inc()
        for gap in missing.numbers:
            self._log.warning("trades do not exist", first=gap.first, last=gap.last)
            self._metrics.skipped_trades.labels(self._venue.name).inc(gap.last - gap.first + 1)
        for span in missing.spans:
            self._log.warning("trades are lost: the exchange no longer has them", span=str(span))
            self._metrics.lost_spans.labels(self._venue.name).inc()

    def _answered(self, answer: TradeAnswer) -> MissingTrades:
        missing = self.series.answered(answer, now_ns=self._now_ns())
        self.changed()
        return missing
