"""Candles of several periods, built from trades in any order. Pure.

A candle does not keep its trades once they are counted: the first and the last are known by their time and number.
Amounts are added as decimals, as exchanges do, so that the sums are equal to the last bit. A period without a trade is
without a candle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import ceil_to_grid, floor_to_grid, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade

_KEPT, _KEPT_SECONDS = 3, 300
"""Closed periods, and seconds, in which a late trade amends a candle at once; an older candle is built again."""
_COPY_NS = SECOND_NS
"""Copies of a trade differ in time by no more."""
AMEND_NS = SECOND_NS
"""Shortest time between two amendments of one candle."""


@dataclass(frozen=True, slots=True)
class ClosedCandles:
    """Candles that are complete: all of a range of periods, or only the ones that late trades have amended."""

    period_seconds: int
    span: TimeRange
    candles: tuple[Candle, ...]
    amends: bool = False


class LiveCandles:
    """Builds the candles of each period from its start time on."""

    def __init__(self, starts_ns: Mapping[int, int], first_ns: Mapping[int, int] | None = None) -> None:
        """Take, by period, the open times of the first candle here and of the first candle of all dispatches.

        Late trades amend candles since the latter.
        """
        self._series = [
            _Series(period, start_ns, (first_ns or {}).get(period, start_ns)) for period, start_ns in starts_ns.items()
        ]
        self.doubtful: dict[tuple[int, int], None] = {}
        """Candles, by period and open time, that have to be built again from all of their trades."""

    def add(self, trades: Iterable[Trade], is_new: Callable[[Trade], bool] = lambda trade: True) -> None:
        """Count trades, each once. A forgotten candle of a trade that is new, to all dispatches, becomes doubtful."""
        for trade in trades:
            amount, cost = _amounts(trade)
            for series in self._series:
                if not series.add(trade, amount, cost) and is_new(trade):
                    self.doubtful[series.period, floor_to_grid(trade.time_ns, series.period)] = None

    def doubt(self, trades: Iterable[Trade]) -> None:
        """Note that trades that are counted have got other values."""
        for trade in trades:
            for series in self._series:
                if trade.time_ns >= series.first_ns:
                    self.doubtful[series.period, floor_to_grid(trade.time_ns, series.period)] = None

    def rebuild(self, period_seconds: int, open_ns: int, trades: Iterable[Trade]) -> None:
        """Build a candle again from all of its trades; it counts as amended if it is closed."""
        for series in self._series:
            if series.period == period_seconds:
                series.rebuild(open_ns, [(t, *_amounts(t)) for t in trades])

    def skip(self, end_ns: int) -> None:
        """Leave out the unclosed candles that start before ``end_ns``, because some of their trades are lost."""
        for series in self._series:
            series.skip(end_ns)

    def close(self, until_ns: int, *, now_ns: int, flush: bool = False) -> list[ClosedCandles]:
        """Close the candles of all periods that end by ``until_ns``; return them, and closed ones amended since.

        An amended candle is returned at most once in ``AMEND_NS``, with all trades until then, unless ``flush``.

        Args:
            now_ns: Time of the monotonic clock.
        """
        return [
            found
            for series in self._series
            for found in (*series.take_amended(now_ns, flush=flush), *series.close(until_ns))
        ]

    def next_close_ns(self) -> int | None:
        """Return the next end of a period; None without periods."""
        return min((series.next_close_ns for series in self._series), default=None)

    def running(self) -> list[tuple[int, Candle]]:
        """Return the newest candle of each period that has one, with its period."""
        return [(series.period, bar.candle()) for series in self._series if (bar := series.newest)]


def candle_of(trades: Sequence[Trade]) -> Candle | None:
    """Return the candle that trades make; None without any that has an amount."""
    bar = _Bar(0, 0)
    for trade in trades:
        bar.add(trade, *_amounts(trade))
    return bar.candle() if any(trade.amount for trade in trades) else None


def _amounts(trade: Trade) -> tuple[Decimal, Decimal]:
    """Return a trade's amount in units of the base and of the quote currency."""
    amount = Decimal(repr(trade.amount))
    return amount, Decimal(repr(trade.price)) * amount


class _Series:
    """Candles of one period."""

    def __init__(self, period_seconds: int, start_ns: int, first_ns: int) -> None:
        self.period = period_seconds
        self.first_ns = first_ns
        self.newest: _Bar | None = None
        self._bars: dict[int, _Bar] = {}
        self._closed_ns = start_ns
        self.next_close_ns = next_open(start_ns, period_seconds)
        self._kept = max(_KEPT, _KEPT_SECONDS // period_seconds)
        self._kept_ns = start_ns
        self._amended: set[int] = set()
        self._amended_ns: dict[int, int] = {}
        """Times at which candles were amended, of the last ``AMEND_NS``."""
        self._rebuilt: dict[int, _Bar] = {}

    def add(self, trade: Trade, amount: Decimal, cost: Decimal) -> bool:
        """Count a trade; return whether its candle was still known, or is not wanted."""
        time_ns = trade.time_ns
        bar = self.newest
        if bar is None or not bar.open_ns <= time_ns < bar.end_ns:
            open_ns = floor_to_grid(time_ns, self.period)
            if open_ns < self._kept_ns:
                return open_ns < self.first_ns
            bar = self._bars.get(open_ns)
            if bar is None:
                bar = self._bars[open_ns] = _Bar(open_ns, next_open(open_ns, self.period))
            if self.newest is None or open_ns > self.newest.open_ns:
                self.newest = bar
        if bar.is_made_of(trade):
            return True
        bar.add(trade, amount, cost)
        if bar.open_ns < self._closed_ns:
            self._amended.add(bar.open_ns)
        return True

    def rebuild(self, open_ns: int, trades: Iterable[tuple[Trade, Decimal, Decimal]]) -> None:
        """Replace a candle that is closed; do nothing without trades."""
        if not self.first_ns <= open_ns < self._closed_ns:
            return
        bar, is_kept = _Bar(open_ns, next_open(open_ns, self.period)), open_ns >= self._kept_ns
        for trade, amount, cost in trades:
            bar.add(trade, amount, cost)
            bar.made_of.setdefault(trade.trade_id, []).append(trade.time_ns)
            (self._bars if is_kept else self._rebuilt)[open_ns] = bar
            self._amended.add(open_ns)
        if self.newest is not None and self.newest.open_ns == open_ns:
            self.newest = self._bars.get(open_ns, self.newest)

    def skip(self, end_ns: int) -> None:
        if end_ns <= self._closed_ns:
            return
        self._closed_ns = self._kept_ns = ceil_to_grid(end_ns, self.period)
        self.next_close_ns = next_open(self._closed_ns, self.period)
        self._keep_from(self._closed_ns)
        self.newest = self._bars[max(self._bars)] if self._bars else None

    def take_amended(self, now_ns: int, *, flush: bool) -> list[ClosedCandles]:
        """Return the amended candles that are due, by time; all of them with ``flush``."""
        recent = {open_ns: at_ns for open_ns, at_ns in self._amended_ns.items() if now_ns < at_ns + AMEND_NS}
        due = sorted(self._amended if flush else self._amended - recent.keys())
        self._amended_ns = recent | dict.fromkeys(due, now_ns)
        self._amended.difference_update(due)
        found = []
        for open_ns in due:
            bar = self._rebuilt.pop(open_ns, None) or self._bars[open_ns]
            found.append(ClosedCandles(self.period, TimeRange(open_ns, bar.end_ns), (bar.candle(),), amends=True))
        return found

    def close(self, until_ns: int) -> list[ClosedCandles]:
        found = []
        if until_ns >= self.next_close_ns:
            span = TimeRange(self._closed_ns, floor_to_grid(until_ns, self.period))
            opens = sorted(open_ns for open_ns in self._bars if span.start_ns <= open_ns < span.end_ns)
            found.append(ClosedCandles(self.period, span, tuple(self._bars[open_ns].candle() for open_ns in opens)))
            self._closed_ns, self.next_close_ns = span.end_ns, next_open(span.end_ns, self.period)
            self._forget()
        return found

    def _forget(self) -> None:
        self._kept_ns = max(self._kept_ns, next_open(self._closed_ns, self.period, -self._kept))
        self._keep_from(self._kept_ns)
        if self.newest is not None and self.newest.open_ns < self._kept_ns:
            self.newest = None

    def _keep_from(self, kept_ns: int) -> None:
        """Forget older candles, except the ones with a waiting amendment."""
        for open_ns in self._amended & self._bars.keys():
            if open_ns < kept_ns:
                self._rebuilt[open_ns] = self._bars[open_ns]
        self._bars = {open_ns: bar for open_ns, bar in self._bars.items() if open_ns >= kept_ns}


class _Bar:
    """Sums of one candle."""

    __slots__ = ("_amount", "_cost", "_count", "_first", "_high", "_last", "_low", "end_ns", "made_of", "open_ns")

    def __init__(self, open_ns: int, end_ns: int) -> None:
        self.open_ns = open_ns
        self.end_ns = end_ns
        self._first: Trade | None = None
        self._last: Trade | None = None
        self._high = float("-inf")
        self._low = float("inf")
        self._amount = self._cost = Decimal()
        self._count = 0
        self.made_of: dict[str, list[int]] = {}
        """Times of the trades of a bar that was built again, by id, because they may come once more."""

    def is_made_of(self, trade: Trade) -> bool:
        """Return whether a bar that was built again has a copy; a much later trade has a number that began again."""
        return any(abs(trade.time_ns - time_ns) <= _COPY_NS for time_ns in self.made_of.get(trade.trade_id, ()))

    def add(self, trade: Trade, amount: Decimal, cost: Decimal) -> None:
        if self._first is None or trade < self._first:
            self._first = trade
        if self._last is None or trade > self._last:
            self._last = trade
        price = trade.price
        if price > self._high:
            self._high = price
        if price < self._low:
            self._low = price
        self._amount += amount
        self._cost += cost
        self._count += trade.fills

    def candle(self) -> Candle:
        assert self._first is not None and self._last is not None, "a bar begins with a trade"
        return Candle(
            self.open_ns,
            self._first.price,
            self._high,
            self._low,
            self._last.price,
            float(self._amount),
            quote_volume=float(self._cost),
            trade_count=self._count,
        )
