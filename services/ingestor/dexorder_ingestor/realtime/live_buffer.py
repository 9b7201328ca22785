"""Live data of one job that the stream to the relay has not taken yet. Pure.

Bounded even if the stream is slow: the oldest items are dropped, and counted for the watching clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dexorder_common.model.page import Candle
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.live_candles import ClosedCandles

MAX_LIVE = 1_000
"""Trades, and closed candles, that are kept."""
_TRADES = 0


@dataclass(slots=True)
class MissedLive:
    """Number of trades (period 0) or candles that were dropped, and the times of the first and last of them."""

    period_seconds: int
    count: int
    start_ns: int
    end_ns: int


class ClosedCandle(NamedTuple):
    """A candle that was closed or amended."""

    period_seconds: int
    candle: Candle
    amends: bool


class LiveNews(NamedTuple):
    """Changes since the last `LiveBuffer.take`: ``received_ns`` of the newest trade, ids of ``refilled`` trades."""

    missed: tuple[MissedLive, ...]
    trades: tuple[Trade, ...]
    closed: tuple[ClosedCandle, ...]
    received_ns: int
    refilled: frozenset[str] = frozenset()


class LiveBuffer:
    """Trades and closed candles since the last `take`, and whether candles that run have changed."""

    def __init__(self, *, include_trades: bool, max_items: int = MAX_LIVE) -> None:
        self._include_trades = include_trades
        self._max_items = max_items
        self._trades: deque[Trade] = deque()
        self._refilled: set[str] = set()
        self._closed: deque[ClosedCandle] = deque()
        self._missed: dict[int, MissedLive] = {}
        self.has_news = False
        self._received_ns = 0

    def add_trades(self, trades: Iterable[Trade], *, received_ns: int, is_refilled: bool = False) -> None:
        """Add trades; ``received_ns`` is of the newest one, for the candles that run."""
        self.has_news = True
        self._received_ns = received_ns
        if not self._include_trades:
            return
        trades = list(trades)
        self._trades.extend(trades)
        if is_refilled:
            self._refilled.update(each.trade_id for each in trades)
        while len(self._trades) > self._max_items:
            dropped = self._trades.popleft()
            self._refilled.discard(dropped.trade_id)
            self._miss(_TRADES, dropped.time_ns)

    def add_closed(self, closed: Iterable[ClosedCandles]) -> None:
        """Add candles that were closed or amended."""
        self.has_news = True
        for each in closed:
            self._closed.extend(ClosedCandle(each.period_seconds, candle, each.amends) for candle in each.candles)
        while len(self._closed) > self._max_items:
            period, candle, _ = self._closed.popleft()
            self._miss(period, candle.open_ns)

    def take(self) -> LiveNews | None:
        """Remove and return everything; None without news."""
        if not self.has_news:
            return None
        self.has_news = False
        trades, self._trades = self._trades, deque()
        closed, self._closed = self._closed, deque()
        missed, self._missed = self._missed, {}
        refilled, self._refilled = frozenset(self._refilled), set()
        return LiveNews(tuple(missed.values()), tuple(trades), tuple(closed), self._received_ns, refilled)

    def _miss(self, period: int, time_ns: int) -> None:
        known = self._missed.setdefault(period, MissedLive(period, 0, time_ns, time_ns))
        known.count += 1
        known.start_ns, known.end_ns = min(known.start_ns, time_ns), max(known.end_ns, time_ns)
