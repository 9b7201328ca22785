"""Trade columns, their sources, and recorded trades. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dexorder_exchange_sim.candles import CandleRequest, Candles, Source, aggregate, concat
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import Period

Ints = NDArray[np.int64]

_LOTS = 100_000_000
"""Recorded amounts are added up in units of 1e-8, so that sums are exact."""


@dataclass(frozen=True, slots=True)
class Trades:
    """Trades in the order of their consecutive ids and of their times; prices and amounts in units (float64).

    ``micros`` are the microseconds after ``time_ms``, 1 to 998, increasing within a millisecond; dialects with finer
    times show them.
    """

    id: Ints
    time_ms: Ints
    micros: Ints
    price: NDArray[np.float64]
    amount: NDArray[np.float64]
    buyer_is_maker: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.id)

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Trades:
        return Trades(*(getattr(self, column.name)[part] for column in fields(self)))


@runtime_checkable
class TradeSource(Source, Protocol):
    """Source of one symbol's candles and of the trades that they consist of."""

    def trades(self, first_id: int, limit: int, *, now_ns: int) -> Trades:
        """Return the existing trades among the ``limit`` ids starting with ``first_id``, none after ``now_ns``."""

    def first_trade_at(self, time_ms: int, *, now_ns: int) -> int:
        """Return the id of the first trade at or after a time; one past the newest without such a trade."""


class RecordedTrades:
    """Recorded trades of one symbol, and the candles of any period that they add up to."""

    def __init__(self, instrument: SimInstrument, trades: Trades) -> None:
        self.instrument = instrument
        self._trades = trades
        lots = np.rint(trades.amount * _LOTS).astype(np.int64)
        price = trades.price
        self._ticks = Candles(trades.time_ms // 1000, price, price, price, price, lots)
        self._whole: dict[str, Candles] = {}

    def trades(self, first_id: int, limit: int, *, now_ns: int) -> Trades:
        """See `TradeSource.trades`."""
        base, count = int(self._trades.id[0]), self._count(now_ns)
        low = min(max(first_id - base, 0), count)
        return self._trades[low : max(low, min(first_id + limit - base, count))]

    def first_trade_at(self, time_ms: int, *, now_ns: int) -> int:
        """See `TradeSource.first_trade_at`."""
        place = int(np.searchsorted(self._trades.time_ms, time_ms))
        return int(self._trades.id[0]) + min(place, self._count(now_ns))

    def candles(self, period: Period, query: CandleRequest, *, now_ns: int) -> Candles:
        """See `Source.candles`; the last candle may be unfinished."""
        rows = self._rows(period, now_ns).asked(query)
        return replace(rows, volume=rows.volume / _LOTS)

    def newest_s(self, *, now_ns: int) -> int:
        """See `Source.newest_s`."""
        return min(int(self._trades.time_ms[-1]) // 1000 + 1, now_ns // 1_000_000_000)

    def _count(self, now_ns: int) -> int:
        """Return the number of trades by now."""
        return int(np.searchsorted(self._trades.time_ms, now_ns // 1_000_000, side="right"))

    def _rows(self, period: Period, now_ns: int) -> Candles:
        """Return the finished candles and the running one, volumes in lots."""
        whole = self._whole.get(period.name)
        if whole is None:
            whole = self._whole[period.name] = aggregate(self._ticks, period)
        running_s = period.open_s(period.index(now_ns // 1_000_000_000))
        finished = whole[: int(np.searchsorted(whole.open_s, running_s))]
        first = int(np.searchsorted(self._ticks.open_s, running_s))
        return concat([finished, aggregate(self._ticks[first : max(first, self._count(now_ns))], period)])
