"""All trades of a short span, queried again: the repair of a candle that differs from the exchange's own."""

from __future__ import annotations

from itertools import pairwise

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery

_MAX_PAGES = 100
_BEFORE_NS = 600 * SECOND_NS
"""Time before the span in which a trade is looked for, where nothing else proves that the first one is not missing."""


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
