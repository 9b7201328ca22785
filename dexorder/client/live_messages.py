"""Conversion of the relay's messages about live data to the values of ``live.py``."""

from __future__ import annotations

from dexorder.client.live import LiveCandle, LiveTrade, LiveUpdate, Missed
from dexorder_common.rpc.realtime_messages import decode_state
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_pb2 as pb

_SIDES = {market_pb2.Trade.SIDE_BUY: "buy", market_pb2.Trade.SIDE_SELL: "sell"}


def decode_update(message: pb.StreamMarketDataResponse) -> LiveUpdate:
    """Return one answer of StreamMarketData."""
    return LiveUpdate(
        tuple(Missed(m.ticker, m.period_seconds, m.count, m.start_time, m.end_time) for m in message.missed),
        tuple((each.ticker, decode_state(each.state)) for each in message.states),
        tuple(map(_trade, message.trades)),
        tuple(map(_candle, message.candles)),
    )


def _trade(message: market_pb2.Trade) -> LiveTrade:
    return LiveTrade(
        message.ticker,
        message.trade_id,
        message.time,
        message.price,
        message.amount,
        _SIDES.get(message.side, ""),
        message.received_at,
    )


def _candle(message: market_pb2.Candle) -> LiveCandle:
    values = message.ohlcv
    return LiveCandle(
        message.ticker,
        message.period_seconds,
        values.open_time,
        values.open,
        values.high,
        values.low,
        values.close,
        values.volume,
        values.quote_volume if values.HasField("quote_volume") else None,
        values.trade_count if values.HasField("trade_count") else None,
        message.closed,
        message.amends,
        message.received_at,
    )
