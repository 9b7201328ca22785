"""What tickers tell of the last hours: candles summed up to one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.exchange_sim.candles import CandleQuery, Source
from services.exchange_sim.periods import MINUTE, PERIODS


@dataclass(frozen=True, slots=True)
class Summary:
    """Some hours of one market, to the minute; all 0 where there was no candle.

    ``mean`` is the price weighted by volume, estimated from the minutes' closes.
    """

    open: float = 0.0
    high: float = 0.0
    low: float = 0.0
    close: float = 0.0
    volume: float = 0.0
    mean: float = 0.0


def sum_up(source: Source, start_s: int, end_s: int, *, now_ns: int) -> Summary:
    """The minutes that open in [start_s, end_s]."""
    query = CandleQuery(start_s * 1000, end_s * 1000, (end_s - start_s) // MINUTE + 1)
    minutes = source.candles(PERIODS["1m"], query, now_ns=now_ns)
    if not len(minutes):
        return Summary()
    volume = float(minutes.volume.sum())
    mean = float(np.average(minutes.close, weights=minutes.volume)) if volume else float(minutes.close[-1])
    high, low = float(minutes.high.max()), float(minutes.low.min())
    return Summary(float(minutes.open[0]), high, low, float(minutes.close[-1]), volume, mean)
