"""Trades that the socket alone has sent, until REST has shown the same values. Pure.

The message of a trade may have been damaged, or the exchange has corrected the trade since. While trades come without a
break the feed does not ask REST about them, so this asks once for each of them, about a minute later, many at a time. A
trade with other values counts as corrected as soon as some answers agree (`corrections.py`).

A trade that answers lack is asked about again after the others. Trades that no answer shows in time are left out, and
so are new ones while too many wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any, NamedTuple

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import MADE_ID, Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.sources.comparison_limits import Room
from dexorder_ingestor.realtime.sources.corrections import Corrections, is_same

DELAY_NS, _YOUNGEST_NS = 80 * SECOND_NS, 20 * SECOND_NS
"""Age of the oldest trade at which REST is asked, and of the youngest one that is asked about. A full page of those is
asked about at once. So a market needs a call a minute, or one for each page."""
GIVEN_UP_NS = 600 * SECOND_NS
_DOUBT_NS, _LONGEST_DOUBT_NS = SECOND_NS, 32 * SECOND_NS
"""Time until the next query while REST has other values, which doubles."""
_RETRY_NS = 20 * SECOND_NS
"""The same while REST fails, or does not show all."""
_LACKS = 3
"""Answers that have a later trade without one, after which the next trades come first."""
MAX_KEPT = 10_000
"""Trades of one market that wait."""
_BLOCK_NS = 5 * SECOND_NS
"""Precision to which the time of the oldest waiting trade is known."""


class LeftOut(NamedTuple):
    """Trades with values that REST has not confirmed, and the time from the first to the last of them."""

    trades: int
    span: TimeRange


class UnshownTrades:
    """The trades of one market that wait for REST. ``now_ns`` is of the monotonic clock."""

    def __init__(self, series: TradeSeries, room: Room) -> None:
        self._series = series
        self._room = room
        self._waiting: dict[str, tuple[Any, ...]] = {}
        """The values of each trade, and the time since which it waits; in the order of that time. Plain tuples are no
        work for Python's garbage collector."""
        self._lacks: dict[str, int] = {}
        """Number of answers that had a later trade without one."""
        self._lacked_ns: dict[str, int] = {}
        """Time since which a trade waits that answers lacked before."""
        self._blocks: dict[int, int] = {}
        """Number of trades that wait, by the block of their time."""
        self._asked: dict[str, Trade] = {}
        """Trades of the query; differing ones are compared with all of them again."""
        self._seen: set[str] = set()
        """Those of them that an answer has shown with the same values."""
        self._corrections = Corrections()
        self._doubt_ns = _DOUBT_NS
        self._not_before_ns = 0
        self._left_out = 0
        self._left_from_ns, self._left_until_ns = 0, 0

    def __len__(self) -> int:
        """Return the number of trades that wait."""
        return len(self._waiting)

    @property
    def oldest_ns(self) -> int | None:
        """A time before the oldest trade that waits, by a few seconds at most; None without any."""
        return min(self._blocks) * _BLOCK_NS if self._blocks else None

    def add(self, trades: Iterable[Trade], *, now_ns: int) -> None:
        """Add trades as the socket has sent them. An id that was made of the values proves them by itself."""
        for trade in trades:
            if not trade.trade_id or trade.trade_id.startswith(MADE_ID) or trade.trade_id in self._waiting:
                continue
            if len(self._waiting) >= MAX_KEPT or self._room.left <= 0:
                self._count_left_out(trade.time_ns)
                continue
            self._waiting[trade.trade_id] = (*trade, now_ns)
            self._room.left -= 1
            block = trade.time_ns // _BLOCK_NS
            self._blocks[block] = self._blocks.get(block, 0) + 1

    def shown(self, trades: Iterable[Trade]) -> None:
        """Note trades in an answer of REST to another query; waiting trades with the same values need no query."""
        self._forget(t.trade_id for t in trades if (w := self._waiting.get(t.trade_id)) and is_same(_trade(w), t))

    def forget(self, trades: Iterable[Trade]) -> None:
        """Note that trades are recorded with the values of REST."""
        self._forget(trade.trade_id for trade in trades)

    def clear(self) -> None:
        """Leave out all trades, because the job ends or numbers start again."""
        self._leave_out(list(self._waiting))
        self._end_query()

    def due_ns(self) -> int | None:
        """Return the time of the next query; None without waiting trades."""
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None:
            return None
        many = len(self._waiting) >= self._series.page
        return max(_since_ns(oldest) + (_YOUNGEST_NS if many else DELAY_NS), self._not_before_ns)

    def take_query(self, settled_ns: int, *, now_ns: int) -> TradeQuery | None:
        """Return the query that is due, about trades that are settled; `answered` or `failed` has to follow."""
        old = takewhile(lambda each: now_ns >= _since_ns(each[1]) + GIVEN_UP_NS, self._waiting.items())
        self._leave_out([trade_id for trade_id, _ in old])
        due_ns = self.due_ns()
        if due_ns is None or now_ns < due_ns:
            return None
        if not self._asked:
            self._asked = self._next_page(settled_ns, now_ns)
        first = min(self._asked.values(), default=None)
        if first is None:
            self._not_before_ns = now_ns + _RETRY_NS
            return None
        if not self._series.by_time:
            return TradeQuery()
        return self._series.query(first.number if self._series.numbered else None, first.time_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add an answer to the query; return the trades that were corrected, with its values."""
        asked = self._asked
        pairs = [(known, trade) for trade in answer.trades if (known := asked.get(trade.trade_id)) is not None]
        self._seen.update(known.trade_id for known, trade in pairs if is_same(known, trade))
        corrected = self._corrections.judge(pairs, now_ns=now_ns).corrected
        self._forget(trade.trade_id for trade in corrected)
        if self._corrections:
            self._not_before_ns = now_ns + self._doubt_ns
            self._doubt_ns = min(2 * self._doubt_ns, _LONGEST_DOUBT_NS)
            return corrected
        self._forget(self._seen)
        newest_ns = max((trade.time_ns for trade in answer.trades), default=0)
        self._count_lacks([known for known in asked.values() if known.time_ns < newest_ns], now_ns)
        is_further = min(asked.values()).trade_id not in self._waiting
        self._not_before_ns = now_ns + (0 if is_further else _RETRY_NS)
        self._end_query()
        return corrected

    def failed(self, *, now_ns: int) -> None:
        """Note that the query got no valid answer."""
        self._not_before_ns = now_ns + _RETRY_NS

    def take_left_out(self) -> LeftOut | None:
        """Return the trades that were left out since the last call."""
        count, self._left_out = self._left_out, 0
        return LeftOut(count, TimeRange(self._left_from_ns, self._left_until_ns + 1)) if count else None

    def _next_page(self, settled_ns: int, now_ns: int) -> dict[str, Trade]:
        found: dict[str, Trade] = {}
        for trade_id, each in self._waiting.items():
            if now_ns < _since_ns(each) + _YOUNGEST_NS:
                break
            trade = _trade(each)
            if trade.time_ns < settled_ns:
                found[trade_id] = trade
            if len(found) >= self._series.page:
                break
        return found

    def _count_lacks(self, lacking: Iterable[Trade], now_ns: int) -> None:
        for trade in lacking:
            if trade.trade_id in self._waiting:
                lacks = self._lacks[trade.trade_id] = self._lacks.get(trade.trade_id, 0) + 1
                if lacks >= _LACKS:
                    self._ask_again(trade, now_ns)

    def _ask_again(self, trade: Trade, now_ns: int) -> None:
        """Put a trade behind the others, or leave it out if it has waited for too long."""
        trade_id = trade.trade_id
        waits_ns = self._lacked_ns.setdefault(trade_id, _since_ns(self._waiting.pop(trade_id)))
        self._waiting[trade_id] = (*trade, now_ns)
        del self._lacks[trade_id]
        if now_ns >= waits_ns + GIVEN_UP_NS:
            self._leave_out([trade_id])

    def _end_query(self) -> None:
        self._asked, self._seen = {}, set()
        self._corrections.clear()
        self._doubt_ns = _DOUBT_NS

    def _forget(self, ids: Iterable[str]) -> None:
        for trade_id in list(ids):
            if (each := self._waiting.pop(trade_id, None)) is not None:
                self._lacks.pop(trade_id, None)
                self._lacked_ns.pop(trade_id, None)
                self._room.left += 1
                block = _trade(each).time_ns // _BLOCK_NS
                self._blocks[block] -= 1
                if not self._blocks[block]:
                    del self._blocks[block]

    def _leave_out(self, ids: Iterable[str]) -> None:
        for trade_id in ids:
            self._count_left_out(_trade(self._waiting[trade_id]).time_ns)
            self._forget([trade_id])

    def _count_left_out(self, time_ns: int) -> None:
        self._left_from_ns = min(self._left_from_ns, time_ns) if self._left_out else time_ns
        self._left_until_ns = max(self._left_until_ns, time_ns) if self._left_out else time_ns
        self._left_out += 1


def _trade(waiting: tuple[Any, ...]) -> Trade:
    return Trade._make(waiting[:-1])


def _since_ns(waiting: tuple[Any, ...]) -> int:
    return int(waiting[-1])
