"""Binance USD-M futures.

Trades are aggregates of fills (`aggTrades`), as those of spot markets: their numbers are consecutive in a market, in
the socket and in REST, and `fromId` queries them by number. Fills of the insurance fund and of automatic deleveraging
are in no aggregate (its documentation), so neither are they in candles that are built from trades.

Of its candles nothing is used but what ccxt's features say. The codes that heal are those of Binance.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.dialects.binance import DIALECT as SPOT

DIALECT = Dialect(
    "binanceusdm",
    candles=CandleFacts(500, rows_at=()),
    trades=SPOT.trades,
    errors=SPOT.errors,
)
