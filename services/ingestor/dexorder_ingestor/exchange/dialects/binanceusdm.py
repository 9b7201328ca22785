"""Binance USD-M futures.

Trades are aggregates of fills (`aggTrades`), like in spot markets: their numbers are consecutive in a market, in the
socket and in REST, and `fromId` queries them by number. Fills of the insurance fund and of automatic deleveraging are
not in aggregates (its documentation), and therefore not in candles that are built from trades.

Rows of candles have Binance's columns; nothing else about its candles is used. The same codes heal as at Binance.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.dialects.binance import DIALECT as SPOT

DIALECT = Dialect(
    "binanceusdm",
    candles=CandleFacts(500, rows_at=(), linear_columns=SPOT.candles.linear_columns),
    trades=SPOT.trades,
    errors=SPOT.errors,
)
