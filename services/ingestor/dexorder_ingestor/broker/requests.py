"""Dispatches in the DataRequests of the broker."""

from __future__ import annotations

from dataclasses import dataclass

from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.periods import check_period, check_span
from dexorder_ingestor.broker.slots import Dispatch, JobKind, SlotType
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb


@dataclass(frozen=True, slots=True)
class RealtimeDispatch:
    """One attempt of a realtime job.

    Attributes:
        id: Id of this attempt; ``job_id`` on the wire.
        include_ticks: Produce the trades.
        periods: Periods of the candles to produce, in seconds; none for no candles.
    """

    id: str
    request_id: str
    instrument: Instrument
    include_ticks: bool
    periods: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TickersDispatch:
    """One attempt to take snapshots of all tickers of an exchange."""

    id: str
    request_id: str
    venue: str


AnyDispatch = Dispatch | RealtimeDispatch | TickersDispatch


def slot_of(dispatch: AnyDispatch) -> SlotType:
    """Return the type of slot that a dispatch needs."""
    if isinstance(dispatch, TickersDispatch):
        return SlotType(dispatch.venue, JobKind.HISTORICAL)
    kind = JobKind.REALTIME if isinstance(dispatch, RealtimeDispatch) else JobKind.HISTORICAL
    return SlotType(dispatch.instrument.venue, kind)


def used_slot(request: pb.DataRequest) -> SlotType:
    """Return the type of the offer that a request has used, also of one that can't be read."""
    is_realtime = request.type == pb.DataRequest.REALTIME_TICKS
    return SlotType(request.ticker.rpartition(".")[2], JobKind.REALTIME if is_realtime else JobKind.HISTORICAL)


def read_dispatch(request: pb.DataRequest) -> AnyDispatch:
    """Return the dispatch in a DataRequest.

    Raises:
        InvalidRequest: The type is unknown, or a field is missing, out of range or off the grid.
    """
    if not request.job_id:
        raise InvalidRequest("job_id is missing")
    if request.type == pb.DataRequest.HISTORICAL_OHLC:
        return _historical(request)
    if request.type == pb.DataRequest.REALTIME_TICKS:
        return _realtime(request)
    if request.type == pb.DataRequest.TICKER_SNAPSHOT:
        return _tickers(request)
    raise InvalidRequest(f"type {request.type} is not one of {', '.join(pb.DataRequest.RequestType.keys())}")


def _historical(request: pb.DataRequest) -> Dispatch:
    if not request.HasField("historical"):
        raise InvalidRequest("historical is missing")
    wanted = request.historical
    return Dispatch(
        id=request.job_id,
        request_id=request.request_id,
        instrument=Instrument.parse(request.ticker),
        span=check_span(wanted.start_time, wanted.end_time, wanted.period_seconds),
        period_seconds=wanted.period_seconds,
        limit=wanted.limit,
    )


def _realtime(request: pb.DataRequest) -> RealtimeDispatch:
    if not request.HasField("realtime"):
        raise InvalidRequest("realtime is missing")
    wanted = request.realtime
    periods = tuple(dict.fromkeys(wanted.ohlc_period_seconds)) if wanted.include_ohlc else ()
    for period in periods:
        check_period(period)
    if not wanted.include_ticks and not periods:
        raise InvalidRequest("realtime asks for nothing: include_ticks is false, and there is no period of candles")
    return RealtimeDispatch(
        id=request.job_id,
        request_id=request.request_id,
        instrument=Instrument.parse(request.ticker),
        include_ticks=wanted.include_ticks,
        periods=periods,
    )


def _tickers(request: pb.DataRequest) -> TickersDispatch:
    instrument = Instrument.parse(request.ticker)
    if not instrument.is_whole_exchange:
        whole = Series.whole_exchange(instrument.venue, TICKERS).ticker
        raise InvalidRequest(f"ticker {request.ticker!r} of a snapshot of tickers is not {whole}")
    return TickersDispatch(id=request.job_id, request_id=request.request_id, venue=instrument.venue)
