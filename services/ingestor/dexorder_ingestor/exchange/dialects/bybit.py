"""Bybit.

`start` and `end` are inclusive. For a window with more candles than the limit the newest are returned, newest first, so
windows are never wider. `result.symbol` is compared with the queried market. Options are not offered as candles. Too
many calls from one address end in HTTP 403, which gets `REFUSED_ATTEMPTS` attempts. ccxt calls it 10 times a second.

Ids of trades are UUIDs for contracts, and for spot markets numbers that are not consecutive in a market. A query for
trades returns 1,000, and 60 of a spot market. Older trades are not available: ccxt drops those before the start from
the newest. The `deliveryTime` of a perpetual future is the time of its delisting.
"""

from __future__ import annotations

from dexorder_common.model.datasets import FUNDING
from dexorder_ingestor.exchange.dialect import (
    CandleFacts,
    Columns,
    DelistingFact,
    Dialect,
    ErrorFacts,
    HealingCode,
    PointFacts,
    Quirks,
    Remedy,
)
from dexorder_ingestor.exchange.trades import TradeSeries

_COLUMNS: Columns = (0, 1, 2, 3, 4, 5, 6, None)

DIALECT = Dialect(
    "bybit",
    candles=CandleFacts(
        1_000,
        rows_at=("result", "list"),
        columns=_COLUMNS,
        linear_columns=_COLUMNS,
        inverse_columns=(0, 1, 2, 3, 4, 6, None, None),  # the sixth column is in the quote currency
        symbol_at=("result", "symbol"),
        volume_tolerance=1e-9,
        publish_seconds=30.0,
    ),
    trades=TradeSeries(by_time=False),
    points={FUNDING: PointFacts(200, ("result", "list"), {"time": "fundingRateTimestamp", "rate": "fundingRate"})},
    errors=ErrorFacts(
        codes_at=(("retCode",), ("ret_code",)),
        always_coded=True,
        healing={
            "10006": HealingCode(Remedy.SLOW_DOWN, "too many visits (ccxt: RateLimitExceeded)"),
            "10016": HealingCode(Remedy.REPEAT, "system error (ccxt: ExchangeError)"),
        },
    ),
    quirks=Quirks(
        other_hosts={"api.bybit.com": ("api.bytick.com",)},
        hosts_source="ccxt's comment on `hostname`",
        delisting=DelistingFact("deliveryTime"),
    ),
)
