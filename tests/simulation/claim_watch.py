"""What is claimed while a run goes on, compared with the table at that moment. Pure.

A trade whose time was called provisional must be in the table when its time no longer is: until then the relay knew
that the trade could be missing. A trade that the exchange has not yet shown to anyone is excepted.
"""

from __future__ import annotations

from bisect import bisect_left
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
        self.has_row = has_row
        self._trades, self._claims = trades, claims
        self._times = [trade.time_ns for trade in trades]
        self._named = set[int]()

    def look(self, provisional: Iterable[TimeRange], now_ns: int) -> None:
        """Take the provisional spans of a moment of the exchange's clock."""
        named = self._inside(provisional)
        left = [
            place
            for place in self._named - named
            if self._trades[place].published_ns <= now_ns and not self.has_row(self._trades[place])
        ]
        if left:
            claimed = self._inside(self._claims())
            self.early += [(self._trades[place], now_ns) for place in sorted(left) if place in claimed]
        self._named = named

    def _inside(self, spans: Iterable[TimeRange]) -> set[int]:
        """Return the places of the trades in spans."""
        found = set[int]()
        for span in spans:
            found.update(range(bisect_left(self._times, span.start_ns), bisect_left(self._times, span.end_ns)))
        return found
