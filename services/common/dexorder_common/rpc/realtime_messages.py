"""Conversion between the values of ``dexorder_common/model/realtime.py`` and protobuf messages, for both ends.

Decoding does not validate a client's subscription: ``dexorder_relay/state/realtime.py`` does.
"""

from __future__ import annotations

from collections.abc import Iterable

from dexorder_common.model.datasets import realtime_dataset
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import check_span
from dexorder_common.model.realtime import (
    Knowledge,
    ProvisionalReason,
    ProvisionalSpan,
    RealtimeJobRecord,
    RealtimeParams,
    RealtimeReport,
    RealtimeState,
    RealtimeStatus,
    Resumption,
    SeriesProgress,
    StartedSubscription,
    Subscription,
    UncheckedCandles,
    wait_text,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc.common_messages import decode_series, encode_series
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2, ingestor_service_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb2

_MAX_COUNT = 2**31


def encode_realtime_series(ticker: str, period_seconds: int) -> common_pb2.Series:
    """Return the message of a series of a realtime job; trades have period 0."""
    return encode_series(Series(ticker, period_seconds, realtime_dataset(period_seconds)))


def encode_params(params: RealtimeParams) -> ingest_pb2.RealtimeParams:
    """Return the message of the produced series."""
    return ingest_pb2.RealtimeParams(
        include_ticks=params.include_ticks, include_ohlc=bool(params.periods), ohlc_period_seconds=params.periods
    )


def decode_params(message: ingest_pb2.RealtimeParams) -> RealtimeParams:
    """Return the produced series; InvalidRequest if ``include_ohlc`` and the periods contradict each other."""
    if message.include_ohlc != bool(message.ohlc_period_seconds):
        raise InvalidRequest(
            f"include_ohlc is {message.include_ohlc}, and ohlc_period_seconds is {list(message.ohlc_period_seconds)}; "
            "set both or neither"
        )
    return RealtimeParams(message.include_ticks, tuple(sorted(set(message.ohlc_period_seconds))))


def encode_subscription(subscription: Subscription) -> realtime_pb2.RealtimeSubscription:
    """Return the message of a subscription."""
    return realtime_pb2.RealtimeSubscription(
        subscription_id=subscription.subscription_id,
        ticker=subscription.ticker,
        params=encode_params(subscription.params),
        since_ns=subscription.since_ns,
        client_id=subscription.client_id or None,
    )


def decode_subscription(message: realtime_pb2.RealtimeSubscription) -> Subscription:
    """Return a subscription; InvalidRequest as ``decode_params``."""
    return Subscription(
        message.subscription_id,
        message.ticker,
        decode_params(message.params),
        message.since_ns if message.HasField("since_ns") else None,
        message.client_id,
    )


def encode_started(
    started: StartedSubscription, history_request_ids: Iterable[str]
) -> realtime_pb2.StartedSubscription:
    """Return the message of a subscription that was accepted."""
    return realtime_pb2.StartedSubscription(
        subscription=encode_subscription(started.subscription),
        started_ns=started.started_ns,
        history_request_ids=history_request_ids,
    )


def decode_started(message: realtime_pb2.StartedSubscription) -> StartedSubscription:
    """Return a subscription that was accepted."""
    return StartedSubscription(
        decode_subscription(message.subscription),
        message.started_ns,
        history_request_ids=tuple(message.history_request_ids),
    )


def encode_state(state: RealtimeState) -> realtime_pb2.RealtimeState.ValueType:
    """Return the number of a state."""
    return realtime_pb2.RealtimeState.ValueType(state)


def decode_state(state: realtime_pb2.RealtimeState.ValueType) -> RealtimeState:
    """Return a state; WAITING for one that is not given or not known."""
    try:
        return RealtimeState(state)
    except ValueError:
        return RealtimeState.WAITING


def encode_job(job: RealtimeJobRecord) -> realtime_pb2.RealtimeJob:
    """Return the message of a job."""
    return realtime_pb2.RealtimeJob(
        ticker=job.ticker,
        params=encode_params(job.params),
        state=encode_state(job.state),
        ingestor=job.ingestor,
        dispatched_ns=job.dispatched_ns or None,
        restarts=job.restarts,
        last_error=job.error,
        next_attempt_ns=job.next_attempt_ns or None,
        series=[
            realtime_pb2.RealtimeSeries(
                series=encode_realtime_series(job.ticker, each.period_seconds),
                settled_until_ns=each.settled_ns or None,
                count=each.count,
                reported_ns=each.reported_ns or None,
                lag_ns=each.lag_ns if each.reported_ns else None,
            )
            for each in job.series
        ],
        provisional=map(encode_provisional, job.provisional),
        unconfirmed_candles=job.unconfirmed,
        corrected_trades=job.corrected,
        late_trades=job.late,
    )


def decode_job(message: realtime_pb2.RealtimeJob) -> RealtimeJobRecord:
    """Return a job."""
    return RealtimeJobRecord(
        message.ticker,
        decode_params(message.params),
        decode_state(message.state),
        message.ingestor,
        message.dispatched_ns,
        message.restarts,
        message.last_error,
        message.next_attempt_ns,
        tuple(
            SeriesProgress(each.series.period_seconds, each.settled_until_ns, each.count, each.reported_ns, each.lag_ns)
            for each in message.series
        ),
        tuple(map(decode_provisional, message.provisional)),
        message.unconfirmed_candles,
        message.corrected_trades,
        message.late_trades,
    )


def encode_resumption(resumption: Resumption | None) -> ingestor_service_pb2.ResumeRealtimeResponse:
    """Return where a dispatch starts; None for one that is not current."""
    if resumption is None:
        return ingestor_service_pb2.ResumeRealtimeResponse(current=False)
    return ingestor_service_pb2.ResumeRealtimeResponse(
        current=True,
        start_ns=resumption.start_ns,
        last_trade_id=resumption.last_trade_id or None,
        candles=[
            ingestor_service_pb2.CandleStart(
                period_seconds=period, start_ns=start_ns, first_ns=resumption.first_ns.get(period, start_ns)
            )
            for period, start_ns in resumption.candles.items()
        ],
        provisional=map(encode_provisional, resumption.provisional),
        unchecked=map(encode_unchecked, resumption.unchecked),
        compared_until_ns=resumption.compared_ns,
    )


def decode_report(message: ingestor_service_pb2.RealtimeReport) -> RealtimeReport:
    """Return a report; InvalidRequest if its series or range is invalid. Spans of trades may be empty."""
    series = decode_series(message.series)
    if not series.dataset.in_realtime:
        raise InvalidRequest(f"series.dataset {series.dataset} is not one of realtime")
    return RealtimeReport(
        message.job_id,
        series,
        check_span(message.start_ns, message.end_ns, series.period_seconds)
        if series.dataset.has_periods
        else TimeRange(message.start_ns, message.end_ns),
        message.count,
        message.last_trade_id,
        min(message.lag_ns, MAX_TIME_NS),
        min(message.compared_until_ns, MAX_TIME_NS),
    )


def encode_provisional(found: ProvisionalSpan) -> realtime_pb2.ProvisionalSpan:
    """Return the message of a provisional span."""
    return realtime_pb2.ProvisionalSpan(
        start_ns=found.span.start_ns,
        end_ns=found.span.end_ns,
        reason=realtime_pb2.ProvisionalReason.ValueType(found.reason),
        first_id=found.first_id,
        last_id=found.last_id,
        since_ns=found.since_ns,
        queries=found.queries,
    )


def decode_provisional(message: realtime_pb2.ProvisionalSpan) -> ProvisionalSpan:
    """Return a provisional span; a reason that is not known here becomes ONE_SOURCE.

    Raises:
        InvalidRequest: It ends before it starts.
    """
    if message.end_ns < message.start_ns:
        raise InvalidRequest(f"provisional.end_ns {message.end_ns} is before start_ns {message.start_ns}")
    try:
        reason = ProvisionalReason(message.reason)
    except ValueError:
        reason = ProvisionalReason.ONE_SOURCE
    span = TimeRange(message.start_ns, message.end_ns)
    return ProvisionalSpan(span, reason, message.first_id, message.last_id, message.since_ns, message.queries)


def encode_unchecked(found: UncheckedCandles) -> ingestor_service_pb2.UncheckedCandles:
    """Return the message of candles that are still to be compared."""
    return ingestor_service_pb2.UncheckedCandles(
        period_seconds=found.period_seconds,
        start_ns=found.span.start_ns,
        end_ns=found.span.end_ns,
        comparisons=found.comparisons,
        ohlcv=_encode_candle(found.candle) if found.candle else None,
    )


def decode_unchecked(message: ingestor_service_pb2.UncheckedCandles) -> UncheckedCandles:
    """Return candles that are still to be compared; InvalidRequest for an unknown period or a range off its grid."""
    return UncheckedCandles(
        message.period_seconds,
        check_span(message.start_ns, message.end_ns, message.period_seconds),
        min(message.comparisons, _MAX_COUNT),
        _decode_candle(message.ohlcv) if message.HasField("ohlcv") else None,
    )


def encode_status(status: RealtimeStatus) -> ingestor_service_pb2.RealtimeStatus:
    """Return the message of a dispatch's knowledge."""
    known = status.knowledge
    return ingestor_service_pb2.RealtimeStatus(
        job_id=status.dispatch_id,
        provisional=map(encode_provisional, known.provisional),
        unchecked=map(encode_unchecked, known.unchecked),
        corrected_trades=known.corrected,
        late_trades=known.late,
        waiting=known.waiting,
        number=status.number,
    )


def decode_status(message: ingestor_service_pb2.RealtimeStatus) -> RealtimeStatus:
    """Return a dispatch's knowledge; InvalidRequest for an invalid range."""
    provisional = tuple(sorted(map(decode_provisional, message.provisional)))
    unchecked = tuple(map(decode_unchecked, message.unchecked))
    known = Knowledge(provisional, unchecked, message.corrected_trades, message.late_trades, wait_text(message.waiting))
    return RealtimeStatus(message.job_id, known, message.number)


def _encode_candle(candle: Candle) -> ohlcv_pb2.OHLCV:
    return ohlcv_pb2.OHLCV(
        open_time_ns=candle.open_ns,
        open=candle.open,
        high=candle.high,
        low=candle.low,
        close=candle.close,
        volume=candle.volume,
        quote_volume=candle.quote_volume,
        trade_count=candle.trade_count,
    )


def _decode_candle(message: ohlcv_pb2.OHLCV) -> Candle:
    return Candle(
        message.open_time_ns,
        message.open,
        message.high,
        message.low,
        message.close,
        message.volume,
        message.quote_volume if message.HasField("quote_volume") else None,
        trade_count=message.trade_count if message.HasField("trade_count") else None,
    )
