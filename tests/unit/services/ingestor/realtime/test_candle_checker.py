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
from dexorder_ingestor.realtime.candle_checker import CandleChecker, refetch
from dexorder_ingestor.realtime.candle_checks import CandleChecks
from dexorder_ingestor.realtime.live_candles import ClosedCandles, candle_of

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


@pytest.mark.parametrize("exchange", ["binance", "kraken", "okx"])
async def test_the_last_trades_of_a_market_are_all_if_the_exchanges_own_candle_is_made_of_them(exchange: str) -> None:
    there: Any = Exchange(dialect_of(exchange).trades, _trades(*range(-1, 18)), page=100)
    inside = _trades(*range(18))
    assert await refetch(there, "X", SPAN) is None, "a later one may be missing"
    assert await refetch(there, "X", SPAN, candle_of([*inside, *_trades(40)])) is None, "one is"
    assert await refetch(there, "X", SPAN, candle_of(inside)) == inside


async def test_a_missing_number_is_none() -> None:
    there: Any = Exchange(dialect_of("kraken").trades, _trades(-1, 0, 1, 3, 4, 60), page=7)
    assert await refetch(there, "X", SPAN) is None


async def test_trades_before_and_after_a_place_where_numbers_begin_again_are_all_found() -> None:
    new = [t._replace(number=n, trade_id=str(n)) for n, t in enumerate(_trades(5, 17, 40, 60), start=100)]
    tape = [*_trades(-1, 0, 1), *new]
    there: Any = Exchange(dialect_of("kraken").trades, tape, page=20)
    assert await refetch(there, "X", SPAN) == tape[1:-1], "100 and 101 are two trades each"


@pytest.mark.parametrize("exchange", ["coinbase", "okx", "bybit"])
async def test_newest_trades_that_do_not_reach_back_are_none(exchange: str) -> None:
    there: Any = Exchange(dialect_of(exchange).trades, _trades(*range(-5, 70)), page=20)
    assert await refetch(there, "X", SPAN) is None


@pytest.mark.parametrize(("shown", "is_mended"), [(range(-1, 62), True), ([-1, *range(5, 62)], False)])
async def test_a_doubtful_candle_is_not_built_again_from_fewer_trades_than_it_was_made_of(
    shown: list[int], is_mended: bool
) -> None:
    """REST and the exchange's candle lack the same trades."""
    there: Any = Exchange(dialect_of("kraken").trades, _trades(*shown), page=100)
    theirs = candle_of([t for t in _trades(*shown) if SPAN.start_ns <= t.time_ns < SPAN.end_ns])
    old = candle_of(_trades(*range(60)))
    assert theirs is not None and old is not None
    checks, repairs = CandleChecks([60]), list[int]()
    checks.add(ClosedCandles(60, SPAN, (old._replace(open_ns=SPAN.start_ns),)))

    async def candles(symbol: str, period: int, span: TimeRange) -> list[Any]:
        return [theirs._replace(open_ns=SPAN.start_ns)]

    there.candles = candles
    there.clock_estimate_ns = SPAN.end_ns
    series: Any = SimpleNamespace(
        settled_ns=SPAN.end_ns, repair=lambda period, open_ns, trades, *, now_ns: repairs.append(open_ns)
    )
    venue = SimpleNamespace(name="kraken", clock=SimpleNamespace(monotonic_ns=lambda: 0))
    services: Any = SimpleNamespace(queries=there, venue=venue, metrics=None)
    checker = CandleChecker(services, "X", series, lambda: None, checks, lambda: None)
    assert await checker._is_mended(60, SPAN.start_ns) is is_mended
    assert repairs == [SPAN.start_ns] * is_mended
