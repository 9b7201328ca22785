"""All trades of a span, or none: a candle is never built again from a part of its trades."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.candle_checker import refetch

SPAN = TimeRange(1_700_000_000 * SECOND_NS, 1_700_000_060 * SECOND_NS)


def _trades(*seconds: int) -> list[Trade]:
    """Return trades at seconds of the span, numbered by them."""
    return [Trade(SPAN.start_ns + s * SECOND_NS, 100 + s, str(100 + s), 1.5, 0.25, "buy", 1, 0) for s in seconds]


class Exchange:
    """An exchange with some trades, whose answers have at most ``page``."""

    def __init__(self, series: TradeSeries, trades: list[Trade], page: int) -> None:
        self.venue = SimpleNamespace(trade_series=series)
        self._trades = trades
        self._page = page

    async def trades(self, symbol: str, query: TradeQuery, accept: Callable[[TradeAnswer], TradeAnswer]) -> TradeAnswer:
        found = self._trades[-self._page :]
        if query.number is not None:
            found = [t for t in self._trades if t.number >= query.number][: self._page]
        elif query.since_ns is not None and self.venue.trade_series.by_time:
            found = [t for t in self._trades if t.time_ns >= query.since_ns][: self._page]
        return accept(TradeAnswer(found, len(found) == self._page, SPAN.end_ns))


@pytest.mark.parametrize("exchange", ["binance", "kraken", "okx", "unheard-of"])
async def test_the_trades_of_the_span_are_found(exchange: str) -> None:
    there: Any = Exchange(dialect_of(exchange).trades, _trades(-1, 0, 1, 2, 59, 60, 61), page=7)
    if dialect_of(exchange).trades.numbered:
        there = Exchange(dialect_of(exchange).trades, _trades(*range(-5, 70)), page=7)
        assert await refetch(there, "X", SPAN) == _trades(*range(60))
    else:
        assert await refetch(there, "X", SPAN) == _trades(0, 1, 2, 59)


@pytest.mark.parametrize("exchange", ["coinbase", "okx", "bybit", "unheard-of"])
async def test_trades_that_may_not_be_all_are_none(exchange: str) -> None:
    """No trade from before the span is known, so the first ones may be missing."""
    there: Any = Exchange(dialect_of(exchange).trades, _trades(1, 2, 59, 61), page=7)
    assert await refetch(there, "X", SPAN) is None


async def test_a_missing_number_is_none() -> None:
    there: Any = Exchange(dialect_of("kraken").trades, _trades(-1, 0, 1, 3, 4, 60), page=7)
    assert await refetch(there, "X", SPAN) is None


@pytest.mark.parametrize("exchange", ["coinbase", "okx", "bybit"])
async def test_newest_trades_that_do_not_reach_back_are_none(exchange: str) -> None:
    there: Any = Exchange(dialect_of(exchange).trades, _trades(*range(-5, 70)), page=20)
    assert await refetch(there, "X", SPAN) is None
