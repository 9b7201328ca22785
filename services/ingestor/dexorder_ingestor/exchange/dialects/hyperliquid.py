"""Hyperliquid.

ccxt's `fetchTrades` queries the fills of one user and refuses to be called without an address. So REST has no trades of
a market: realtime has live data only, and settles and stores nothing. History is not concerned.

Of its candles nothing is used but what ccxt's features say.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries

DIALECT = Dialect("hyperliquid", candles=CandleFacts(1_000), trades=TradeSeries(has_rest=False))
