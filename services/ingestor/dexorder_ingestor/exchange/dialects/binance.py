"""Binance.

Binance US has the same API. `startTime` and `endTime` are inclusive on the open time. For an old start the oldest rows
come first, in time order; a limit over 1,000 is cut. Inverse markets and options return the newest rows of a wide
window, so theirs are never wider. Minutes without trades are flat candles of volume 0. The newest row is unfinished and
not marked. An answer does not name its symbol. Delivery futures (coin-m) refuse windows of over 200 days: such a job
ends as ERROR. ccxt calls it 50 times a second.

Trades are aggregates of fills, with numbers that are consecutive in a market; `fromId` queries them by number.

The `deliveryDate` of a perpetual future is 2100-12-25, and another one when it is to be delisted.

Files of whole days of spot markets are at `data.binance.vision`, a day after the day (its `binance-public-data`). Their
times are microseconds from 2025 on.

More hosts: `api3`, `api4`, `api-gcp`. The shipped exchanges file `binance` names the two of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dexorder_common.model.datasets import FUNDING
from dexorder_ingestor.exchange.dialect import (
    ArchiveFacts,
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

_COLUMNS: Columns = (0, 1, 2, 3, 4, 5, 7, 8)
INVERSE_COLUMNS: Columns = (0, 1, 2, 3, 4, 7, None, 8)
"""Of inverse markets: the sixth column counts contracts, and the eighth is the volume in the base currency."""


def _returns_newest(market: Mapping[str, Any]) -> bool:
    return bool(market.get("inverse") or market.get("option"))


def _fills(trade: Mapping[str, Any]) -> int:
    info = trade["info"]
    return int(info["l"]) - int(info["f"]) + 1


DIALECT = Dialect(
    "binance",
    twins=("binanceus",),
    candles=CandleFacts(
        1_000,
        wide=True,
        narrow=_returns_newest,
        rows_at=(),
        columns=_COLUMNS,
        linear_columns=_COLUMNS,
        inverse_columns=INVERSE_COLUMNS,
        volume_tolerance=1e-12,
        quote_is_sum=True,
        publish_seconds=30.0,
    ),
    trades=TradeSeries(numbered=True, from_number="fromId", watch={"name": "aggTrade"}, fills=_fills),
    points={
        FUNDING: PointFacts(1_000, (), {"time": "fundingTime", "rate": "fundingRate", "mark_price": "markPrice"}),
    },
    errors=ErrorFacts(
        codes_at=(("code",),),
        healing={
            "-1008": HealingCode(Remedy.SLOW_DOWN, "server overloaded (ccxt: depends on the market)"),
            "-1016": HealingCode(Remedy.REPEAT, "service shutting down (ccxt: BadRequest)"),
        },
    ),
    quirks=Quirks(
        other_hosts={"api.binance.com": ("api1.binance.com", "api2.binance.com")},
        hosts_source="its documentation (spot)",
        delisting=DelistingFact("deliveryDate", never="4133404800000"),
    ),
    archive=ArchiveFacts(
        "/data/spot/daily/klines/{market}/{period}/{market}-{period}-{day}.zip",
        columns=_COLUMNS,
        source="its `binance-public-data`",
    ),
)
