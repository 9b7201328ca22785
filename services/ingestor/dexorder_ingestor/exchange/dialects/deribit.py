"""Deribit.

The `trade_seq` of a trade is its id here, the number of the trade in its instrument (its documentation): consecutive,
in the socket and in REST, and `start_seq` queries by it. Its `trade_id` counts the trades of a currency. `sorting`
orders the trades after a number or a time; ccxt passes both on. The socket sends the trades of 100 ms in one message,
which holds each of them.

For its candles only ccxt's features are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect
from dexorder_ingestor.exchange.trades import TradeSeries


def _sequence(trade: Mapping[str, Any]) -> str:
    return str(trade["info"]["trade_seq"])


DIALECT = Dialect(
    "deribit",
    candles=CandleFacts(1_000),
    trades=TradeSeries(numbered=True, from_number="start_seq", since_params={"sorting": "asc"}, trade_id=_sequence),
)
