"""Task of a realtime job that asks REST for the values of trades that only the socket has shown, and of trades that the
dispatch before had not compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
            if not self._venue.trade_series.numbered:  # otherwise the next dispatch compares them
                self._tell()

    def _seconds_to_wait(self) -> float:
        due_ns = [each for each in (self.series.values.due_ns(), self.series.recalled.due_ns()) if each is not None]
        left = (min(due_ns) - self._now_ns()) / SECOND_NS if due_ns else _LOOK_SECONDS
        return min(max(left, _SOONEST_SECONDS), _LOOK_SECONDS)

    async def _look(self) -> None:
        series, now_ns = self.series, self._now_ns()
        recall = series.recalled.take_query(now_ns=now_ns)
        query = recall or series.values.take_query(series.settled_ns, now_ns=now_ns)
        self._tell()
        if query is None:
            return
        services = self.services
        others_wait = self._venue.ban_left_ns > 0 or services.queries.is_busy
        if others_wait or not services.comparisons.take(now_ns=now_ns, can_wait=self.has_candles):
            await asyncio.sleep(_LOOK_SECONDS)
            return
        if recall:
            await self._query(query, series.recall, series.recalled.failed)
        else:
            await self._query(query, series.compared, series.values.failed)

    async def _query(self, query: TradeQuery, answered: Callable[..., None], failed: Callable[..., None]) -> None:
        def take(answer: TradeAnswer) -> None:
            answered(answer, now_ns=self._now_ns())
            self.changed()

        try:
            await self.services.queries.trades(self.symbol, query, take)
        except ExchangeFailure as error:
            self._log.info("trades not compared yet", reason=str(error)[:300])
            failed(now_ns=self._now_ns())
            return
        self._metrics.trade_comparisons.labels(self._venue.name).inc()

    def _tell(self) -> None:
        left_out = self.series.values.take_left_out()
        if left_out is not None:
            self._metrics.uncompared_trades.labels(self._venue.name).inc(left_out.trades)
            self._log.info("trades not compared with REST", trades=left_out.trades, span=str(left_out.span))
        if span := self.series.recalled.take_left_out():
            self._metrics.uncompared_spans.labels(self._venue.name).inc()
            self._log.info("trades of an earlier dispatch not compared with REST", span=str(span))
