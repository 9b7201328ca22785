"""Binance COIN-M futures.

Trades are aggregates of fills (`aggTrades`), like in spot markets: their numbers are consecutive in a market, in the
socket and in REST, and `fromId` queries them by number. Amounts are numbers of contracts.

Its candles are the newest of a window (see Binance), so windows are never wider than a call. Rows have Binance's
columns; the volume is the one in the base currency. The same codes heal as at Binance.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.dialects.binance import DIALECT as SPOT

DIALECT = Dialect(
    "binancecoinm",
    candles=CandleFacts(500, rows_at=(), inverse_columns=SPOT.candles.inverse_columns),
    trades=SPOT.trades,
    errors=SPOT.errors,
)
