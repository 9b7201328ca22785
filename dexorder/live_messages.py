"""Conversion of the relay's messages about live data and subscriptions to the values of ``live.py``."""

from __future__ import annotations

from dexorder.live import LiveCandle, LiveJob, LiveSeries, LiveStatus, LiveTrade, LiveUpdate, Missed, Subscription
from services.gen.dexorder.market.v1 import market_pb2
from services.gen.dexorder.relay.v1 import realtime_pb2 as pb

_SIDES = {market_pb2.Trade.SIDE_BUY: "buy", market_pb2.Trade.SIDE_SELL: "sell"}
_STATUSES = {
    pb.REALTIME_STATE_RUNNING: LiveStatus.RUNNING,
    pb.REALTIME_STATE_STOPPING: LiveStatus.STOPPING,
}


def decode_update(message: pb.StreamMarketDataResponse) -> LiveUpdate:
    """Return one answer of StreamMarketData."""
    return LiveUpdate(
        tuple(Missed(m.ticker, m.period_seconds, m.count, m.start_time, m.end_time) for m in message.missed),
        tuple((each.ticker, _status(each.state)) for each in message.states),
        tuple(map(_trade, message.trades)),
        tuple(map(_candle, message.candles)),
    )


def decode_subscription(message: pb.StartedSubscription) -> Subscription:
    """Return a subscription."""
    asked = message.subscription
    return Subscription(
        asked.subscription_id,
        asked.ticker,
        asked.params.include_ticks,
        tuple(asked.params.ohlc_period_seconds),
        asked.since if asked.HasField("since") else None,
        asked.client_id,
        message.started_at,
        tuple(message.history_request_ids),
    )


def decode_job(message: pb.RealtimeJob) -> LiveJob:
    """Return a job."""
    series = (
        LiveSeries(each.period_seconds, each.settled_until, each.count, each.reported_at, each.lag)
        for each in message.series
    )
    return LiveJob(
        message.ticker,
        _status(message.state),
        message.ingestor,
        message.dispatched_at,
        message.restarts,
        message.last_error,
        message.next_attempt,
        tuple(series),
    )


def _status(state: pb.RealtimeState.ValueType) -> LiveStatus:
    return _STATUSES.get(state, LiveStatus.WAITING)


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
