"""Numbers that an exchange has left out, and that stay open: the trade that has one of them may still come. Pure.

A gap is asked about again after each of `DELAYS_NS` since it became known. It is provisional until the last of these
answers; a trade that comes closes its part of the gap whenever it comes. Times are the exchange's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.sources.corrections import TOLERANCE_NS

DELAYS_NS = tuple(seconds * SECOND_NS for seconds in (30, 120, 600, 3_600, 86_400))
"""The last three are those after which history asks for absent candles again."""
_REPEAT_NS = 30 * SECOND_NS
"""Shortest time between two queries about a gap."""
_MAX_GAPS = 500
_MAX_CLOSED = 1_000
_LAST_NUMBER = 2**62


class OpenGap(NamedTuple):
    """Numbers without a trade, both included.

    Attributes:
        span: From the trade before it to the one after it.
        asked_ns: Time of the last query.
    """

    first: int
    last: int
    span: TimeRange
    reason: ProvisionalReason
    since_ns: int
    queries: int = 0
    asked_ns: int = 0

    @property
    def due_ns(self) -> int:
        """Time of the next query."""
        return max(self.since_ns + DELAYS_NS[self.queries], self.asked_ns + _REPEAT_NS)

    def query(self, series: TradeSeries) -> TradeQuery:
        """Return the query for its trades."""
        by_number = series.from_number and self.reason is ProvisionalReason.MISSING_IDS
        return series.query(self.first if by_number else None, self.span.start_ns)

    def has(self, trade: Trade) -> bool:
        """Return whether a trade closes a part of it.

        After numbers have started again only the time tells to which sequence a number belongs.
        """
        if not self.first <= trade.number <= self.last:
            return False
        is_inside = self.span.start_ns - TOLERANCE_NS <= trade.time_ns < self.span.end_ns + TOLERANCE_NS
        return is_inside or self.reason is ProvisionalReason.MISSING_IDS


class OpenGaps:
    """The open gaps of one market, the oldest first."""

    def __init__(self, known: Iterable[ProvisionalSpan] = ()) -> None:
        """Continue with the spans of an earlier dispatch; spans without numbers are not queried."""
        self._gaps = [gap for each in known if (gap := _gap_of(each))]
        self.closed: dict[int, int] = {}
        """Times of the last trades that have closed a part of a gap, by number."""
        self._released: dict[tuple[int, int], None] = {}
        """Numbers and times of the trades next to the places where numbers have begun again."""

    def __len__(self) -> int:
        """Return their number."""
        return len(self._gaps)

    def spans(self) -> tuple[ProvisionalSpan, ...]:
        """Return them as provisional spans, by start."""
        return tuple(sorted(map(_span_of, self._gaps)))

    def open(self, gap: OpenGap) -> None:
        """Add a gap; of too many the two oldest become one."""
        self._gaps.append(gap)
        if len(self._gaps) > _MAX_GAPS:
            one, other, *rest = self._gaps
            span = TimeRange(min(one.span.start_ns, other.span.start_ns), max(one.span.end_ns, other.span.end_ns))
            both = other._replace(first=min(one.first, other.first), last=max(one.last, other.last), span=span)
            self._gaps = [both, *rest]

    def released(self, trades: Iterable[Trade], seam_ns: int) -> None:
        """Note released trades near a place where numbers begin again.

        Their copies may fit the gap there, whose times are not exact.
        """
        near = (trade for trade in trades if abs(trade.time_ns - seam_ns) <= TOLERANCE_NS)
        self._released |= {(trade.number, trade.time_ns): None for trade in near}
        while len(self._released) > _MAX_CLOSED:
            del self._released[next(iter(self._released))]

    def close(self, trades: Iterable[Trade]) -> list[Trade]:
        """Return the trades that close a part of a gap; each is returned once.

        A number may be in two gaps: a dispatch that starts before the gap of an earlier one finds it again.
        """
        found = []
        for trade in trades:
            if self.has(trade) and (trade.number, trade.time_ns) not in self._released:
                if not self.were_closed_by(trade):
                    found.append(trade)
                    self.closed[trade.number] = trade.time_ns
                parts = (_without(gap, trade) if gap.has(trade) else (gap,) for gap in self._gaps)
                self._gaps = [part for each in parts for part in each]
        while len(self.closed) > _MAX_CLOSED:
            del self.closed[next(iter(self.closed))]
        return found

    def were_closed_by(self, trade: Trade, shown: Iterable[Trade] = ()) -> bool:
        """Return whether a trade, or a copy of it, has closed a part of a gap.

        Just after numbers have started again, a trade may fit into the gap before and follow the new numbers. If an
        answer has ``shown`` both, they are two trades: numbers have begun again within a second.
        """
        time_ns = self.closed.get(trade.number)
        if time_ns is None or abs(trade.time_ns - time_ns) > TOLERANCE_NS:
            return False
        times_ns = {each.time_ns for each in shown if each.number == trade.number}
        return trade.time_ns == time_ns or not {trade.time_ns, time_ns} <= times_ns

    def has(self, trade: Trade) -> bool:
        """Return whether a trade closes a part of a gap."""
        return any(each.has(trade) for each in self._gaps)

    def due(self, exchange_ns: int) -> OpenGap | None:
        """Return a gap that is due for a query; None without one."""
        return next((each for each in self._gaps if each.due_ns <= exchange_ns), None)

    def answered(self, asked: OpenGap, answer: TradeAnswer) -> None:
        """Count an answer about a gap: it counts against the numbers that are still missing if it reaches past them.

        With the last of the answers that have to agree, the numbers are unused for good.
        """
        reached = any(trade.time_ns >= asked.span.end_ns for trade in answer.trades) or not answer.full
        after = []
        for gap in self._gaps:
            if asked.first <= gap.first and gap.last <= asked.last and gap.since_ns == asked.since_ns:
                queries = gap.queries + 1 if reached and answer.trades else gap.queries
                if queries >= len(DELAYS_NS):
                    continue
                gap = gap._replace(queries=queries, asked_ns=answer.clock_ns)
            after.append(gap)
        self._gaps = after


def _without(gap: OpenGap, trade: Trade) -> Sequence[OpenGap]:
    """Return the rest of a gap. Both parts keep its span: times need not follow the numbers of late trades."""
    parts = gap._replace(last=trade.number - 1), gap._replace(first=trade.number + 1)
    return [part for part in parts if part.first <= part.last]


def seam(last_number: int, last_ns: int, first: Trade, since_ns: int) -> list[OpenGap]:
    """Return the gaps where numbers start again: after the last old one, and before the first new one."""
    span = TimeRange(last_ns, max(first.time_ns, last_ns) + 1)
    reason = ProvisionalReason.IDS_BEGAN_AGAIN
    gaps = [OpenGap(last_number + 1, _LAST_NUMBER, span, reason, since_ns)]
    return gaps if first.number == 0 else [*gaps, OpenGap(0, first.number - 1, span, reason, since_ns)]


def _span_of(gap: OpenGap) -> ProvisionalSpan:
    return ProvisionalSpan(gap.span, gap.reason, str(gap.first), str(gap.last), gap.since_ns, gap.queries)


def _gap_of(span: ProvisionalSpan) -> OpenGap | None:
    if not (span.first_id.isdecimal() and span.last_id.isdecimal()):
        return None
    queries = min(span.queries, len(DELAYS_NS) - 1)
    return OpenGap(int(span.first_id), int(span.last_id), span.span, span.reason, span.since_ns, queries)
