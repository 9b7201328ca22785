"""Task of a realtime job: messages of the socket into the series."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import ccxt.async_support as ccxt
import structlog

from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.socket_thread import Received
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.realtime.live_series import LiveSeries

log = structlog.get_logger(__name__)
_RECONNECT_SECONDS, _LONGEST_RECONNECT_SECONDS = 0.1, 10.0


class SocketReader:
    """Reads the messages of one market, and connects again when the connection is lost."""

    def __init__(
        self,
        venue: CcxtVenue,
        sockets: LiveSockets,
        symbol: str,
        series: LiveSeries,
        changed: Callable[[], None],
        metrics: IngestorMetrics,
    ) -> None:
        """Take the socket's market; ``changed`` is called after each change of the series."""
        self._venue = venue
        self._sockets = sockets
        self._symbol = symbol
        self._series = series
        self._changed = changed
        self._metrics = metrics

    async def run(self) -> None:
        """Read until cancelled; return at once if ccxt.pro has no trades of this exchange."""
        if not self._sockets.can_watch:
            log.warning("ccxt.pro has no trades of this exchange: REST only", exchange=self._venue.name)
            return
        pause = _RECONNECT_SECONDS
        with self._sockets.watching(self._symbol) as subscription:
            while True:
                try:
                    for message in await subscription.next():
                        self._take(message)
                    pause = _RECONNECT_SECONDS
                except ccxt.BaseError as error:
                    self._disconnected(str(error))
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_RECONNECT_SECONDS)

    def _take(self, message: Received) -> None:
        read = self._venue.trade_series.read
        try:
            trades = [read(row, message.received_ns) for row in message.rows]
        except BadAnswer as error:
            self._metrics.bad_messages.labels(self._venue.name).inc()
            log.info("message of the socket dropped", exchange=self._venue.name, reason=str(error)[:200])
            return
        self._series.received(trades, now_ns=self._venue.clock.monotonic_ns())
        self._changed()

    def _disconnected(self, reason: str) -> None:
        self._metrics.disconnects.labels(self._venue.name).inc()
        log.info("socket lost", exchange=self._venue.name, symbol=self._symbol, reason=reason[:200])
        self._series.disconnected(now_ns=self._venue.clock.monotonic_ns())
        self._changed()
