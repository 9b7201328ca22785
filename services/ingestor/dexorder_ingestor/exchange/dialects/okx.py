"""OKX.

`before` and `after` are exclusive (ccxt subtracts 1 ms from the start). Candles older than 1,439 periods come from
another endpoint, at most 100 a call, at half the rate; 100 is used for both. Newest first. The ninth column marks
finished candles: a query is repeated if its answer has an unfinished one. Days and longer periods are queried in UTC
(`1Dutc`); otherwise they would open at 16:00 UTC. ccxt calls it 9 times a second for old candles.

Ids of trades are numbers that ascend, but the socket merges fills of one order and shows the last number only (its
channel without that, `trades-all`, takes a key in ccxt). So the socket is a second source of their last fills alone,
and two answers of REST have to agree on the others. Older trades are not available: ccxt queries the newest trades and
drops the ones before the start.

The `expTime` of a spot or swap market is empty until its delisting is known (its documentation).
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import (
    CandleFacts,
    DelistingFact,
    Dialect,
    ErrorFacts,
    HealingCode,
    Quirks,
    Remedy,
)
from dexorder_ingestor.exchange.trades import TradeSeries

DIALECT = Dialect(
    "okx",
    candles=CandleFacts(
        100,  # 300 for recent candles; its history endpoint returns 100
        rows_at=("data",),
        columns=(0, 1, 2, 3, 4, 5, 7, None),
        linear_columns=(0, 1, 2, 3, 4, 6, 7, None),
        inverse_columns=(0, 1, 2, 3, 4, 6, None, None),
        running=(8, "0"),
        volume_tolerance=1e-6,
        publish_seconds=30.0,
    ),
    trades=TradeSeries(ascending=True, by_time=False, page=500),
    errors=ErrorFacts(
        codes_at=(("code",),),
        always_coded=True,
        healing={
            "50001": HealingCode(Remedy.REPEAT, "temporarily unavailable (ccxt: OnMaintenance)"),
            "50011": HealingCode(Remedy.SLOW_DOWN, "too many requests (ccxt: RateLimitExceeded)"),
        },
    ),
    quirks=Quirks(
        other_hosts={"www.okx.com": ("aws.okx.com",)},
        hosts_source="ccxt's comment on `hostname`",
        delisting=DelistingFact("expTime"),
    ),
)
