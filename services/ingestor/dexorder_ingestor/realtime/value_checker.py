"""Task of a realtime job that asks REST about the trades that came by the socket alone, and the calls it may make."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.trades import TradeAnswer, TradeQuery
from dexorder_ingestor.realtime.exchange_tasks import MarketTask

_LOOK_SECONDS, _SOONEST_SECONDS = 5.0, 0.5


@dataclass(eq=False)
class ValueChecker(MarketTask):
    """Asks REST about trades that came by the socket alone, after all other queries and within a budget.

    Attributes:
        has_candles: The market's candles are compared with the exchange's own too, which shows most wrong values; so
            markets without candles come first.
    """

    has_candles: bool

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._seconds_to_wait())
                await self._look()
        finally:
            self.series.values.clear()
            self._tell()

    def _seconds_to_wait(self) -> float:
        due_ns = self.series.values.due_ns()
        left = _LOOK_SECONDS if due_ns is None else (due_ns - self._now_ns()) / SECOND_NS
        return min(max(left, _SOONEST_SECONDS), _LOOK_SECONDS)

    async def _look(self) -> None:
        now_ns = self._now_ns()
        query = self.series.values.take_query(self.series.settled_ns, now_ns=now_ns)
        self._tell()
        if query is None:
            return
        services = self.services
        others_wait = self._venue.ban_left_ns > 0 or services.queries.is_busy
        if others_wait or not services.comparisons.take(now_ns=now_ns, can_wait=self.has_candles):
            await asyncio.sleep(_LOOK_SECONDS)
            return
        await self._query(query)

    async def _query(self, query: TradeQuery) -> None:
        try:
            await self.services.queries.trades(self.symbol, query, self._answered)
        except ExchangeFailure as error:
            self._log.info("trades not compared yet", reason=str(error)[:300])
            self.series.values.failed(now_ns=self._now_ns())
            return
        self._metrics.trade_comparisons.labels(self._venue.name).inc()

    def _answered(self, answer: TradeAnswer) -> None:
        self.series.compared(answer, now_ns=self._now_ns())
        self.changed()

    def _tell(self) -> None:
        left_out = self.series.values.take_left_out()
        if left_out is not None:
            self._metrics.uncompared_trades.labels(self._venue.name).inc(left_out.trades)
            self._log.info("trades not compared with REST", trades=left_out.trades, span=str(left_out.span))
