"""Market of a replica that lacks the candles and trades of some time. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dexorder_exchange_sim.candles import CandleRequest, Candles, Source, aggregate, concat
from dexorder_exchange_sim.periods import MINUTE, PERIODS, Period
from dexorder_exchange_sim.trades import Trades, TradeSource

Coarser = Literal["kept", "absent", "computed"]
"""Candles longer than a minute: unchanged; absent, too, if they open in the absent time; computed from the minutes that
are left."""
_S = 1_000_000_000


def without(source: Source, span_ns: tuple[int, int], coarser: Coarser) -> Source:
    """Return a source without rows that open in [start, end), nanoseconds; answers are as long as the limit allows."""
    span_s = -(-span_ns[0] // _S), -(-span_ns[1] // _S)
    return (
        _AbsentTrades(source, span_s, coarser) if isinstance(source, TradeSource) else _Absent(source, span_s, coarser)
    )


class _Absent:
    """Source without the candles that open in a range of seconds."""

    def __init__(self, source: Source, span_s: tuple[int, int], coarser: Coarser) -> None:
        self.instrument = source.instrument
        self._source = source
        self._span_s = span_s
        self._coarser = coarser

    def candles(self, period: Period, query: CandleRequest, *, now_ns: int) -> Candles:
        """See `Source.candles`."""
        start_s, end_s = self._span_s
        is_coarser = period.step_s == 0 or period.step_s > MINUTE
        if is_coarser and self._coarser == "kept":
            return self._source.candles(period, query, now_ns=now_ns)
        more = period.index(end_s) - period.index(start_s) + 1
        wide = CandleRequest(query.start_ms, query.end_ms, query.limit + more)
        rows = self._source.candles(period, wide, now_ns=now_ns)
        if is_coarser and self._coarser == "computed":
            rows = self._computed(period, rows, now_ns=now_ns)
        else:
            rows = rows[~self._hidden(rows.open_s)]
        return rows[: query.limit] if query.start_ms is not None else rows[max(0, len(rows) - query.limit) :]

    def newest_s(self, *, now_ns: int) -> int:
        """See `Source.newest_s`."""
        return self._source.newest_s(now_ns=now_ns)

    def _computed(self, period: Period, rows: Candles, *, now_ns: int) -> Candles:
        """Return candles of a period; candles that overlap the absent time are made of the minutes outside it."""
        ends_s = period.opens_s(period.indexes(rows.open_s) + 1)
        touched = (rows.open_s < self._span_s[1]) & (ends_s > self._span_s[0])
        if not touched.any():
            return rows
        first_s, last_s = int(rows.open_s[touched][0]), int(ends_s[touched][-1])
        query = CandleRequest(first_s * 1000, last_s * 1000 - 1, (last_s - first_s) // MINUTE + 1)
        minutes = self._source.candles(PERIODS["1m"], query, now_ns=now_ns)
        left = aggregate(minutes[~self._hidden(minutes.open_s)], period)
        before, after = rows.open_s < first_s, rows.open_s >= last_s
        return concat([rows[before], left, rows[after]])

    def _hidden(self, times_s: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (times_s >= self._span_s[0]) & (times_s < self._span_s[1])


class _AbsentTrades(_Absent):
    """The same for a source of trades."""

    _source: TradeSource

    def trades(self, first_id: int, limit: int, *, now_ns: int) -> Trades:
        """See `TradeSource.trades`."""
        found = self._source.trades(first_id, limit, now_ns=now_ns)
        return found[~self._hidden(found.time_ms // 1000)]

    def first_trade_at(self, time_ms: int, *, now_ns: int) -> int:
        """See `TradeSource.first_trade_at`."""
        return self._source.first_trade_at(time_ms, now_ns=now_ns)
