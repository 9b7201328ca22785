"""Task of a realtime job: closed candles compared with the exchange's own, and repaired from the trades in REST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import structlog

from dexorder_common.model.periods import next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.realtime.candle_checks import CandleChecks
from dexorder_ingestor.realtime.live_series import LiveSeries

log = structlog.get_logger(__name__)
_MAX_PAGES = 100
_BEFORE_NS = 600 * SECOND_NS
"""Time before the span in which a trade is looked for, where nothing else proves that the first one is not missing."""


class CandleChecker:
    """Checks the closed candles of one market from time to time."""

    def __init__(
        self,
        queries: LiveQueries,
        symbol: str,
        checks: CandleChecks,
        series: LiveSeries,
        repaired: Callable[[], None],
        metrics: IngestorMetrics,
        *,
        pause_seconds: float,
    ) -> None:
        """Take the market; ``repaired`` is called after each repair of a candle."""
        self._queries = queries
        self._symbol = symbol
        self._checks = checks
        self._series = series
        self._repaired = repaired
        self._metrics = metrics
        self._pause_seconds = pause_seconds
        self._log = log.bind(exchange=queries.venue.name, symbol=symbol)

    async def run(self) -> None:
        """Check until cancelled."""
        differing: list[tuple[int, int]] = []
        while True:
            await asyncio.sleep(self._pause_seconds)
            differing += await self._compare()
            differing = [each for each in differing if not await self._is_repaired(*each)]

    async def _compare(self) -> list[tuple[int, int]]:
        """Compare closed candles with the exchange's own; return period and open time of those that differ."""
        venue, found = self._queries.venue, []
        for period, span in self._checks.due(venue.limits.candles):
            try:
                theirs = await self._queries.candles(self._symbol, period, span)
            except ExchangeFailure as error:
                self._log.info("candles not checked", reason=str(error)[:300])
                continue
            self._metrics.candles_checked.labels(venue.name).inc()
            for open_ns in self._checks.compare(period, span, theirs):
                self._metrics.candle_differences.labels(venue.name).inc()
                self._log.warning("candle differs from the exchange's own", period_seconds=period, open_ns=open_ns)
                found.append((period, open_ns))
        return found

    async def _is_repaired(self, period: int, open_ns: int) -> bool:
        """Query the trades of a candle and build it again; return False if the exchange does not answer."""
        span = TimeRange(open_ns, next_open(open_ns, period))
        try:
            trades = await refetch(self._queries, self._symbol, span)
        except ExchangeFailure as error:
            self._log.info("candle not repaired yet", reason=str(error)[:300])
            return False
        if trades is None:
            self._log.warning("candle can't be repaired: its trades are too many, or some are missing")
            return True
        self._series.repair(period, open_ns, trades, now_ns=self._queries.venue.clock.monotonic_ns())
        self._repaired()
        return True


async def refetch(queries: LiveQueries, symbol: str, span: TimeRange) -> list[Trade] | None:
    """Return the trades of a span; None if they are too many, or some are or may be missing.

    Raises:
        ExchangeFailure: The exchange does not answer.
    """
    series = queries.venue.trade_series
    found: dict[str, Trade] = {}
    before_ns = 1_000_000 if series.numbered else _BEFORE_NS
    query = TradeQuery(since_ns=max(0, span.start_ns - before_ns)) if series.by_time else TradeQuery()
    for _ in range(_MAX_PAGES):
        answer = await queries.trades(symbol, query, _unchanged)
        found.update((trade.trade_id, trade) for trade in answer.trades)
        last = max(answer.trades, default=None)
        if last is None or last.time_ns >= span.end_ns or not answer.full or not series.by_time:
            break
        query = series.query(last.number if series.numbered else None, last.time_ns)
    else:
        return None
    if not series.numbered and all(trade.time_ns >= span.start_ns for trade in found.values()):
        return None
    trades = sorted(trade for trade in found.values() if span.start_ns <= trade.time_ns < span.end_ns)
    if series.numbered and any(other.number != one.number + 1 for one, other in pairwise(trades)):
        return None
    return trades


def _unchanged(answer: TradeAnswer) -> TradeAnswer:
    return answer
