"""Queries of realtime jobs to REST: trades, the exchange's own closed candles, tickers.

Hundreds of jobs ask now and then, so they share a few sessions; each query borrows one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import MS_NS, BadAnswer
from dexorder_ingestor.exchange.trades import TradeAnswer, TradeQuery
from dexorder_ingestor.exchange.validation import check_market, read_candles
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue

T = TypeVar("T")
_SESSIONS = 4
_CLOCK_AGE_NS = SECOND_NS


class LiveQueries:
    """Queries to one venue."""

    def __init__(self, venue: CcxtVenue) -> None:
        self.venue = venue
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._clock_lock = asyncio.Lock()
        self._clock_ns = 0
        self._clock_read_ns: int | None = None

    @property
    def clock_estimate_ns(self) -> int:
        """The exchange's time as far as it is known: its last answer and the time since; 0 without one."""
        if self._clock_read_ns is None:
            return 0
        return self._clock_ns + self.venue.clock.monotonic_ns() - self._clock_read_ns

    @property
    def is_busy(self) -> bool:
        """Whether a query would have to wait for others."""
        return self._sessions.locked()

    async def know(self, symbol: str) -> int:
        """Check that the exchange has a symbol; return the exchange's time.

        Raises:
            ExchangeFailure: It does not, or its markets can't be loaded.
        """
        async with self._sessions, self.venue.session() as session:
            await self.venue.know(session, symbol)
            return await self._clock(session)

    async def trades(self, symbol: str, query: TradeQuery, accept: Callable[[TradeAnswer], T]) -> T:
        """Query trades; return the result of ``accept`` for the first answer that it accepts.

        Raises:
            ExchangeFailure: No attempt got a valid answer; ``accept`` may refuse one by BadAnswer.
        """
        series, clock = self.venue.trade_series, self.venue.clock
        since_ms, params = series.arguments(query)
        async with self._sessions, self.venue.session() as session:
            await self.venue.know(session, symbol)
            clock_ns = await self._clock(session)

            async def fetch() -> T:
                rows = await session.client.fetch_trades(symbol, since_ms, series.page, dict(params))
                received_ns = clock.wall_ns()
                _check_answer(session, symbol, rows, strict=series.numbered)
                trades = [series.read(row, received_ns) for row in rows]
                return accept(TradeAnswer(trades, len(trades) >= series.page, clock_ns))

            return await session.query(f"{symbol} trades, {query}", fetch)

    async def candles(self, symbol: str, period_seconds: int, span: TimeRange) -> list[Candle] | None:
        """Return the exchange's own closed candles of a span, at most its limit of one call; None if it offers none.

        Raises:
            ExchangeFailure: No attempt got a valid answer.
        """
        venue, timeframe = self.venue, PERIODS[period_seconds]
        async with self._sessions, venue.session() as session:
            client = session.client
            if client.has.get("fetchOHLCV") is not True or timeframe not in (client.timeframes or {}):
                return None
            await venue.know(session, symbol)
            if venue.dialect.history == "candles":
                return (await session.candles(symbol, timeframe, period_seconds, span))[0]

            async def fetch() -> list[Candle]:
                rows = await client.fetch_ohlcv(symbol, timeframe, span.start_ns // MS_NS)
                raw = client.last_json_response
                if not isinstance(raw, dict) or not isinstance(rows, list):
                    raise BadAnswer("the answer is not JSON", kind="not_json")
                check_market(venue.dialect.candles, raw, client.markets[symbol]["id"])
                inside = [row for row in rows if span.start_ns <= row[0] * MS_NS < span.end_ns]
                return read_candles(inside, span, period_seconds)

            return await session.query(f"{symbol} {timeframe} {span}", fetch)

    async def tickers(self) -> tuple[dict[str, Any], int]:
        """Return ccxt's tickers of all markets by symbol, and the wall clock time of the answer in nanoseconds.

        Raises:
            ExchangeFailure: The exchange does not offer them, or no attempt got a valid answer.
        """
        async with self._sessions, self.venue.session() as session:
            await self.venue.know(session)

            async def fetch() -> tuple[dict[str, Any], int]:
                found = await session.client.fetch_tickers()
                if not isinstance(found, dict) or not isinstance(session.client.last_json_response, (list, dict)):
                    raise BadAnswer("the answer is not JSON", kind="not_json")
                if not found:
                    raise BadAnswer("the answer has no tickers", kind="empty")
                return found, self.venue.clock.wall_ns()

            return await session.query("its tickers", fetch)

    async def _clock(self, session: CcxtSession) -> int:
        """Return a time that the exchange's clock has passed, not more than a second old."""
        async with self._clock_lock:
            now_ns = self.venue.clock.monotonic_ns()
            if self._clock_read_ns is None or now_ns - self._clock_read_ns > _CLOCK_AGE_NS:
                self._clock_ns = await session.now_ns()
                self._clock_read_ns = self.venue.clock.monotonic_ns()
            return self._clock_ns


def _check_answer(session: CcxtSession, symbol: str, rows: Any, *, strict: bool) -> None:
    """Raise BadAnswer unless an answer is a list of trades; ``strict`` if the place of its rows is known."""
    if strict:
        session.raw_rows(symbol, rows)
    elif not isinstance(session.client.last_json_response, (list, dict)):
        raise BadAnswer("the answer is not JSON", kind="not_json")
    if not isinstance(rows, list):
        raise BadAnswer(f"the answer is a {type(rows).__name__}, not a list of trades")
