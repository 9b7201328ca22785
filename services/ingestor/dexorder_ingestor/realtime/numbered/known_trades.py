"""The newest trades of a market, and which of them an answer of REST has to show again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.sources.corrections import Corrections

_KEPT = 1_000
BACK, _MAX_BACK, _BACK_NS = 100, 500, 60 * SECOND_NS
"""Trades before the newest one that an answer has to show again: the last 100, and the last minute's."""


class KnownTrades:
    """The newest trades of one market, by number. ``now_ns`` is of the monotonic clock."""

    def __init__(self, page: int) -> None:
        """Take the number of trades of an answer, half of which may be known ones."""
        self._max_back = min(_MAX_BACK, page // 2)
        self._trades: dict[int, tuple[Any, ...]] = {}
        """The trades as plain tuples: unlike a `Trade`, they are no work for Python's garbage collector, which would
        stop the process for seconds with a thousand trades of each of hundreds of markets."""
        self._corrections = Corrections()

    @property
    def has_doubts(self) -> bool:
        """Whether REST has other values of a trade, but not in enough answers yet."""
        return bool(self._corrections)

    def add(self, trades: Iterable[Trade]) -> None:
        """Note trades that are released."""
        for trade in trades:
            self._trades[trade.number] = tuple(trade)
        if len(self._trades) > 2 * _KEPT:
            kept = sorted(self._trades)[-_KEPT:]
            self._trades = {number: self._trades[number] for number in kept}

    def correct(self, trades: Iterable[Trade]) -> None:
        """Note the values that known trades have now."""
        self.add(trade for trade in trades if trade.number in self._trades)

    def get(self, number: int) -> Trade | None:
        """Return a trade that is known."""
        found = self._trades.get(number)
        return None if found is None else Trade._make(found)

    def newest(self) -> list[Trade]:
        """Return the trades that are known."""
        return [Trade._make(each) for each in self._trades.values()]

    def has_any(self, trades: Iterable[Trade]) -> bool:
        """Return whether any of some trades is known."""
        return any(trade.number in self._trades for trade in trades)

    def clear(self) -> None:
        """Forget everything, as numbers start again."""
        self._trades.clear()
        self._corrections.clear()

    def oldest_to_show(self, link: int) -> Trade | None:
        """Return the trade with which the answer about trades after ``link`` should start; None without any."""
        last, found = self.get(link), None
        for back in range(self._max_back):
            trade = self.get(link - back)
            if trade is None:
                break
            if back >= BACK and last is not None and trade.time_ns < last.time_ns - _BACK_NS:
                break
            found = trade
        return found

    def judge(self, answer: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Return the trades that were corrected, with the values of the answer.

        Raises:
            BadAnswer: Most of the known trades have other values in it.
        """
        pairs = [(known, trade) for trade in answer if (known := self.get(trade.number)) is not None]
        found = self._corrections.judge(pairs, now_ns=now_ns)
        if found.foreign is not None:
            raise BadAnswer(f"the answer has other values of {found.foreign}", kind="other_symbol")
        self.add(found.corrected)
        return found.corrected
