"""Searches of a market's trades: for the one before a time, and for the place where its numbers start again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import PAGE_TRADES, Trade, TradeQuery, TradeSeries

_FIRST_LOOKBACK_NS, _LOOKBACK_GROWTH, _LOOKBACKS = 2 * SECOND_NS, 32, 6
_ANSWERS = 3
_NEWEST_ANSWERS = 2


class Anchor:
    """Queries for the trade before ``begin_ns``: `next_query`, then `add`, until `is_found`.

    Attributes:
        is_found: The search is over.
        trade: The last known trade before the time; None in a market without one.
        first_number: Number of the first trade at or after the time; None in a market without trades so far.
        first_ns: Time of that trade, where no trade before the time is known.
    """

    def __init__(self, begin_ns: int, *, by_number: bool) -> None:
        """Start the search.

        Args:
            by_number: Queries may name a number; otherwise only times.
        """
        self.is_found = False
        self.trade: Trade | None = None
        self.first_number: int | None = None
        self.first_ns = begin_ns
        self._begin_ns = begin_ns
        self._by_number = by_number
        self._queries = 0
        self._agreed = 0

    def next_query(self) -> TradeQuery:
        """Return the next query: the newest trades, then trades since earlier and earlier times."""
        if self._queries == 0:
            return TradeQuery()
        if self._queries <= _LOOKBACKS:
            back_ns = _FIRST_LOOKBACK_NS * _LOOKBACK_GROWTH ** (self._queries - 1)
            return TradeQuery(since_ns=max(0, self._begin_ns - back_ns))
        if self._by_number and self.first_number is not None:
            return TradeQuery(number=max(0, self.first_number - PAGE_TRADES + 1))
        return TradeQuery(since_ns=0) if not self._by_number else TradeQuery()

    def add(self, trades: Sequence[Trade]) -> None:
        """Add the answer to the last query."""
        self._queries += 1
        before = [trade for trade in trades if trade.time_ns < self._begin_ns]
        if before:
            # by time: where numbers have started again, the trades before have larger ones
            self.trade = max(before, key=lambda trade: (trade.time_ns, trade.number))
            self.first_number = self.trade.number + 1
            self.is_found = True
            return
        lowest = min(trades, key=lambda trade: trade.number, default=None)
        if lowest is not None and (self.first_number is None or lowest.number < self.first_number):
            self.first_number, self.first_ns = lowest.number, lowest.time_ns
            self._agreed = 0
        elif self._queries > _LOOKBACKS + 1:
            self._agreed += 1
            self.is_found = self._agreed >= _ANSWERS


class Seam:
    """Queries for the place where numbers start again: `next_query`, then `add`, until `is_over`.

    The newest trades have lower numbers than the last known one, in two answers; the trades since that one show where.

    Attributes:
        is_over: The search is over.
        first: The first trade with a new number; None if numbers have not started again.
        tail: Trades with old numbers behind the last known one.
        fresh: Trades with new numbers.
    """

    def __init__(self, number: int, time_ns: int) -> None:
        """Start behind the last known trade."""
        self.is_over = False
        self.first: Trade | None = None
        self.tail: list[Trade] = []
        self.fresh: list[Trade] = []
        self._number = number
        self._time_ns = time_ns
        self._answers = 0

    def next_query(self, series: TradeSeries) -> TradeQuery:
        """Return the next query."""
        return TradeQuery() if self._answers < _NEWEST_ANSWERS else series.query(None, self._time_ns)

    def add(self, trades: Sequence[Trade], *, full: bool) -> None:
        """Add the answer to the last query."""
        self._answers += 1
        if self._answers <= _NEWEST_ANSWERS:
            newest = max(trades, key=lambda trade: trade.time_ns, default=None)
            self.is_over = newest is None or not self._is_new(newest)
            return
        before, known = self._number, len(self.tail)
        for place, trade in enumerate(trades):
            if trade.number < before and self._is_new(trade):
                self.first, self.fresh, self.is_over = trade, list(trades[place:]), True
                return
            before = trade.number
            if trade.number > self._number:
                self.tail.append(trade)
                self._number, self._time_ns = trade.number, trade.time_ns
        self.is_over = not full or len(self.tail) == known

    def _is_new(self, trade: Trade) -> bool:
        return trade.number < self._number and trade.time_ns > self._time_ns
