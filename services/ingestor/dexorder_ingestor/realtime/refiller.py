"""Task of a realtime job: the queries to REST that the series wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.trades import TradeAnswer, TradeQuery
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.realtime.alarm import Alarm
from dexorder_ingestor.realtime.live_series import LiveSeries, MissingTrades

log = structlog.get_logger(__name__)
_LONGEST_WAIT_NS = SECOND_NS
_MAX_BACKLOG = 20_000
"""Trades that wait for their records; no query is sent while there are more."""


class Refiller:
    """Queries trades of one market when they are due, and opens a deaf socket again."""

    def __init__(
        self,
        queries: LiveQueries,
        sockets: LiveSockets,
        symbol: str,
        series: LiveSeries,
        changed: Callable[[], None],
        metrics: IngestorMetrics,
    ) -> None:
        """Take the market; ``changed`` is called after each change of the series."""
        self.alarm = Alarm()
        self._queries = queries
        self._sockets = sockets
        self._symbol = symbol
        self._series = series
        self._changed = changed
        self._metrics = metrics
        self._exchange = queries.venue.name
        self._clock = queries.venue.clock

    async def run(self) -> None:
        """Query until cancelled."""
        while True:
            await self._until_due()
            if self._series.backlog > _MAX_BACKLOG:
                await asyncio.sleep(0.05)
            elif self._series.is_deaf(now_ns=self._clock.monotonic_ns()):
                log.warning("socket is deaf; opening it again", exchange=self._exchange, symbol=self._symbol)
                self._metrics.reopened.labels(self._exchange).inc()
                self._sockets.reopen(self._symbol)
            elif query := self._series.take_query(now_ns=self._clock.monotonic_ns()):
                await self._query(query)

    async def _until_due(self) -> None:
        """Wait until the series wants a query, or suspects that the socket is deaf."""
        while True:
            self.alarm.reset()
            now_ns = self._clock.monotonic_ns()
            at_ns = self._series.next_query_ns(now_ns=now_ns, exchange_ns=self._queries.clock_estimate_ns)
            if at_ns <= now_ns:
                return
            await self.alarm.wait(min(at_ns - now_ns, _LONGEST_WAIT_NS), now_ns=now_ns)

    async def _query(self, query: TradeQuery) -> None:
        try:
            missing = await self._queries.trades(self._symbol, query, self._answered)
        except ExchangeFailure as error:
            log.warning("trades not queried", exchange=self._exchange, symbol=self._symbol, reason=str(error))
            self._series.query_failed(now_ns=self._clock.monotonic_ns())
            return
        self._metrics.refills.labels(self._exchange).inc()
        self._note(missing)

    def _answered(self, answer: TradeAnswer) -> MissingTrades:
        missing = self._series.answered(answer, now_ns=self._clock.monotonic_ns())
        self._changed()
        return missing

    def _note(self, missing: MissingTrades) -> None:
        for gap in missing.numbers:
            log.warning("trades do not exist", symbol=self._symbol, first=gap.first, last=gap.last)
            self._metrics.skipped_trades.labels(self._exchange).inc(gap.last - gap.first + 1)
        for span in missing.spans:
            log.warning("trades are lost: the exchange no longer has them", span=str(span), symbol=self._symbol)
            self._metrics.lost_spans.labels(self._exchange).inc()
