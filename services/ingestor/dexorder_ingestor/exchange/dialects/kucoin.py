"""KuCoin.

The `sequence` of a trade is its id here: the socket and REST both have it, while REST's spot trades lack the `tradeId`
that ccxt takes. It ascends and is not consecutive in a market. A query for trades returns the newest 100; ccxt can't
ask for more, or for older ones. With more than 100 trades between two queries, the others come from the socket, if it
was alive.
The exchange sets the time between two pings, 18 s, so a silent socket is noticed later than elsewhere.

For its candles only ccxt's features are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries


def _sequence(trade: Mapping[str, Any]) -> str:
    return str(trade["info"]["sequence"])


DIALECT = Dialect(
    "kucoin",
    twins=("kucoinfutures",),
    candles=CandleFacts(500),
    trades=TradeSeries(ascending=True, by_time=False, page=100, silence_ns=20 * SECOND_NS, trade_id=_sequence),
)
