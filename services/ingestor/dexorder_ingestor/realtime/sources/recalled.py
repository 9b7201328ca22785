"""Recorded trades of an earlier dispatch that only the socket has shown, with the values of REST. Pure.

The relay knows up to when an earlier dispatch had compared its trades with REST. The recorded values of later trades
are not known here. So all of them are recorded again with the values of REST, page by page, once two answers in a row
agree about a page. An answer counts only with the last recorded trade, or if it is full and starts before it; so a REST
that is behind is asked again.

Only where the exchange numbers its trades: elsewhere REST has shown every trade before it is recorded, unless it lacked
the trade.
"""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.sources.corrections import is_same

LONGEST_NS = 600 * SECOND_NS
"""Longest span before the end of the earlier dispatch, and longest time until all of it was compared."""
_AGAIN_NS, _RETRY_NS = SECOND_NS, 20 * SECOND_NS


class RecalledTrades:
    """Trades of one market to be recorded again. ``now_ns`` is of the monotonic clock.

    Attributes:
        span: Time that is still to be compared; empty at the end.
    """

    def __init__(
        self, series: TradeSeries, span: TimeRange, last_number: int | None, *, now_ns: int, by_time: bool = False
    ) -> None:
        """Compare the trades of ``span`` up to the last recorded one; its number may be unknown if ``by_time``."""
        is_wanted = (last_number is not None or by_time) and series.numbered
        start_ns = max(span.start_ns, span.end_ns - LONGEST_NS) if is_wanted else span.end_ns
        self.span = TimeRange(start_ns, span.end_ns)
        self._left_out = TimeRange(span.start_ns, start_ns) if is_wanted and span.start_ns < start_ns else None
        self._series = series
        self._last_number = last_number
        self._number: int | None = None
        self._before: dict[tuple[int, int], Trade] = {}
        self._not_before_ns = now_ns
        self._until_ns = now_ns + LONGEST_NS

    @property
    def oldest_ns(self) -> int | None:
        """Start of the time with trades that are still to be compared; None at the end."""
        return self.span.start_ns if self.span else None

    def due_ns(self) -> int | None:
        """Return the time of the next query; None without one."""
        return self._not_before_ns if self.span else None

    def take_query(self, *, now_ns: int) -> TradeQuery | None:
        """Return the query that is due; `answered` or `failed` has to follow."""
        if self.span and now_ns >= self._until_ns:
            self._left_out = self.span
            self._end()
        if not self.span or now_ns < self._not_before_ns:
            return None
        return self._series.query(self._number, self.span.start_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add an answer; return the trades that are to be recorded again, with its values."""
        page = self._page(answer.trades)
        if self._last_number is None:
            has_end = any(trade.time_ns >= self.span.end_ns - 1 for trade in answer.trades)
        else:
            has_end = any(number == self._last_number for number, _ in page)
        if not has_end and not (page and answer.full):
            self._not_before_ns = now_ns + _RETRY_NS
            return []
        before, self._before = self._before, page
        if page.keys() != before.keys() or not all(is_same(page[key], before[key]) for key in page):
            self._not_before_ns = now_ns + _AGAIN_NS
            return []
        if has_end:
            self._end()
        else:
            last = max(page.values())
            self._number = None if self._last_number is None else last.number
            start_ns = min(last.time_ns, self.span.end_ns - 1)
            self.span = TimeRange(max(self.span.start_ns, start_ns), self.span.end_ns)
        self._before, self._not_before_ns = {}, now_ns
        return list(page.values())

    def failed(self, *, now_ns: int) -> None:
        """Note that the query got no valid answer."""
        self._not_before_ns = now_ns + _RETRY_NS

    def take_left_out(self) -> TimeRange | None:
        """Return, once, the span that was not compared in time or is too long ago."""
        found, self._left_out = self._left_out, None
        return found

    def _page(self, trades: Sequence[Trade]) -> dict[tuple[int, int], Trade]:
        """Return the trades of the span, by number and time; others may be of older ids, or of another market."""
        start_ns, end_ns = self.span.start_ns, self.span.end_ns + SECOND_NS
        last = self._last_number
        inside = (t for t in trades if start_ns <= t.time_ns < end_ns and (last is None or t.number <= last))
        return {(trade.number, trade.time_ns): trade for trade in inside}

    def _end(self) -> None:
        self.span = TimeRange(self.span.end_ns, self.span.end_ns)
