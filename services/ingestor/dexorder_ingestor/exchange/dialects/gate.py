"""Gate.

Ids of trades are numbers, the same in the socket and in REST. They ascend (`last_id` queries larger ones), and are not
known to be consecutive in a market. ccxt sends no start for spot markets, and whole seconds for contracts, so only the
newest trades are used: at most 1,000.

For its candles only ccxt's features are used.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries

DIALECT = Dialect(
    "gate",
    candles=CandleFacts(1_000),
    trades=TradeSeries(ascending=True, by_time=False),
)
