"""Where trades of REST and trades of the socket meet: after a connection was opened, or numbers have begun again. Pure.

A number proves that no trade before it is missing only if both are of one sequence. While the socket is not connected,
or is dead, numbers may begin again, and REST may be behind: the first trade of the socket then seems to follow the last
known one, although trades with the same numbers are between them. So the time between the two is provisional until an
answer of REST, by time, has both; trades between them were missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.sources.corrections import is_near

_REASONS = ProvisionalReason.NOT_JOINED, ProvisionalReason.IDS_BEGAN_AGAIN
_MAX_JOINTS = 100
"""Connections that end before an answer has shown their first trade."""


class Missed(NamedTuple):
    """What an answer has shown at a joint.

    Attributes:
        trades: Trades that were missing.
        restarts: Trades before and after each place at which numbers begin again.
    """

    trades: list[Trade]
    restarts: list[tuple[Trade, Trade]]


class Joint:
    """The last trade before a connection, or that REST has shown, and the one that was released after it.

    Attributes:
        is_over: Answers have shown both.
    """

    def __init__(self, last: Trade, *, held: ProvisionalSpan | None = None, before: Iterable[Trade] = ()) -> None:
        """Start after a trade.

        Args:
            held: What is provisional already; None if the time after the trade becomes that with a later trade.
            before: Trades of the connection before that are not released yet.
        """
        self.last = last
        self.is_over = False
        self._held = held
        self._before = set(before)
        self._next: Trade | None = None

    @property
    def is_due(self) -> bool:
        """Whether a later trade is known, so that an answer can have both."""
        return self._next is not None

    def span(self, settled_ns: int) -> ProvisionalSpan | None:
        """Return the time that is provisional until it is over, if there is any; it has no ids."""
        if self._next is None and self._held is None:
            return None
        after_ns = settled_ns if self._next is None else self._next.time_ns
        held = self._held or ProvisionalSpan(TimeRange(0, 1), ProvisionalReason.NOT_JOINED, since_ns=after_ns)
        start_ns = self.last.time_ns
        return held._replace(span=TimeRange(start_ns, max(after_ns + 1, held.span.end_ns, start_ns + 1)))

    def released(self, trades: Sequence[Trade], shown: Sequence[Trade] = ()) -> None:
        """Note trades that were released after it, some of them ``shown`` by the answer that has shown the last one."""
        if self._next is not None:
            return
        expected = self._before.union(shown)
        for trade in trades:
            if trade not in expected:
                self._next = trade
                break
            self.last = trade

    def reconnected(self, before: Iterable[Trade]) -> None:
        """Note that the connection was lost again; a later trade, if one is known, is no longer the one to be shown."""
        self._before.update(before)
        if self._next is not None:
            self._held, self._next = self.span(self._next.time_ns), None

    def query(self, series: TradeSeries) -> TradeQuery:
        """Return the query: by time, as a number may be of either sequence."""
        return series.query(None, self.last.time_ns)

    def add(self, answer: TradeAnswer) -> Missed:
        """Add the answer. A full one that does not reach the later trade continues with its last one."""
        trades, after = answer.trades, self._next
        start = next((at for at, trade in enumerate(trades) if _is_copy(trade, self.last)), None)
        if start is None or after is None:
            return Missed([], [])
        ends = range(start + 1, len(trades))
        end = next((at for at in ends if _is_copy(trades[at], after) or trades[at].time_ns > after.time_ns), None)
        self.is_over = end is not None
        if end is None and not answer.full:
            return Missed([], [])
        between = list(trades[start + 1 : end])
        line = [self.last, *between, *([after] if self.is_over else [])]
        self.last = (between or [self.last])[-1]
        return Missed(between, [(one, other) for one, other in pairwise(line) if other.number <= one.number])


class Joints:
    """The joints of one market, the oldest first."""

    def __init__(self, provisional: Iterable[ProvisionalSpan] = ()) -> None:
        """Start with what an earlier dispatch has left."""
        self._joints: list[Joint] = []
        self._left = unjoined(provisional)

    def begin(self, last: Trade | None) -> None:
        """Begin after the last trade before the start: the socket proves nothing about the time before."""
        left, self._left = self._left, None
        if last is not None and (left is not None or not self._joints):
            self.start(Joint(last, held=left))

    def end_left(self) -> None:
        """Forget what an earlier dispatch has left: a place at which numbers begin again takes its place."""
        self._left = None

    def start(self, joint: Joint) -> None:
        """Add one; one without a later trade has nothing to join any more."""
        self._joints = [*(each for each in self._joints if each.is_due), joint]

    def reconnected(self, last: Trade, before: Iterable[Trade]) -> None:
        """Note that the socket begins anew after a trade."""
        if self._joints and (not self._joints[-1].is_due or len(self._joints) >= _MAX_JOINTS):
            self._joints[-1].reconnected(before)
        else:
            self._joints.append(Joint(last, before=before))

    @property
    def due(self) -> Joint | None:
        """The oldest one that an answer can end."""
        return next((each for each in self._joints if each.is_due), None)

    def spans(self, settled_ns: int) -> list[ProvisionalSpan]:
        """Return the time that is provisional, by start."""
        left = [self._left] if self._left is not None else []
        return [*left, *(span for each in self._joints if (span := each.span(settled_ns)))]

    def released(self, trades: Sequence[Trade], shown: Sequence[Trade] = ()) -> None:
        """Note released trades, some of them ``shown`` by the answer that has released them."""
        if self._joints and trades:
            self._joints[-1].released(trades, shown)

    def add(self, answer: TradeAnswer) -> list[Missed]:
        """Add an answer by time, and forget the joints that it ends; return what it has shown."""
        missed = [each.add(answer) for each in self._joints]
        self._joints = [each for each in self._joints if not each.is_over]
        return missed


def doubtful(last: Trade, settled_ns: int, since_ns: int) -> ProvisionalSpan:
    """Return the time after the last trade before a place where numbers begin again, or seem to do so."""
    span = TimeRange(last.time_ns, max(settled_ns, last.time_ns) + 1)
    return ProvisionalSpan(span, ProvisionalReason.IDS_BEGAN_AGAIN, since_ns=since_ns)


def unjoined(provisional: Iterable[ProvisionalSpan]) -> ProvisionalSpan | None:
    """Return the time of the joints that an earlier dispatch has left; None without one."""
    found = sorted(each for each in provisional if each.reason in _REASONS and not each.first_id)
    if not found:
        return None
    return found[0]._replace(span=TimeRange(found[0].span.start_ns, max(each.span.end_ns for each in found)))


def _is_copy(one: Trade, other: Trade) -> bool:
    return one.number == other.number and is_near(one, other)
