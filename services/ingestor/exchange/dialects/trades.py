"""A walk through an exchange's trades: which question comes next, and what its answer adds to the candles. Pure.

Questions name a time (``since``), answers hold the oldest trades from there on, a page at most. So that no candle lacks
a trade:

- Each question starts just before the last known trade, and its answer has to hold that trade: pages overlap.
- The first question starts before the window, until an answer holds a trade from before it, or ``answers`` answers to
  different questions begin with the same trade.
- Trade ids count up: an answer that skips one is asked for again, until ``answers`` answers skip the same.
  Trades without ids are taken when two answers in a row are equal.
- A walk ends with a trade at or after the window's end, or when ``answers`` answers agree that nothing follows the last
  trade and another, asked from the window's end, shows none there either. Once that has shown one, no answer that stops
  short is believed.

Which periods have no trade at all is no claim of a walk: its caller proves holes as those of any other exchange.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

from services.common.model.page import Candle
from services.common.model.periods import floor_to_grid
from services.common.model.time_range import TimeRange
from services.common.model.times import SECOND_NS, iso
from services.ingestor.exchange.dialects.candle_building import CandleBuilder
from services.ingestor.exchange.validation import BadAnswer

PAGE_TRADES = 1_000
"""Most trades of one answer."""
_SLACK_NS = 1_000
"""Trade times are seconds in a double, right to 0.2 us."""
_FIRST_LOOKBACK_NS, _LOOKBACK_GROWTH = 60 * SECOND_NS, 16
_MOST_IDLE = 6
"""Answers in a row that bring nothing new, as a multiple of those that have to agree."""
_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
_NEVER = (2**64, 0)


@dataclass(frozen=True, slots=True)
class TradeQuery:
    """A question for trades.

    Attributes:
        since_ns: The oldest trade that is wanted.
        spaced: Wait since the answer before, so that the two fail independently.
    """

    since_ns: int
    spaced: bool


@dataclass(frozen=True, slots=True)
class Trade:
    """A trade as it came; equal only to itself in another answer, as far as that can be told."""

    time_ns: int
    id: int | None
    row: tuple[Any, ...]

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order of trades."""
        return self.time_ns, self.id or 0

    def values(self, period_seconds: int) -> tuple[Decimal, Decimal]:
        """Price and amount.

        Raises:
            BadAnswer: They can't be those of a trade; it names the candle that can't be built.
        """
        price, amount = self.row[:2]
        if not all(isinstance(v, str) and _DECIMAL.fullmatch(v) for v in (price, amount)) or not Decimal(price):
            raise BadAnswer(
                f"trade {list(self.row)!r} at {iso(self.time_ns)} has no price above 0 or no amount",
                kind="values",
                open_ns=floor_to_grid(self.time_ns, period_seconds),
            )
        return Decimal(price), Decimal(amount)


def read_trades(rows: list[Any], last: Any, *, since_ns: int) -> list[Trade]:
    """Trades of raw rows, ``[price, amount, seconds, side, type, misc, id]``; older answers have no id.

    Args:
        rows: In the exchange's order; ccxt's own sorting mixes up trades of one millisecond.
        last: The cursor that came with them, nanoseconds.
    Raises:
        BadAnswer: No trades, out of order, some twice, older than asked, or the cursor goes back.
    """
    trades = [_read(row) for row in rows]
    if len({trade.id is None for trade in trades}) > 1:
        raise BadAnswer("some trades have an id and some have not")
    for one, other in pairwise(trades):
        if one.time_ns > other.time_ns or (one.id is not None and other.id is not None and one.id >= other.id):
            raise BadAnswer(f"trade {other.row!r} comes after {one.row!r}", kind="order")
    second_ns = since_ns - since_ns % SECOND_NS
    if trades and trades[0].time_ns < second_ns:
        raise BadAnswer(f"trade {trades[0].row!r} is older than asked, {iso(since_ns)}", kind="window")
    if not str(last).isdecimal():
        raise BadAnswer(f"the answer's cursor is {str(last)[:40]!r}")
    if int(last) < (trades[-1].time_ns - _SLACK_NS if trades else second_ns):
        raise BadAnswer(f"the answer's cursor goes back to {last}", kind="window")
    return trades


def _read(row: Any) -> Trade:
    if not isinstance(row, list) or len(row) < 6:
        raise BadAnswer(f"row {str(row)[:80]!r} is no trade")
    time_s = row[2]
    if isinstance(time_s, bool) or not isinstance(time_s, (int, float)) or not 0 < time_s < 9e9:
        raise BadAnswer(f"trade {str(row)[:120]} has no time in seconds")
    whole_s = int(time_s)
    # ccxt appends the cursor, a text, to the last row.
    number = row[6] if len(row) > 6 and type(row[6]) is int else None
    return Trade(whole_s * SECOND_NS + int((time_s - whole_s) * 1e9), number, tuple(row[:6]))


class TradePager:
    """Candles of one window: ask ``next_ask()`` and give ``add()`` the answer until nothing is left to ask."""

    def __init__(
        self, window: TimeRange, period_seconds: int, *, candles: int, answers: int, page: int = PAGE_TRADES
    ) -> None:
        """Begin before the window.

        Args:
            window: Both ends on the period's grid.
            candles: Stop once so many are whole.
            answers: How many have to agree where nothing else proves.
            page: Trades an answer may hold.
        """
        self._window = window
        self._period = period_seconds
        self._most = candles
        self._needed = answers
        self._page = page
        self._builder = CandleBuilder(period_seconds)
        self._done = False
        self._tail: list[Trade] = []  # the last known trades, all of one time
        self._lookback_ns = _FIRST_LOOKBACK_NS
        self._head = _NEVER
        self._heads = 0
        self._quiet = 0
        self._later: bool | None = None  # whether there are trades at or after the window's end
        self._skipped: Counter[tuple[int, int]] = Counter()
        self._unconfirmed: list[Trade] | None = None
        self._idle = 0

    def next_query(self) -> TradeQuery | None:
        """The next question; None when the candles are whole."""
        if self._done:
            return None
        if not self._tail:
            since_ns = max(0, self._window.start_ns - self._lookback_ns)
        elif self._asks_beyond():
            since_ns = self._window.end_ns
        else:
            since_ns = max(0, self._tail[-1].time_ns - _SLACK_NS)
        return TradeQuery(since_ns, spaced=self._idle > 0)

    def add(self, trades: list[Trade]) -> None:
        """Take in the answer to ``next_ask()``.

        Raises:
            BadAnswer: It does not go on where the last one ended, or does not agree with others; no trade of it counts.
        """
        self._refuse_skips(trades)
        if self._idle >= _MOST_IDLE * self._needed:
            raise BadAnswer("the answers do not agree on which trades there are", kind="disagree")
        self._idle += 1
        if not self._is_confirmed(trades):
            return
        if not self._tail:
            self._take_first(trades)
        elif self._asks_beyond():
            self._take_beyond(trades)
        else:
            self._take_next(trades)

    def candles(self) -> list[Candle]:
        """The window's candles, at most as many as wanted; all of them whole once nothing is left to ask."""
        return self._builder.candles()[: self._most]

    # ---- the three kinds of question

    def _take_first(self, trades: list[Trade]) -> None:
        if not trades or trades[0].time_ns >= self._window.start_ns:
            head = trades[0].place if trades else _NEVER
            if self._heads and head > self._head:
                raise BadAnswer("the answer begins after a trade that another held", kind="hole")
            self._heads = self._heads + 1 if head == self._head else 1
            self._head = head
            if self._heads < self._needed:
                self._lookback_ns *= _LOOKBACK_GROWTH
                return
        self._take(trades)

    def _take_next(self, trades: list[Trade]) -> None:
        new = self._after_tail(trades)
        at = iso(self._tail[-1].time_ns)
        if new:
            self._take(new)
        elif len(trades) >= self._page:
            raise BadAnswer(f"{self._page} trades or more at {at}: no question reaches past them", kind="crowd")
        elif self._later:
            raise BadAnswer(f"the answer ends at {at}, though there are later trades", kind="window")
        else:
            self._quiet += 1
            self._done = self._quiet >= self._needed and self._later is False

    def _take_beyond(self, trades: list[Trade]) -> None:
        self._later = any(trade.time_ns >= self._window.end_ns for trade in trades)

    def _asks_beyond(self) -> bool:
        return self._quiet > 0 and self._later is None

    # ---- trades

    def _take(self, trades: list[Trade]) -> None:
        """Add what is known to follow the last trade; all or nothing of it."""
        window = self._window
        inside = [t for t in trades if window.start_ns <= t.time_ns < window.end_ns]
        values = [trade.values(self._period) for trade in inside]
        for trade, (price, amount) in zip(inside, values, strict=True):
            self._builder.add(trade.time_ns, price, amount)
            if len(self._builder) > self._most:
                break
        if not trades or trades[-1].time_ns >= window.end_ns or len(self._builder) > self._most:
            self._done = True
            return
        last_ns = trades[-1].time_ns
        self._tail = [t for t in (*self._tail, *trades) if t.time_ns == last_ns]
        self._quiet = self._idle = 0
        self._later = self._later or None  # that there were none is no longer sure

    def _after_tail(self, trades: list[Trade]) -> list[Trade]:
        """The trades behind the last known ones, which the answer has to hold."""
        size = len(self._tail)
        for first in range(len(trades) - size + 1):
            if trades[first : first + size] == self._tail:
                return trades[first + size :]
        raise BadAnswer(f"the answer lacks the known trades of {iso(self._tail[-1].time_ns)}", kind="hole")

    def _refuse_skips(self, trades: list[Trade]) -> None:
        ids = [trade.id for trade in trades if trade.id is not None]
        for low, high in [skip for skip in self._skipped if any(skip[0] < number < skip[1] for number in ids)]:
            del self._skipped[low, high]
        skips = [(one, other) for one, other in pairwise(ids) if other > one + 1]
        self._skipped.update(skips)
        if any(self._skipped[skip] < self._needed for skip in skips):
            raise BadAnswer(f"trades between ids {skips[0][0]} and {skips[0][1]} are not there", kind="hole")

    def _is_confirmed(self, trades: list[Trade]) -> bool:
        """Whether trades can be told from each other, or the answer before was the same."""
        confirmed = not trades or trades[0].id is not None or trades == self._unconfirmed
        self._unconfirmed = None if confirmed else trades
        return confirmed
