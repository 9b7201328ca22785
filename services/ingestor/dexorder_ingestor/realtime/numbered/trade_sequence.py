"""Order and completeness of the trades of a market that numbers them. Pure.

Trades come from a socket and from REST, in any order and more than once. A sequence releases each trade once and knows
the settled time: all trades before it are released. The exchange numbers the trades of a market consecutively, and no
number is missing; `agreed/` is for exchanges that do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dexorder_ingestor.exchange.trades import Trade


class Gap(NamedTuple):
    """Missing numbers, both included."""

    first: int
    last: int


class NumberedTrades:
    """Sequence of the trades of a market that numbers them consecutively.

    The times of an exchange's trades do not decrease with their numbers, so trades in the order of their numbers are in
    the order of time and number, and the newest one settles the time before it. A trade that breaks this rule is
    released late, after newer ones.
    """

    def __init__(self, next_number: int | None, start_ns: int, *, max_waiting: int = 20_000) -> None:
        """Start with a trade.

        Args:
            next_number: Number of the first trade to release; None in a market without trades so far.
            start_ns: Time before which no trade is expected.
            max_waiting: Number of trades kept while earlier ones are missing; any more are forgotten, and then missing
                too.
        """
        self.next_number = next_number
        self.settled_ns = start_ns
        self._max_waiting = max_waiting
        self._waiting: dict[int, Trade] = {}
        self._lowest: int | None = None
        """Lowest number that waits; None if it has to be searched, which is slow with thousands."""
        self._highest = -1
        self.below: list[Trade] = []
        """Trades of the last `add` with numbers that are already behind it: copies, or late ones."""

    def add(self, trades: Iterable[Trade]) -> list[Trade]:
        """Add trades; return the trades that can be released now, in the order of time and number."""
        released = []
        waiting = self._waiting
        if self.below:
            self.below = []
        for trade in trades:
            number = trade.number
            if self.next_number is None:
                self.next_number = number
            if number == self.next_number:
                released.append(trade)
                self.next_number = number + 1
                while waiting and (following := waiting.pop(self.next_number, None)):
                    released.append(following)
                    self.next_number += 1
                    self._lowest = None
            elif number > self.next_number:
                self._highest = max(self._highest, number)
                if len(waiting) < self._max_waiting:
                    if self._lowest is not None:
                        self._lowest = min(self._lowest, number)
                    waiting.setdefault(number, trade)
            else:
                self.below.append(trade)
        if released:
            released.sort()
            self.settled_ns = max(self.settled_ns, released[-1].time_ns)
        return released

    @property
    def waiting(self) -> list[Trade]:
        """Trades that wait for smaller numbers."""
        return list(self._waiting.values())

    @property
    def gap(self) -> Gap | None:
        """The first missing numbers before a known trade."""
        if self.next_number is None or self._highest < self.next_number:
            return None
        if not self._waiting:  # all that came were forgotten
            return Gap(self.next_number, self._highest)
        if self._lowest is None:
            self._lowest = min(self._waiting)
        return Gap(self.next_number, self._lowest - 1)

    def skip(self, gap: Gap) -> list[Trade]:
        """Go on without the numbers of the first gap; return the trades that this releases."""
        if gap.first != self.next_number:
            return []
        self.next_number = gap.last + 1
        following = self._waiting.pop(self.next_number, None)
        self._lowest = None
        return self.add([following] if following else [])

    def advance(self, time_ns: int) -> None:
        """Settle the time up to ``time_ns``, before which a working connection would have delivered every trade."""
        if self.gap is None:
            self.settled_ns = max(self.settled_ns, time_ns)
