"""Values of a market's newest trades, and what answers of REST say of them. Pure.

A trade that REST shows with other values, several times in a row, was corrected by the exchange, or its message was
damaged; REST is right. If it has other values for most of the trades that are known, the answer is another market's,
unless it goes on like that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade

_KEPT = 1_000
_BACK, _MAX_BACK, _BACK_NS = 100, 500, 60 * SECOND_NS
"""Trades before the newest one that an answer has to show again: the last 100, and those of a minute."""
_ANSWERS = 3
_FOREIGN_ANSWERS, _FOREIGN_NS = 5, 60 * SECOND_NS
"""Equal answers with other values of most trades, and the time over which they have to come, to be believed."""
_TOLERANCE_NS = SECOND_NS


class _Doubt(NamedTuple):
    """Values that REST has for a trade instead of the known ones, the number of answers so far, time of the first."""

    price: float
    amount: float
    answers: int
    since_ns: int


class KnownTrades:
    """The newest trades of one market, by number. ``now_ns`` is of the monotonic clock."""

    def __init__(self, page: int) -> None:
        """Take the number of trades of an answer, half of which may be known ones."""
        self._max_back = min(_MAX_BACK, page // 2)
        self._trades: dict[int, Trade] = {}
        self._doubts: dict[int, _Doubt] = {}

    @property
    def has_doubts(self) -> bool:
        """Whether REST has other values of a trade, but not in enough answers yet."""
        return bool(self._doubts)

    def add(self, trades: Iterable[Trade]) -> None:
        """Note trades that are released."""
        for trade in trades:
            self._trades[trade.number] = trade
        if len(self._trades) > 2 * _KEPT:
            kept = sorted(self._trades)[-_KEPT:]
            self._trades = {number: self._trades[number] for number in kept}

    def get(self, number: int) -> Trade | None:
        """Return a trade that is known."""
        return self._trades.get(number)

    def has_any(self, trades: Iterable[Trade]) -> bool:
        """Return whether any of some trades is known."""
        return any(trade.number in self._trades for trade in trades)

    def clear(self) -> None:
        """Forget everything, as numbers begin again."""
        self._trades.clear()
        self._doubts.clear()

    def oldest_to_show(self, link: int) -> Trade | None:
        """Return the trade with which the answer about those behind ``link`` should begin; None without any."""
        last, found = self._trades.get(link), None
        for back in range(self._max_back):
            trade = self._trades.get(link - back)
            if trade is None:
                break
            if back >= _BACK and last is not None and trade.time_ns < last.time_ns - _BACK_NS:
                break
            found = trade
        return found

    def judge(self, answer: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Return the trades that were corrected, with the values of the answer.

        Raises:
            BadAnswer: Most of the known trades have other values in it.
        """
        pairs = [(known, trade) for trade in answer if (known := self._trades.get(trade.number)) is not None]
        differing = [trade for known, trade in pairs if not _is_same(known, trade)]
        if self._doubts:
            numbers = {trade.number for trade in differing}
            self._doubts = {number: doubt for number, doubt in self._doubts.items() if number in numbers}
        is_foreign = 2 * len(differing) > len(pairs)
        corrected = [trade for trade in differing if self._is_certain(trade, is_foreign=is_foreign, now_ns=now_ns)]
        if is_foreign and len(corrected) < len(differing):
            raise BadAnswer(f"the answer has other values of {differing[0]}", kind="other_symbol")
        self.add(corrected)
        return corrected

    def _is_certain(self, trade: Trade, *, is_foreign: bool, now_ns: int) -> bool:
        """Count an answer with other values; return whether there were enough."""
        known = self._doubts.get(trade.number)
        if known is None or (known.price, known.amount) != (trade.price, trade.amount):
            known = _Doubt(trade.price, trade.amount, 0, now_ns)
        known = known._replace(answers=known.answers + 1)
        is_certain = known.answers >= _ANSWERS and not is_foreign
        if is_foreign:
            is_certain = known.answers >= _FOREIGN_ANSWERS and now_ns >= known.since_ns + _FOREIGN_NS
        if is_certain:
            self._doubts.pop(trade.number, None)
        else:
            self._doubts[trade.number] = known
        return is_certain


def _is_same(one: Trade, other: Trade) -> bool:
    is_near = abs(one.time_ns - other.time_ns) <= _TOLERANCE_NS
    return is_near and (one.price, one.amount) == (other.price, other.amount)
