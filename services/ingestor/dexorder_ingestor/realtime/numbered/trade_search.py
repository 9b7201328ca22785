"""Searches of a market's trades: for the one before a time, and for the place where its numbers start again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import PAGE_TRADES, Trade, TradeQuery, TradeSeries

_FIRST_LOOKBACK_NS, _LOOKBACK_GROWTH, _LOOKBACKS = 2 * SECOND_NS, 32, 6
_ANSWERS = 3
_NEWEST_ANSWERS = 2
_BEHIND_NS = 600 * SECOND_NS
"""Time for which REST may be behind the trade that is suspected."""


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

    Two answers with the newest trades have lower numbers than the last known one, and the trades since that one show
    where. Numbers may start again a second time, a few trades later: the newest trade then has a higher number, and
    only the trades before it show the place. An answer without a trade as late as the suspected one is ignored, because
    REST may be behind the socket.

    Attributes:
        is_over: The search is over.
        first: The first trade with a new number; None if numbers have not started again.
        tail: Trades with old numbers after the last known one.
        fresh: Trades with new numbers, up to the place where these seem to start again.
        is_cut: There is such a place.
        behind: Number of the last answers that did not reach the suspected trade.
    """

    def __init__(self, number: int, time_ns: int, *, until_ns: int = 0) -> None:
        """Start after the last known trade.

        Args:
            until_ns: Time of the trade with the suspected number; 0 without one.
        """
        self.is_over = self.is_cut = False
        self.first: Trade | None = None
        self.tail: list[Trade] = []
        self.fresh: list[Trade] = []
        self.behind = 0
        self._number = number
        self._time_ns = time_ns
        self._until_ns = until_ns
        self._answers = 0

    def reach(self, until_ns: int) -> None:
        """Note the time of one more trade with a suspected number: earlier answers prove nothing about it."""
        self._until_ns = max(self._until_ns, until_ns)

    def next_query(self, series: TradeSeries) -> TradeQuery:
        """Return the next query."""
        return TradeQuery() if self._answers < _NEWEST_ANSWERS else series.query(None, self._time_ns)

    def add(self, trades: Sequence[Trade], *, full: bool, clock_ns: int = 0) -> None:
        """Add the answer to the last query; ``clock_ns`` is the exchange's time."""
        if self._answers < _NEWEST_ANSWERS:
            self._add_newest(trades, clock_ns)
            return
        known = len(self.tail)
        is_shown = self._is_last_in(trades)
        for place, trade in enumerate(trades):
            if trade.number > self._number:
                self.tail.append(trade)
                self._number, self._time_ns, is_shown = trade.number, trade.time_ns, True
            elif self._is_new(trade, is_shown=is_shown):
                start, end = self._start_of_sequence(trades, place), _end_of_sequence(trades, place)
                self.first, self.is_over = trades[start], True
                self.fresh, self.is_cut = list(trades[start:end]), end < len(trades)
                return
        self.is_over = not full or len(self.tail) == known

    def _add_newest(self, trades: Sequence[Trade], clock_ns: int) -> None:
        newest = max(trades, key=lambda trade: trade.time_ns, default=None)
        is_shown = self._is_last_in(trades)
        if newest is not None and (
            self._is_new(newest, is_shown=is_shown)
            or any(self._is_certain(trade, is_shown=is_shown) for trade in trades)
        ):
            self._answers, self.behind = self._answers + 1, 0
        elif (newest.time_ns if newest else 0) < self._until_ns and clock_ns < self._until_ns + _BEHIND_NS:
            self.behind += 1
        else:
            self.is_over = True

    def _is_last_in(self, trades: Sequence[Trade]) -> bool:
        """Return whether an answer has the last known trade itself; another one of its number is no copy then."""
        return any(trade.number == self._number and trade.time_ns == self._time_ns for trade in trades)

    def _is_new(self, trade: Trade, *, is_shown: bool) -> bool:
        margin_ns = SECOND_NS if trade.number == self._number and not is_shown else 0  # copies differ a little in time
        return trade.number <= self._number and trade.time_ns > self._time_ns + margin_ns

    def _start_of_sequence(self, trades: Sequence[Trade], place: int) -> int:
        """Return the place of the first trade of the sequence, which may have the time of the last known one."""
        while (
            place
            and trades[place - 1].number == trades[place].number - 1
            and trades[place - 1].time_ns == self._time_ns
        ):
            place -= 1
        return place

    def _is_certain(self, trade: Trade, *, is_shown: bool) -> bool:
        """Return whether a trade is new although later ones have higher numbers.

        Times may be out of order a little, but no answer has two trades of one number in one sequence.
        """
        margin_ns = 0 if trade.number == self._number and is_shown else SECOND_NS
        return trade.number <= self._number and trade.time_ns > self._time_ns + margin_ns


def _end_of_sequence(trades: Sequence[Trade], place: int) -> int:
    """Return the place after ``place`` at which numbers fall while times rise; the end without such a place."""
    highest = trades[place]
    for at in range(place + 1, len(trades)):
        trade = trades[at]
        if trade.number > highest.number:
            highest = trade
        elif trade.time_ns > highest.time_ns:
            return at
    return len(trades)
