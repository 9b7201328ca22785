"""Rows of one ticker in the order of their time: reorder buffer, watermark and ring. Pure.

The watermark is the time up to which rows are complete. A row at or before it is late: it is dropped and counted. So a
candle that is fetched again, or a backfill, never reaches a trigger.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
NO_TIME = -(2**63)
MILLISECOND_NS = 1_000_000
RING_SLACK = 512
"""Rows that may be in the ring beyond those needed, so that it is cut rarely."""


class RowsOfTicker:
    """Rows of a ticker, of the table or made of these by the steps of one trigger.

    Attributes:
        rows: The newest rows, oldest first; the first item of a row is its time.
        base: Sequence number of the first of them; sequence numbers count from 0 and are never used again.
    """

    __slots__ = ("base", "rows", "ticker")

    def __init__(self, ticker: str) -> None:
        self.rows: list[Row] = []
        self.base = 0
        self.ticker = ticker


class Stream(RowsOfTicker):
    """Rows of a ticker's table for triggers with the same delay and order.

    Attributes:
        watermark_ns: Time up to which rows are complete.
        late: Rows dropped because they were late.
    """

    __slots__ = (
        "_lead_ns",
        "_order",
        "_pending",
        "_waited",
        "late",
        "newest_ns",
        "watermark_ns",
    )

    def __init__(self, ticker: str, lead_ns: int, order: tuple[tuple[int, bool], ...] = ()) -> None:
        """Create an empty stream.

        Args:
            ticker: The market.
            lead_ns: Distance of the watermark from the newest row's time: the period of candles less a millisecond,
                because no more rows are expected within it; less the delay.
            order: Slots by which rows of one time are sorted, each with True for descending.
        """
        super().__init__(ticker)
        self.watermark_ns = NO_TIME
        self.newest_ns = NO_TIME
        self.late = 0
        self._lead_ns = lead_ns
        self._order = order
        self._pending: list[tuple[int, int, Row]] = []
        self._waited = 0

    @property
    def next(self) -> int:
        """Sequence number of the next row."""
        return self.base + len(self.rows)

    def offer(self, row: Row) -> list[Row]:
        """Take a row that is not late; return the rows that the watermark releases, in order.

        The caller appends each to ``rows``. It compares a row's time with ``watermark_ns`` before, and counts late
        rows.
        """
        time = row[0]
        if time > self.newest_ns:
            self.newest_ns = time
            self.watermark_ns = max(self.watermark_ns, time + self._lead_ns)
        if not self._pending and not self._order and time <= self.watermark_ns:
            return [row]
        self._waited += 1
        heapq.heappush(self._pending, (time, self._waited, row))
        return self.release(self.watermark_ns)

    def release(self, watermark_ns: int) -> list[Row]:
        """Move the watermark forward; return the rows up to it, in order."""
        self.watermark_ns = max(self.watermark_ns, watermark_ns)
        found: list[Row] = []
        while self._pending and self._pending[0][0] <= self.watermark_ns:
            found.append(heapq.heappop(self._pending)[2])
        return self._sorted(found) if self._order and len(found) > 1 else found

    def _sorted(self, rows: list[Row]) -> list[Row]:
        for slot, descending in reversed(self._order):
            rows.sort(key=_null_first(slot), reverse=descending)
        rows.sort(key=lambda row: row[0])
        return rows

    def after(self, time_ns: int) -> list[Row]:
        """Return the rows after a time, unordered, including rows that wait for the watermark."""
        newest = takewhile(lambda row: row[0] > time_ns, reversed(self.rows))
        return [*newest, *(row for time, _, row in self._pending if time > time_ns)]

    def trim(self, keep: int, oldest: Callable[[], int]) -> None:
        """Drop rows from the ring.

        Args:
            keep: Newest rows that stay in any case.
            oldest: Returns the sequence number of the oldest row that is still needed.
        """
        if len(self.rows) <= keep + RING_SLACK:
            return
        cut = min(len(self.rows) - keep, oldest() - self.base)
        if cut > 0:
            del self.rows[:cut]
            self.base += cut

    def seed(self, other: Stream) -> None:
        """Take over the rows of another stream of the ticker, for the warm-up of a trigger."""
        if other is not self:
            self.rows = list(other.rows)
            self.base = other.base
            self.newest_ns = other.newest_ns
            self.watermark_ns = other.rows[-1][0] if other.rows else NO_TIME

    def dump(self) -> list[Any]:
        """Return the state as JSON values."""
        return [self.base, self.watermark_ns, self.newest_ns, self.late, self.rows, self._pending, self._waited]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over a state that ``dump`` returned."""
        self.base, self.watermark_ns, self.newest_ns, self.late = state[:4]
        self.rows = [tuple(row) for row in state[4]]
        self._pending = [(time, number, tuple(row)) for time, number, row in state[5]]
        self._waited = state[6]


def _null_first(slot: int) -> Callable[[Row], tuple[bool, Any]]:
    return lambda row: (row[slot] is not None, row[slot] if row[slot] is not None else 0)
