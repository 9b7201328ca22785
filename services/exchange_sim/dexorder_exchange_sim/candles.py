"""Candle columns, their aggregation to coarser periods, summaries for tickers, and numbers as text. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import MINUTE, PERIODS, Period

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Candles:
    """Candles in time order, one array per column.

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

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Candles:
        return Candles(*(column[part] for column in self.columns()))

    def columns(self) -> tuple[Column, ...]:
        """Return the six columns, open time first."""
        return self.open_s, self.open, self.high, self.low, self.close, self.volume

    def asked(self, query: CandleRequest) -> Candles:
        """Return the candles of a request, of these which are all that there are."""
        times_ms = self.open_s * 1000
        low = 0 if query.start_ms is None else int(np.searchsorted(times_ms, query.start_ms))
        high = len(self) if query.end_ms is None else int(np.searchsorted(times_ms, query.end_ms, side="right"))
        if query.start_ms is None:
            low = max(0, high - query.limit)
        return self[low : max(low, min(high, low + query.limit))]


@dataclass(frozen=True, slots=True)
class CandleRequest:
    """Request for candles: both ends inclusive on the open time, in milliseconds.

    With ``start_ms`` the oldest ``limit`` candles after it; without it the newest ``limit`` up to ``end_ms``.
    """

    start_ms: int | None
    end_ms: int | None
    limit: int


class Source(Protocol):
    """Source of one symbol's candles."""

    instrument: SimInstrument

    def candles(self, period: Period, query: CandleRequest, *, now_ns: int) -> Candles:
        """Return ascending candles in units (float64) that open by ``now_ns``; empty without data."""

    def newest_s(self, *, now_ns: int) -> int:
        """Return the last second with data, for windows that end "now"; at most ``now_ns``."""


def concat(parts: list[Candles]) -> Candles:
    """Join consecutive candles."""
    return Candles(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


def aggregate(fine: Candles, period: Period) -> Candles:
    """Aggregate ascending candles to a coarser period; none may cross a boundary of it.

    A coarse candle without any fine one does not appear.
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


@dataclass(frozen=True, slots=True)
class MarketSummary:
    """Summary of some hours of one market, to the minute; all 0 without candles.

    ``mean`` is the price weighted by volume, estimated from the minutes' closes.
    """

    open: float = 0.0
    high: float = 0.0
    low: float = 0.0
    close: float = 0.0
    volume: float = 0.0
    mean: float = 0.0


def sum_up(source: Source, start_s: int, end_s: int, *, now_ns: int) -> MarketSummary:
    """Summarize the minutes that open in [start_s, end_s]."""
    query = CandleRequest(start_s * 1000, end_s * 1000, (end_s - start_s) // MINUTE + 1)
    minutes = source.candles(PERIODS["1m"], query, now_ns=now_ns)
    if not len(minutes):
        return MarketSummary()
    volume = float(minutes.volume.sum())
    mean = float(np.average(minutes.close, weights=minutes.volume)) if volume else float(minutes.close[-1])
    high, low = float(minutes.high.max()), float(minutes.low.min())
    return MarketSummary(float(minutes.open[0]), high, low, float(minutes.close[-1]), volume, mean)


def printer(decimals: int | None) -> Callable[[Column], list[str]]:
    """Return a formatter of a column as decimal text; None for as few decimals as read back to the same float64."""
    if decimals is None:
        return lambda column: [_shortest(value) for value in column.tolist()]
    form = f"%.{decimals}f"
    return lambda column: [form % value for value in column.tolist()]


def _shortest(value: float) -> str:
    """Return the shortest text that reads back to the same float, without an exponent, which no exchange sends."""
    text = repr(value)
    return text if "e" not in text else np.format_float_positional(value, trim="0")
