"""Order and completeness of the trades of a market that does not number them. Pure.

Absence needs two sources that are independent of each other. They are

- REST and the socket, where the socket was alive all the time and has sent exactly the trades that REST shows; or
- two answers of REST that are not the same one from a cache: the second one has a newer trade, or comes `ANSWER_AGE_NS`
  after the first: then the market may be quiet, and the time up to the first one's last trade is settled, with it.

A trade that one source shows exists, unless only one of four answers has it, and the socket has not sent it. A trade
that comes after its time was settled is released late.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import MADE_ID, PAGE_TRADES, Trade
from dexorder_ingestor.realtime.sources.corrections import Corrections, is_near

ANSWER_AGE_NS = 30 * SECOND_NS
"""Time after which an answer settles the time up to the newest trade of an earlier one, and that trade."""
MAX_KNOWN = 4_000
"""Released trades that are remembered, to distinguish a late one from a repeated one."""
_DOUBTS = 3
"""Answers without a trade after which it is dropped, if only one answer has ever shown it."""


@dataclass(slots=True)
class _Seen:
    trade: Trade
    shows: int = 1
    lacks: int = 0


class AgreedTrades:
    """Sequence of the trades of a market without consecutive numbers."""

    def __init__(self, start_ns: int) -> None:
        self.settled_ns = start_ns
        self.is_by_age = False
        """Whether the last answer settles time because an earlier one, `ANSWER_AGE_NS` before, has shown the same."""
        self._seen: dict[str, _Seen] = {}
        self._seen_until_ns = self._seen_newest_ns = 0
        self._aged_ns = -1
        self._shown: deque[tuple[int, int]] = deque()
        """Time and newest trade of each answer with news of the last `ANSWER_AGE_NS`."""
        self._released: dict[str, int] = {}
        self._known_from_ns = start_ns
        self._values: dict[str, Trade] = {}
        """The newest released trades that have an id of the exchange."""
        self._corrections = Corrections()

    def take(self, trades: Iterable[Trade], *, before_ns: int = 0) -> None:
        """Add trades of the socket, which are not doubted; known trades before ``before_ns`` are not doubted either."""
        for seen in self._seen.values():
            if seen.trade.time_ns < before_ns:
                seen.shows = max(seen.shows, 2)
        for trade in trades:
            if trade.time_ns >= self.settled_ns:
                self._seen[trade.trade_id] = _Seen(trade, shows=2)

    def confirm(
        self,
        trades: Iterable[Trade],
        until_ns: int,
        *,
        newest_ns: int,
        is_witnessed: bool,
        alone_ns: int,
        now_ns: int = 0,
        is_behind: bool = False,
    ) -> list[Trade]:
        """Add the trades of an answer; return the trades that can be released, in order.

        Args:
            until_ns: Time up to which the answer has all trades since the settled time.
            newest_ns: Time of the newest trade of the answer. The time before the first trade that only this answer has
                can be settled.
            is_witnessed: The socket agrees.
            alone_ns: Time up to which answers settle that may all be the same one.
            is_behind: The socket has sent a trade that the answer lacks.
        """
        end_ns = until_ns if is_witnessed else min(until_ns, alone_ns)
        is_other_answer = newest_ns > self._seen_newest_ns
        if is_other_answer:
            end_ns = max(end_ns, min(until_ns, self._seen_until_ns))
        found = {t.trade_id: t for t in trades if t.time_ns >= self.settled_ns}
        news = self._count(found, until_ns)
        if is_other_answer or news:
            self._seen_until_ns, self._seen_newest_ns = until_ns, max(newest_ns, self._seen_newest_ns)
            self._shown.append((now_ns, newest_ns))
        while self._shown and now_ns >= self._shown[0][0] + ANSWER_AGE_NS:
            self._aged_ns = max(self._aged_ns, self._shown.popleft()[1])
        self.is_by_age = not is_behind and self._aged_ns >= end_ns
        if self.is_by_age:
            end_ns = self._aged_ns + 1
        doubted = [each.trade for each in self._seen.values() if each.shows == 1 and each.lacks]
        in_doubt = doubted if is_witnessed else doubted + news
        return self._settle(min([end_ns, *(trade.time_ns for trade in in_doubt)]))

    def _count(self, found: Mapping[str, Trade], until_ns: int) -> list[Trade]:
        """Count which trades an answer shows and lacks; return the new ones."""
        for trade_id, seen in list(self._seen.items()):
            if trade_id in found:
                seen.trade = found[trade_id]
                seen.shows += 1
            elif seen.trade.time_ns < until_ns:
                seen.lacks += 1
                if seen.shows == 1 and seen.lacks >= _DOUBTS:
                    del self._seen[trade_id]
        news = [trade for trade_id, trade in found.items() if trade_id not in self._seen]
        self._seen.update((trade.trade_id, _Seen(trade)) for trade in news)
        return news

    def vouch(self, trades: Iterable[Trade]) -> None:
        """Note that the socket has sent trades that answers have shown: no later answer makes them doubtful."""
        for trade in trades:
            if (seen := self._seen.get(trade.trade_id)) is not None:
                seen.shows = max(seen.shows, 2)

    def late(self, trades: Iterable[Trade], is_open: Callable[[int], bool] = lambda time_ns: False) -> list[Trade]:
        """Return the trades that are before the settled time and were not released, which they count as now.

        Args:
            is_open: Returns whether a time counts although the trades released then are no longer known.
        """
        past = (t for t in trades if t.time_ns < self.settled_ns)
        found = [t for t in past if t.time_ns >= self._known_from_ns or is_open(t.time_ns)]
        return self._release(t for t in found if t.trade_id not in self._released)

    def corrected(self, trades: Iterable[Trade], *, now_ns: int) -> list[Trade]:
        """Return released trades that several answers have with other values, with these values.

        Args:
            trades: Trades of an answer. An id that was made of the values can't have others.
        """
        pairs = [(known, t) for t in trades if (known := self._values.get(t.trade_id)) is not None]
        near = [(known, t) for known, t in pairs if is_near(known, t)]
        found = self._corrections.judge(near, now_ns=now_ns).corrected
        self._values.update((trade.trade_id, trade) for trade in found)
        return found

    def correct(self, trades: Iterable[Trade]) -> None:
        """Note the values that released trades have now."""
        self._values.update((trade.trade_id, trade) for trade in trades if trade.trade_id in self._values)

    def give_up(self, until_ns: int) -> list[Trade]:
        """Settle the time up to ``until_ns`` although trades before it are lost; return those seen before it."""
        return self._settle(until_ns)

    def _settle(self, end_ns: int) -> list[Trade]:
        if end_ns <= self.settled_ns:
            return []
        self.settled_ns = end_ns
        found = [each.trade for each in self._seen.values() if each.trade.time_ns < end_ns]
        self._seen = {i: each for i, each in self._seen.items() if each.trade.time_ns >= end_ns}
        return self._release(found)

    def _release(self, trades: Iterable[Trade]) -> list[Trade]:
        found = sorted(trades)
        self._values.update((trade.trade_id, trade) for trade in found if not trade.trade_id.startswith(MADE_ID))
        while len(self._values) > PAGE_TRADES:
            del self._values[next(iter(self._values))]
        self._released.update((trade.trade_id, trade.time_ns) for trade in found)
        while len(self._released) > MAX_KNOWN:
            oldest = next(iter(self._released))
            self._known_from_ns = max(self._known_from_ns, self._released.pop(oldest) + 1)
        return found


def ordinal_ids(trades: Sequence[Trade]) -> list[Trade]:
    """Return trades with a new id for each one without an id: ``~time-price-amount-n``.

    ``n`` counts equal trades of one time, from 0. So ids are stable only if each time is queried as a whole.
    """
    counts: Counter[tuple[int, float, float]] = Counter()
    named = []
    for trade in trades:
        if not trade.trade_id:
            key = (trade.time_ns, trade.price, trade.amount)
            trade = trade._replace(trade_id=f"{MADE_ID}{trade.time_ns}-{trade.price!r}-{trade.amount!r}-{counts[key]}")
            counts[key] += 1
        named.append(trade)
    return named
