"""Values that answers of REST have for released trades instead of the known ones. Pure.

A trade that REST shows with other values, several times in a row, was corrected by the exchange, or its message was
damaged; REST is right. If an answer has other values for most of the trades that are known, it may be another market's;
such values have to last for a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade

_ANSWERS = 3
_FOREIGN_ANSWERS, _FOREIGN_NS = 5, 60 * SECOND_NS
"""Equal answers with other values of most trades, and the time over which they have to come, to be believed."""
TOLERANCE_NS = SECOND_NS
"""Difference between two times of one trade: an exchange may round them differently in its socket and in REST."""


class _Doubt(NamedTuple):
    """Values that REST has for a trade instead of the known ones, the number of answers so far, time of the first."""

    price: float
    amount: float
    answers: int
    since_ns: int


class Judgement(NamedTuple):
    """Trades that were corrected, and one of most known trades that have other values; None if most have the same."""

    corrected: list[Trade]
    foreign: Trade | None


class Corrections:
    """Doubts about the values of one market's trades. ``now_ns`` is of the monotonic clock."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}

    def __bool__(self) -> bool:
        """Return whether REST has other values of a trade, but not in enough answers yet."""
        return bool(self._doubts)

    def clear(self) -> None:
        """Forget all doubts."""
        self._doubts.clear()

    def judge(self, pairs: Sequence[tuple[Trade, Trade]], *, now_ns: int) -> Judgement:
        """Count an answer: the known trades that it shows, each with the answer's own one."""
        copies = [(known, trade) for known, trade in pairs if is_near(known, trade)]
        if 2 * len(copies) >= len(pairs):  # the others have the same id in another sequence of the exchange's ids
            pairs = copies
        differing = [trade for known, trade in pairs if not is_same(known, trade)]
        if self._doubts:
            ids = {trade.trade_id for trade in differing}
            self._doubts = {trade_id: doubt for trade_id, doubt in self._doubts.items() if trade_id in ids}
        is_foreign = 2 * len(differing) > len(pairs)
        corrected = [trade for trade in differing if self._is_certain(trade, is_foreign=is_foreign, now_ns=now_ns)]
        return Judgement(corrected, differing[0] if is_foreign and len(corrected) < len(differing) else None)

    def _is_certain(self, trade: Trade, *, is_foreign: bool, now_ns: int) -> bool:
        """Count an answer with other values; return whether there were enough."""
        known = self._doubts.get(trade.trade_id)
        if known is None or (known.price, known.amount) != (trade.price, trade.amount):
            known = _Doubt(trade.price, trade.amount, 0, now_ns)
        known = known._replace(answers=known.answers + 1)
        is_certain = known.answers >= _ANSWERS and not is_foreign
        if is_foreign:
            is_certain = known.answers >= _FOREIGN_ANSWERS and now_ns >= known.since_ns + _FOREIGN_NS
        if is_certain:
            self._doubts.pop(trade.trade_id, None)
        else:
            self._doubts[trade.trade_id] = known
        return is_certain


def is_near(one: Trade, other: Trade) -> bool:
    """Return whether two trades of one id may be the same, as their times are."""
    return abs(one.time_ns - other.time_ns) <= TOLERANCE_NS


def is_same(one: Trade, other: Trade) -> bool:
    """Return whether two trades of one id have the same values."""
    return is_near(one, other) and (one.price, one.amount) == (other.price, other.amount)
