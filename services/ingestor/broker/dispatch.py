"""What a dispatch (0x24) asks for: DataRequest in, Job or the reason to reject out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.model.errors import InvalidRequest
from services.common.model.instrument import Instrument
from services.common.model.periods import check_span
from services.common.model.time_range import TimeRange
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One dispatch of historical candles.

    Attributes:
        limit: Stop after this many candles; 0 means all of ``span``.
    """

    job_id: str
    request_id: str
    ticker: Instrument
    span: TimeRange
    period_seconds: int
    limit: int = 0


def read_dispatch(request: pb.DataRequest) -> Dispatch:
    """The job in a dispatch.

    Raises:
        InvalidRequest: Of a type this ingestor does not do, or a field is missing, out of range or off the grid.
    """
    if not request.job_id:
        raise InvalidRequest("job_id is missing")
    if request.type != pb.DataRequest.HISTORICAL_OHLC:
        names = dict(pb.DataRequest.RequestType.items())
        name = next((n for n, value in names.items() if value == request.type), str(request.type))
        raise InvalidRequest(f"type {name} is not served by this ingestor")
    if not request.HasField("historical"):
        raise InvalidRequest("historical is missing")
    asked = request.historical
    return Dispatch(
        job_id=request.job_id,
        request_id=request.request_id,
        ticker=Instrument.parse(request.ticker),
        span=check_span(asked.start_time, asked.end_time, asked.period_seconds),
        period_seconds=asked.period_seconds,
        limit=asked.limit,
    )
