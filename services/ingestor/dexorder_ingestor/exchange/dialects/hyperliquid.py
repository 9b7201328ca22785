"""Hyperliquid.

ccxt's `fetchTrades` queries the fills of one user and refuses to be called without an address. So REST lacks the trades
of a market: realtime has only live data, without settled or stored trades. History is not concerned.

For its candles only ccxt's features are used.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries

DIALECT = Dialect("hyperliquid", candles=CandleFacts(1_000), trades=TradeSeries(has_rest=False))
