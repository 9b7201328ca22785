"""The search that runs: for the trade before the start, or for the place where numbers begin again. Pure.

While one runs, and while only the number of the last recorded trade is known, the socket's trades are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.numbered.released_trades import ReleasedTrades
from dexorder_ingestor.realtime.numbered.trade_search import Anchor, Seam

_MAX_KEPT = 20_000
_SEAM_NS = 10 * SECOND_NS
"""Shortest time between two searches for a place where numbers begin again."""
_NEAR = 20_000
"""Numbers that a market may use up in this time."""


class Searches:
    """The search of one market, and the trades that are kept. ``now_ns`` is of the monotonic clock.

    Attributes:
        anchor: The search for the trade before the start; None if none runs.
        seam: The search for the place where numbers begin again; None if none runs.
        kept: Trades that the socket has sent meanwhile.
    """

    def __init__(self, trades: ReleasedTrades, *, by_number: bool, now_ns: int) -> None:
        """Start without one; queries may name a number if ``by_number``."""
        self.anchor: Anchor | None = None
        self.seam: Seam | None = None
        self.kept: list[Trade] = []
        self._trades = trades
        self._by_number = by_number
        self._next_seam_ns = now_ns

    @property
    def is_running(self) -> bool:
        """Whether one runs."""
        return self.anchor is not None or self.seam is not None

    @property
    def is_keeping(self) -> bool:
        """Whether trades of the socket have to wait."""
        return self.is_running or self._trades.is_unconfirmed

    def keep(self, trades: Sequence[Trade]) -> None:
        """Keep trades of the socket, as long as they are not too many; REST shows the others."""
        self.kept += trades[: max(0, _MAX_KEPT - len(self.kept))]

    def take_kept(self) -> list[Trade]:
        """Return the trades that were kept."""
        kept, self.kept = self.kept, []
        return kept

    def disconnected(self) -> None:
        """Note that the connection is lost: the joint to come at the start is about the new one."""
        if self.anchor is not None or self._trades.is_unconfirmed:
            self.kept = []
        elif self._trades.last is not None:
            self._trades.joints.reconnected(self._trades.last, self._trades.sequence.waiting)

    def begin(self) -> None:
        """Search for the trade before the start."""
        self.anchor = Anchor(self._trades.begin_ns, by_number=self._by_number)

    def suspect(self, strange: Sequence[Trade], now_ns: int) -> bool:
        """Search for a place where numbers begin again, as trades seem to be behind one; return whether it begins now.

        New numbers that may soon reach the last known one can't wait: they would be taken for its successors.
        """
        link, until_ns = self._trades.link, max(trade.time_ns for trade in strange)
        if self.seam is not None:
            self.seam.reach(until_ns)
            return False
        is_near = link is not None and any(link - trade.number < _NEAR for trade in strange)
        return self.begin_seam(now_ns, until_ns=until_ns, is_near=is_near)

    def begin_seam(self, now_ns: int, *, until_ns: int = 0, is_near: bool = False) -> bool:
        """Search for such a place, unless that was done recently; return whether the search begins."""
        link = self._trades.link
        if link is None or not (is_near or now_ns >= self._next_seam_ns):
            return False
        self._next_seam_ns = now_ns + _SEAM_NS
        self.seam = Seam(link, self._trades.last_ns, until_ns=until_ns)
        return True

    def end_seam(self, found: Seam) -> tuple[list[Trade], list[Trade]]:
        """End the search; return the trades that were kept, and those of them that it does not explain.

        REST may lack the trades by which the socket has come to the last known number anew. Then the first one of the
        socket is the first one of the new numbers.
        """
        self.seam = None
        kept = self.take_kept()
        strange = self._trades.strange(kept)
        if found.first is None and any(trade.number == self._trades.link for trade in strange):
            found.first = first = strange[0]
            kept = sorted({*kept, *(trade for trade in found.tail if trade.time_ns >= first.time_ns)})
            found.tail = [trade for trade in found.tail if trade.time_ns < first.time_ns]
        return kept, strange

    def began_again(self, now_ns: int) -> None:
        """Note that a place was found: another one may follow at once."""
        self._next_seam_ns = now_ns
