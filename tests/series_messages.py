"""Series as messages, from what tests write: ticker, period and dataset."""

from __future__ import annotations

from dexorder_common.model.instrument import Series
from dexorder_common.rpc.common_messages import encode_series
from dexorder_protos.dexorder.relay.v1 import common_pb2


def series(ticker: str = "", period_seconds: int = 0, dataset: str = "") -> common_pb2.Series:
    """Return the message; without a dataset the period tells candles or trades, and ``*.EXCHANGE`` means tickers."""
    return encode_series(Series.decode(ticker, period_seconds, dataset))
