"""What is claimed while a run goes on, compared with the table at that moment. Pure.

A trade whose time was called provisional must be in the table when its time no longer is: until then the relay knew
that the trade could be missing. A trade that the exchange has not yet shown to anyone is excepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dexorder_common.model.time_range import TimeRange
from tests.simulation.exchange.trades import Executed


class ClaimWatch:
    """Keeps the trades whose time was provisional at the last look.

    Args:
        trades: All of the market, in the order of time.
        has_row: Whether the table has a trade.
        claims: Returns the spans of trades that the table's last commit has settled.
    """

    def __init__(
        self,
        trades: Sequence[Executed],
        has_row: Callable[[Executed], bool],
        claims: Callable[[], Sequence[TimeRange]],
    ) -> None:
        self.early: list[tuple[Executed, int]] = []
        """Trades that were claimed while the table lacked them, and the exchange's time of the look."""
        self._trades, self.has_row, self._claims = trades, has_row, claims
        self._named: set[Executed] = set()

    def look(self, provisional: Iterable[TimeRange], now_ns: int) -> None:
        """Take the provisional spans of a moment of the exchange's clock."""
        spans = list(provisional)
        named = {trade for trade in self._trades if _inside(trade, spans)} if spans else set()
        left = [trade for trade in self._named - named if trade.published_ns <= now_ns and not self.has_row(trade)]
        if left:
            claims = self._claims()
            self.early += [(trade, now_ns) for trade in sorted(left) if _inside(trade, claims)]
        self._named = named


def _inside(trade: Executed, spans: Iterable[TimeRange]) -> bool:
    return any(span.start_ns <= trade.time_ns < span.end_ns for span in spans)
