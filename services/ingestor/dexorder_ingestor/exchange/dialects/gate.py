"""Gate.

Ids of trades are numbers, the same in the socket and in REST. They ascend (`last_id` queries larger ones), and are not
known to be consecutive in a market. ccxt sends no start for spot markets, and whole seconds for contracts, so only the
newest trades are used: at most 1,000.

Rows of candles are lists for spot markets, with the quote volume in the second column, and objects for contracts, with
their volume in contracts. Times are seconds. Nothing else about its candles is used.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Columns, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries

_OF_CONTRACTS: Columns = ("t", "o", "h", "l", "c", "v", None, None)

DIALECT = Dialect(
    "gate",
    candles=CandleFacts(
        1_000,
        rows_at=(),
        columns=(0, 5, 3, 4, 2, 6, 1, None),
        linear_columns=_OF_CONTRACTS,
        inverse_columns=_OF_CONTRACTS,
        time_unit_ms=1_000,
    ),
    trades=TradeSeries(ascending=True, by_time=False),
)
