"""Candle columns and the one rule that adds fine candles up to coarse ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from services.exchange_sim.instruments import Instrument
from services.exchange_sim.periods import Period

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Candles:
    """Candles in time order, one array a column.

    Prices and volumes are float64 in quote and base units, or int64 in ticks and lots inside `market`.
    """

    open_s: NDArray[np.int64]
    open: Column
    high: Column
    low: Column
    close: Column
    volume: Column

    def __len__(self) -> int:
        return len(self.open_s)

    def __getitem__(self, part: slice) -> Candles:
        return Candles(*(column[part] for column in self.columns()))

    def columns(self) -> tuple[Column, ...]:
        """The six columns, open time first."""
        return self.open_s, self.open, self.high, self.low, self.close, self.volume


@dataclass(frozen=True, slots=True)
class CandleQuery:
    """Which candles a caller wants: both ends inclusive on the open time, in milliseconds.

    With ``start_ms`` the oldest ``limit`` candles from there on; without it the newest ``limit`` up to ``end_ms``.
    """

    start_ms: int | None
    end_ms: int | None
    limit: int


class Source(Protocol):
    """Where one symbol's candles come from."""

    @property
    def instrument(self) -> Instrument:
        """The market these candles belong to."""
        ...

    def candles(self, period: Period, query: CandleQuery, *, now_ns: int) -> Candles:
        """Candles in units (float64), ascending, none that opens after ``now_ns``; empty where there is no data."""
        ...

    def newest_s(self, *, now_ns: int) -> int:
        """The last second the data reach, for windows that end "now"; at most ``now_ns``."""
        ...


def concat(parts: list[Candles]) -> Candles:
    """Join candles that follow each other."""
    return Candles(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


def aggregate(fine: Candles, period: Period) -> Candles:
    """Add candles up to a coarser period; a coarse candle without any fine one does not appear.

    Args:
        fine: Ascending candles of any lengths, none of which crosses a boundary of ``period``.
        period: The grid to add up to.
    """
    if not len(fine):
        return fine
    indexes = period.indexes(fine.open_s)
    first = np.concatenate(([0], np.flatnonzero(np.diff(indexes)) + 1))
    last = np.append(first[1:], len(fine)) - 1
    return Candles(
        period.opens_s(indexes[first]),
        fine.open[first],
        np.maximum.reduceat(fine.high, first),
        np.minimum.reduceat(fine.low, first),
        fine.close[last],
        np.add.reduceat(fine.volume, first),
    )
