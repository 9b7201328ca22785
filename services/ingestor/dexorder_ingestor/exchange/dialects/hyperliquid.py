"""Hyperliquid.

ccxt's `fetchTrades` queries the fills of one user and refuses to be called without an address. So REST lacks the trades
of a market: realtime has only live data, without settled or stored trades. History is not concerned.

Rows of candles are objects with the number of trades. Nothing else about its candles is used.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Columns, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries

_COLUMNS: Columns = ("t", "o", "h", "l", "c", "v", None, "n")

DIALECT = Dialect(
    "hyperliquid",
    candles=CandleFacts(1_000, rows_at=(), columns=_COLUMNS, linear_columns=_COLUMNS),
    trades=TradeSeries(has_rest=False),
)
