"""Dispatches of the broker: read from its requests, told to stop, and reported as ended."""

from __future__ import annotations

import asyncio

from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.periods import GIVEN_FIELDS, check_period, check_span, check_times
from dexorder_common.model.realtime import RealtimeDispatch, RealtimeParams
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.slots import DispatchEnd, JobKind, SlotType
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb

AnyDispatch = Dispatch | RealtimeDispatch


def slot_of(dispatch: AnyDispatch) -> SlotType:
    """Return the type of slot that a dispatch needs."""
    kind = JobKind.REALTIME if isinstance(dispatch, RealtimeDispatch) else JobKind.HISTORICAL
    return SlotType(dispatch.instrument.venue, kind)


def used_slot(request: pb.DataRequest) -> SlotType:
    """Return the type of the offer that a request has used, even if the request can't be read."""
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
    if request.type == pb.DataRequest.DATASET:
        return _dataset(request)
    raise InvalidRequest(f"type {request.type} is not one of {', '.join(pb.DataRequest.RequestType.keys())}")


def _historical(request: pb.DataRequest) -> Dispatch:
    if not request.HasField("historical"):
        raise InvalidRequest("historical is missing")
    wanted = request.historical
    return Dispatch(
        request.job_id,
        request.request_id,
        Series(str(Instrument.parse(request.ticker)), wanted.period_seconds),
        check_span(wanted.start_time, wanted.end_time, wanted.period_seconds, GIVEN_FIELDS),
        request.client_id,
        wanted.limit,
    )


def _realtime(request: pb.DataRequest) -> RealtimeDispatch:
    if not request.HasField("realtime"):
        raise InvalidRequest("realtime is missing")
    wanted = request.realtime
    periods = tuple(dict.fromkeys(wanted.ohlc_period_seconds)) if wanted.include_ohlc else ()
    for period in periods:
        check_period(period)
    params = RealtimeParams(wanted.include_ticks, periods)
    if not params:
        raise InvalidRequest("realtime asks for no data: include_ticks is false, and no period of candles is given")
    ticker = str(Instrument.parse(request.ticker))
    return RealtimeDispatch(request.job_id, request.request_id, ticker, params, request.client_id)


def _tickers(request: pb.DataRequest) -> Dispatch:
    instrument = Instrument.parse(request.ticker)
    series = Series.whole_exchange(instrument.venue, TICKERS)
    if not instrument.is_whole_exchange:
        raise InvalidRequest(f"ticker {request.ticker!r} of a snapshot of tickers is not {series.ticker}")
    return Dispatch(request.job_id, request.request_id, series, TimeRange(0, 0), request.client_id)


def _dataset(request: pb.DataRequest) -> Dispatch:
    if not request.HasField("historical"):
        raise InvalidRequest("historical is missing")
    wanted = request.historical
    ticker = str(Instrument.parse(request.ticker))
    series = Series.decode(ticker, wanted.period_seconds, request.dataset)
    span = check_times(wanted.start_time, wanted.end_time, GIVEN_FIELDS)
    return Dispatch(request.job_id, request.request_id, series, span, request.client_id)


def work_complete(completion: DispatchEnd) -> pb.WorkComplete:
    """Return the message that reports the end of a dispatch to the relay."""
    return pb.WorkComplete(
        job_id=completion.dispatch_id, success=completion.success, error_message=completion.message or None
    )


class StopSignal:
    """Order to end a realtime dispatch; the first one counts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._success = False
        self._message = ""

    @property
    def is_set(self) -> bool:
        """The dispatch has to end."""
        return self._event.is_set()

    def set(self, *, success: bool, message: str = "") -> None:
        """Let the dispatch publish its settled data and end; ``success`` says that the relay asked for it."""
        if not self.is_set:
            self._success = success
            self._message = message
            self._event.set()

    async def wait(self) -> None:
        """Wait until the dispatch has to end."""
        await self._event.wait()

    def completion(self, dispatch_id: str) -> DispatchEnd:
        """Return the completion of a dispatch that has ended because of it."""
        return DispatchEnd(dispatch_id, success=self._success, message=self._message)
