"""Bitget.

Written from ccxt's source alone, so facts that it does not show are the cautious ones: coarser candles are not used as
checksums, candles are absent after 120 s at the earliest, quote volumes are not read (ccxt shows rows of seven columns,
and not whether the seventh is in the quote currency in all markets).

ccxt queries `candles` (at most 1,000 a call) for a start of the last 29 days to some years, by period, and otherwise
`history-candles` (at most 200); 200 is used for both. `history-candles` counts back from `endTime`: ccxt sets its start
200 periods earlier and drops the rows before the window, so rows of these 200 periods are accepted and all others
refused. The newest candles of a longer window are returned. For contracts a call covers at most 90 days, so one of days
or more returns fewer candles, which is learnt. An answer does not name its symbol. Days and longer periods of spot
markets are queried in UTC (`1Dutc`). ccxt calls it 20 times a second, and 10 times for trades.

Ids of trades are numbers of 19 digits, the same in the socket and in REST. They ascend (`idLessThan` queries older
trades) and are not consecutive in a market. ccxt does not show which trades a query from a time returns, so only the
newest are used: at most 1,000.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Columns, Dialect, ErrorFacts, HealingCode, Remedy
from dexorder_ingestor.exchange.trades import TradeSeries

_COLUMNS: Columns = (0, 1, 2, 3, 4, 5, None, None)

DIALECT = Dialect(
    "bitget",
    candles=CandleFacts(
        200,
        reaches_back=True,
        rows_at=("data",),
        columns=_COLUMNS,
        linear_columns=_COLUMNS,
        inverse_columns=(0, 1, 2, 3, 4, 6, None, None),
    ),
    trades=TradeSeries(ascending=True, by_time=False),
    errors=ErrorFacts(
        codes_at=(("code",), ("err_code",)),
        always_coded=True,
        healing={"40015": HealingCode(Remedy.REPEAT, "system abnormal (ccxt: ExchangeError)")},
    ),
)
