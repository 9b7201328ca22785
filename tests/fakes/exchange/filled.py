"""Candles of periods without trades: flat at the last price, with volume 0, as many exchanges send them. Pure."""

from __future__ import annotations

import numpy as np

from dexorder_exchange_sim.candles import CandleRequest, Candles, concat
from dexorder_exchange_sim.periods import Period
from dexorder_exchange_sim.trades import Trades, TradeSource

_NEVER_S = 1 << 40


class Filled:
    """Source of one symbol whose candles have no gaps from the first one to now, or to its delisting."""

    def __init__(self, source: TradeSource) -> None:
        self.instrument = source.instrument
        self.end_s = source.instrument.delisted_s or _NEVER_S
        self._source = source

    def candles(self, period: Period, query: CandleRequest, *, now_ns: int) -> Candles:
        """See `Source.candles`."""
        newest_s = min(now_ns // 1_000_000_000, self.end_s - 1)
        if query.end_ms is not None:
            newest_s = min(newest_s, query.end_ms // 1000)
        oldest, last = period.index(self.instrument.listed_s), period.index(max(newest_s, 0))
        if query.start_ms is None:
            first = max(oldest, last - query.limit + 1)
        else:
            first = max(oldest, period.first_index(max(query.start_ms, 0)))
            last = min(last, first + query.limit - 1)
        if last < first or newest_s < self.instrument.listed_s:
            return self._source.candles(period, CandleRequest(0, 0, 1), now_ns=0)
        first_ms, last_ms = (period.open_s(index) * 1000 for index in (first, last))
        rows = concat(
            [
                self._source.candles(period, CandleRequest(None, first_ms - 1, 1), now_ns=now_ns),
                self._source.candles(period, CandleRequest(first_ms, last_ms, last - first + 1), now_ns=now_ns),
            ]
        )
        opens = period.opens_s(np.arange(first, last + 1))
        place = np.searchsorted(rows.open_s, opens, side="right") - 1
        opens, place = opens[place >= 0], place[place >= 0]
        traded, close = rows.open_s[place] == opens, rows.close[place]
        o, h, low = (np.where(traded, column[place], close) for column in (rows.open, rows.high, rows.low))
        return Candles(opens, o, h, low, close, np.where(traded, rows.volume[place], 0.0))

    def newest_s(self, *, now_ns: int) -> int:
        """See `Source.newest_s`."""
        return self._source.newest_s(now_ns=now_ns)

    def trades(self, first_id: int, limit: int, *, now_ns: int) -> Trades:
        """See `TradeSource.trades`."""
        return self._source.trades(first_id, limit, now_ns=now_ns)

    def first_trade_at(self, time_ms: int, *, now_ns: int) -> int:
        """See `TradeSource.first_trade_at`."""
        return self._source.first_trade_at(time_ms, now_ns=now_ns)
