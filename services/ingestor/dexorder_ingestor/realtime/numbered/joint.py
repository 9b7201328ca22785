"""Where trades of REST and trades of the socket meet after numbers have begun again. Pure.

Soon after that they may begin again a second time, while the socket is dead and REST is behind. The first trade of the
socket then seems to follow the last one that REST has shown, although trades with the same numbers are between them. So
the time since that one is provisional until an answer of REST has both; the trades between them were missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeQuery, TradeSeries

_REASON = ProvisionalReason.IDS_BEGAN_AGAIN
_TOLERANCE_NS = SECOND_NS
"""Copies of a trade differ in time by no more."""


class Joint:
    """The last trade that REST has shown, and the one that was released after it.

    Attributes:
        is_over: An answer has shown both.
        restarts: Trades before and after each place between the two at which numbers begin again.
    """

    def __init__(self, last: Trade, since_ns: int) -> None:
        """Start after a trade; ``since_ns`` is the exchange's time."""
        self.last = last
        self.since_ns = since_ns
        self.is_over = False
        self.restarts: list[tuple[Trade, Trade]] = []
        self._next: Trade | None = None

    @property
    def is_due(self) -> bool:
        """Whether a later trade is known, so that an answer can have both."""
        return self._next is not None

    def span(self, settled_ns: int) -> ProvisionalSpan:
        """Return the time that is provisional until it is over; it has no ids."""
        return ProvisionalSpan(TimeRange(self.last.time_ns, settled_ns + 1), _REASON, since_ns=self.since_ns)

    def released(self, trades: Sequence[Trade], shown: Sequence[Trade] = ()) -> None:
        """Note trades that were released after it, some of them ``shown`` by the answer that has shown the last one."""
        for trade in trades if self._next is None else ():
            if trade not in shown:
                self._next = trade
                break
            self.last = trade

    def query(self, series: TradeSeries) -> TradeQuery:
        """Return the query: by time, as a number may be of either sequence."""
        return series.query(None, self.last.time_ns)

    def add(self, trades: Sequence[Trade]) -> list[Trade]:
        """Add the answer; return the trades that were missing."""
        start = next((at for at, trade in enumerate(trades) if _is_copy(trade, self.last)), None)
        if start is None or self._next is None:
            return []
        for end in range(start + 1, len(trades)):
            if _is_copy(trades[end], self._next) or trades[end].time_ns > self._next.time_ns:
                self.is_over = True
                between = [*trades[start + 1 : end], self._next]
                self.restarts = [(a, b) for a, b in pairwise([self.last, *between]) if b.number <= a.number]
                return between[:-1]
        return []


def unjoined(provisional: Iterable[ProvisionalSpan]) -> ProvisionalSpan | None:
    """Return the span of a joint that an earlier dispatch has left; None without one."""
    return min((each for each in provisional if each.reason is _REASON and not each.first_id), default=None)


def _is_copy(one: Trade, other: Trade) -> bool:
    return one.number == other.number and abs(one.time_ns - other.time_ns) <= _TOLERANCE_NS
