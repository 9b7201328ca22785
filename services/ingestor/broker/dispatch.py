"""Dispatch of a job: the DataRequest (0x24) that starts it and the WorkComplete (0x21) that ends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.model.errors import InvalidRequest
from services.common.model.instrument import Instrument
from services.common.model.periods import check_span
from services.common.model.time_range import TimeRange
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One attempt of a job for historical candles.

    Attributes:
        id: Id of this attempt; ``job_id`` on the wire.
        span: Half open, nanoseconds; both ends on the period's grid.
        limit: Stop after this many candles; 0 means all of ``span``.
    """

    id: str
    request_id: str
    instrument: Instrument
    span: TimeRange
    period_seconds: int
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """End of a dispatch. Without ``success`` the relay queues the rest of the job again."""

    dispatch_id: str
    success: bool
    message: str = ""


def read_dispatch(request: pb.DataRequest) -> Dispatch:
    """Return the dispatch in a DataRequest.

    Raises:
        InvalidRequest: This ingestor does not serve the type, or a field is missing, out of range or off the grid.
    """
    if not request.job_id:
        raise InvalidRequest("job_id is missing")
    if request.type != pb.DataRequest.HISTORICAL_OHLC:
        names = {value: name for name, value in pb.DataRequest.RequestType.items()}
        raise InvalidRequest(f"type {names.get(request.type, request.type)} is not served by this ingestor")
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


def work_complete(completion: Completion) -> pb.WorkComplete:
    """Return the message that reports a completion to the relay."""
    return pb.WorkComplete(
        job_id=completion.dispatch_id, success=completion.success, error_message=completion.message or None
    )
