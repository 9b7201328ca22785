"""Candle periods and their grids, as Binance numbers them. Pure.

A grid gives every candle of a period an index, so ranges are integer arithmetic even where lengths differ (months).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MINUTE, HOUR, DAY = 60, 3600, 86400
_WEEK_OFFSET = 4 * DAY
"""1970-01-05 was a Monday."""
_THREE_DAYS_OFFSET = DAY
"""Recorded 3d candles of two listings open on days since the epoch with remainder 1 modulo 3."""


@dataclass(frozen=True, slots=True)
class Period:
    """Candle period of the exchange.

    Attributes:
        name: The exchange's name, ``1m`` or ``1M``; case-sensitive.
        step_s: Length in seconds; 0 for the calendar month.
        offset_s: Open of the candle with index 0, seconds since the epoch.
    """

    name: str
    step_s: int
    offset_s: int = 0

    def index(self, time_s: int) -> int:
        """Return the index of the candle that contains a second (years 1970 to 9999 for the month)."""
        if self.step_s:
            return (time_s - self.offset_s) // self.step_s
        day = dt.datetime.fromtimestamp(time_s, dt.UTC)
        return (day.year - 1970) * 12 + day.month - 1

    def indexes(self, times_s: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `index` for an array."""
        if self.step_s:
            return (times_s - self.offset_s) // self.step_s
        return times_s.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)

    def open_s(self, index: int) -> int:
        """Return the first second of the candle with this index."""
        if self.step_s:
            return index * self.step_s + self.offset_s
        return int(dt.datetime(1970 + index // 12, index % 12 + 1, 1, tzinfo=dt.UTC).timestamp())

    def opens_s(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `open_s` for an array."""
        if self.step_s:
            return indexes * self.step_s + self.offset_s
        return indexes.astype("datetime64[M]").astype("datetime64[s]").astype(np.int64)

    def first_index(self, time_ms: int) -> int:
        """Return the index of the first candle that opens at or after a time in milliseconds."""
        time_s = -(-time_ms // 1000)
        index = self.index(time_s)
        return index if self.open_s(index) == time_s else index + 1

    def nests(self, finer: Period) -> bool:
        """Return whether candles of ``finer`` fill this period's candles exactly, so that they can be aggregated."""
        if not finer.step_s or finer.step_s == self.step_s:
            return False
        if self.step_s and not self.offset_s and not finer.offset_s:
            return self.step_s % finer.step_s == 0
        return DAY % finer.step_s == 0


PERIODS = {
    period.name: period
    for period in (
        Period("1s", 1),
        *(Period(f"{n}m", n * MINUTE) for n in (1, 3, 5, 15, 30)),
        *(Period(f"{n}h", n * HOUR) for n in (1, 2, 4, 6, 8, 12)),
        Period("1d", DAY),
        Period("3d", 3 * DAY, _THREE_DAYS_OFFSET),
        Period("1w", 7 * DAY, _WEEK_OFFSET),
        Period("1M", 0),
    )
}
"""All periods of the exchange, finest first."""
