"""Candles built from an exchange's trades. Pure.

A query names a time (``since``); its answer holds the oldest trades after it, at most a page. docs/exchanges.md states
under "Candles from trades" the rules that ensure that no candle lacks a trade. Consecutive ids also prove that two
trades are adjacent; `TradePager.unproven` names where such a proof is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import floor_to_grid, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import PAGE_TRADES, TradeRow

_OVERLAP_NS = 1_000
"""Time before the last known trade at which the next query starts, as times are exact to less than a microsecond."""
_FIRST_LOOKBACK_NS, _LOOKBACK_GROWTH = 60 * SECOND_NS, 16
_MAX_IDLE = 6
"""Consecutive answers without a new trade, in multiples of the answers that have to agree."""
_NEVER = (2**64, 0)


@dataclass(frozen=True, slots=True)
class PagerQuery:
    """Query for trades; if ``spaced``, after a wait, so that it fails independently of the previous one."""

    since_ns: int
    spaced: bool


class OrderedCandleBuilder:
    """Builds candles from trades in time order and does not keep the trades.

    A period without a trade gets no candle. Volumes are added as decimals, so that the same trades give the same candle
    to the last bit, independently of their pages.
    """

    def __init__(self, period_seconds: int) -> None:
        self._period = period_seconds
        self._closed: list[Candle] = []
        self._end_ns = -1
        self._count = 0

    def __len__(self) -> int:
        """Return the number of candles so far, including the one that is being built."""
        return len(self._closed) + bool(self._count)

    def add(self, time_ns: int, price: Decimal, amount: Decimal) -> None:
        """Add the next trade, which must not be earlier than the last one's candle."""
        if time_ns >= self._end_ns:
            if self._count:
                self._closed.append(self._candle())
            self._open_ns = floor_to_grid(time_ns, self._period)
            self._end_ns = next_open(self._open_ns, self._period)
            self._open = self._high = self._low = price
            self._volume = self._quote_volume = Decimal()
            self._count = 0
        assert time_ns >= self._open_ns, "trades come in time order"
        self._close = price
        self._high = max(self._high, price)
        self._low = min(self._low, price)
        self._volume += amount
        self._quote_volume += price * amount
        self._count += 1

    def candles(self) -> list[Candle]:
        """Return all candles of the trades so far, in time order."""
        return [*self._closed, self._candle()] if self._count else list(self._closed)

    def take(self, known_end_ns: int) -> list[Candle]:
        """Return the candles that end by a time up to which all trades were added, and forget them."""
        if self._count and self._end_ns <= known_end_ns:
            self._closed.append(self._candle())
            self._count = 0
            self._end_ns = -1
        taken, self._closed = self._closed, []
        return taken

    def _candle(self) -> Candle:
        return Candle(
            self._open_ns,
            float(self._open),
            float(self._high),
            float(self._low),
            float(self._close),
            float(self._volume),
            quote_volume=float(self._quote_volume),
            trade_count=self._count,
        )


class TradePager:
    """Builds the candles of one window: query ``next_query()`` and ``add()`` the answer until no query is left."""

    def __init__(
        self,
        window: TimeRange,
        period_seconds: int,
        *,
        candles: int,
        answers: int,
        page: int = PAGE_TRADES,
        skip: Collection[int] = (),
    ) -> None:
        """Start before the window.

        Args:
            window: Both ends on the period's grid.
            candles: Stop after this many whole candles.
            answers: Number of answers that have to agree where other proof is missing.
            skip: Open times of candles that are not built, because a trade of them is faulty.
        """
        self._window = window
        self._period = period_seconds
        self._max_candles = candles
        self._needed = answers
        self._page = page
        self._skip = skip
        self._builder = OrderedCandleBuilder(period_seconds)
        self._done = False
        self._tail: list[TradeRow] = []  # the last known trades, all of one time
        self._lookback_ns = _FIRST_LOOKBACK_NS
        self._head = _NEVER
        self._heads = 0
        self._ends = 0  # answers without a trade after the tail
        self._later: bool | None = None  # whether there are trades at or after the window's end
        self._skipped: Counter[tuple[int, int]] = Counter()
        self._unconfirmed: list[TradeRow] | None = None
        self._idle = 0
        self.is_numbered = True
        """Whether all trades so far have an id."""
        self.is_open_ended = False
        """Whether only agreeing answers say that no trade follows the last one."""
        self.unproven: list[TimeRange] = []
        """Ranges that only agreeing answers call complete: before the first trade, after the last one, and where ids
        are missing."""

    @property
    def known_end_ns(self) -> int:
        """Time up to which all trades of the window are known."""
        if self._done:
            return self._window.end_ns
        return max(self._window.start_ns, self._tail[-1].time_ns if self._tail else 0)

    def take(self) -> list[Candle]:
        """Return the candles that are whole so far, and forget them."""
        return self._builder.take(self.known_end_ns)

    def next_query(self) -> PagerQuery | None:
        """Return the next query, or None when the candles are whole."""
        if self._done:
            return None
        if not self._tail:
            since_ns = max(0, self._window.start_ns - self._lookback_ns)
        elif self._is_beyond_due():
            since_ns = self._window.end_ns
        else:
            since_ns = max(0, self._tail[-1].time_ns - _OVERLAP_NS)
        return PagerQuery(since_ns, spaced=self._idle > 0)

    def add(self, trades: list[TradeRow]) -> None:
        """Add the answer to ``next_query()``.

        Raises:
            BadAnswer: It does not continue where the last answer ended, or contradicts others; no trade of it counts.
        """
        self._refuse_skips(trades)
        self.is_numbered = self.is_numbered and all(trade.id is not None for trade in trades)
        if self._idle >= _MAX_IDLE * self._needed:
            raise BadAnswer("the answers do not agree on which trades exist", kind="disagree")
        self._idle += 1
        if not self._is_confirmed(trades):
            return
        if not self._tail:
            self._add_first(trades)
        elif self._is_beyond_due():
            self._later = any(trade.time_ns >= self._window.end_ns for trade in trades)
        else:
            self._add_next(trades)

    def candles(self) -> list[Candle]:
        """Return the window's candles, at most the wanted number; all are whole once no query is left."""
        return self._builder.candles()[: self._max_candles]

    def _is_beyond_due(self) -> bool:
        return self._ends > 0 and self._later is None

    def _add_first(self, trades: list[TradeRow]) -> None:
        if not trades or trades[0].time_ns >= self._window.start_ns:
            head = (trades[0].time_ns, trades[0].id or 0) if trades else _NEVER
            if self._heads and head > self._head:
                raise BadAnswer("the answer starts after a trade that an earlier answer held", kind="hole")
            self._heads = self._heads + 1 if head == self._head else 1
            self._head = head
            if self._heads < self._needed:
                self._lookback_ns *= _LOOKBACK_GROWTH
                return
            self.is_open_ended = not trades
            self._doubt(self._window.start_ns, trades[0].time_ns if trades else self._window.end_ns)
        self._accept(trades)

    def _add_next(self, trades: list[TradeRow]) -> None:
        new, window_end_ns = self._after_tail(trades), self._window.end_ns
        time = iso(self._tail[-1].time_ns)
        if new:
            self._accept(new)
        elif len(trades) >= self._page:
            raise BadAnswer(f"{self._page} trades or more at {time}: no query reaches past them", kind="crowd")
        elif self._later:
            raise BadAnswer(f"the answer ends at {time} although later trades exist", kind="window")
        else:
            self._ends += 1
            self._done = self.is_open_ended = self._ends >= self._needed and self._later is False
            if self._done:
                self._doubt(self._tail[-1].time_ns, window_end_ns)

    def _accept(self, trades: list[TradeRow]) -> None:
        """Add the trades known to follow the last one; all of them, or none if one is faulty."""
        window = self._window
        inside = [t for t in trades if window.start_ns <= t.time_ns < window.end_ns]
        if self._skip:
            inside = [t for t in inside if floor_to_grid(t.time_ns, self._period) not in self._skip]
        values = [trade.values(self._period) for trade in inside]
        for trade, (price, amount) in zip(inside, values, strict=True):
            self._builder.add(trade.time_ns, price, amount)
            if len(self._builder) > self._max_candles:
                break
        for one, other in pairwise((*self._tail[-1:], *trades)):
            if one.id is not None and other.id is not None and other.id > one.id + 1:
                self._doubt(one.time_ns, other.time_ns)
        if not trades or trades[-1].time_ns >= window.end_ns or len(self._builder) > self._max_candles:
            self._done = True
            return
        last_ns = trades[-1].time_ns
        self._tail = [t for t in (*self._tail, *trades) if t.time_ns == last_ns]
        self._ends = self._idle = 0
        self._later = self._later or None  # an answer without trades is no longer certain

    def _doubt(self, first_ns: int, last_ns: int) -> None:
        """Note as unproven the periods between two times, including the periods of both."""
        end_ns = next_open(floor_to_grid(last_ns, self._period), self._period)
        part = TimeRange(floor_to_grid(first_ns, self._period), end_ns).intersect(self._window)
        self.unproven += [part] if part else []

    def _after_tail(self, trades: list[TradeRow]) -> list[TradeRow]:
        """Return the trades after the last known ones, which the answer has to hold."""
        size = len(self._tail)
        for first in range(len(trades) - size + 1):
            if trades[first : first + size] == self._tail:
                return trades[first + size :]
        raise BadAnswer(f"the answer lacks the known trades of {iso(self._tail[-1].time_ns)}", kind="hole")

    def _refuse_skips(self, trades: list[TradeRow]) -> None:
        ids = [trade.id for trade in trades if trade.id is not None]
        for low, high in [skip for skip in self._skipped if any(skip[0] < found < skip[1] for found in ids)]:
            del self._skipped[low, high]
        skips = [(one, other) for one, other in pairwise(ids) if other > one + 1]
        self._skipped.update(skips)
        if any(self._skipped[skip] < self._needed for skip in skips):
            raise BadAnswer(f"the answer lacks the trades between ids {skips[0][0]} and {skips[0][1]}", kind="hole")

    def _is_confirmed(self, trades: list[TradeRow]) -> bool:
        """Return whether the trades have ids, which tell them apart, or the previous answer was the same."""
        confirmed = not trades or trades[0].id is not None or trades == self._unconfirmed
        self._unconfirmed = None if confirmed else trades
        return confirmed
