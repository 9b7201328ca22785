from __future__ import annotations

from typing import Any, cast

import pytest

from services.common.model.errors import InvalidRequest
from services.common.model.instrument import Instrument
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.ingestor.broker.connection import read_dispatch
from services.ingestor.broker.slots import Dispatch
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.fakes import dispatch

SPAN = minutes(0, 10)


def test_data_request_becomes_a_dispatch() -> None:
    assert read_dispatch(dispatch("j1", SPAN, limit=7)) == Dispatch(
        "j1", "request of j1", Instrument("BTC/USDT", "SIM"), SPAN, 60, limit=7
    )
    assert read_dispatch(dispatch("j1", SPAN)).limit == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"job_id": ""}, "job_id is missing"),
        ({"type": pb.DataRequest.REALTIME_TICKS}, "type REALTIME_TICKS is not served"),
        ({"type": 9}, "type 9 is not served"),
        ({"ticker": "BTCUSDT"}, "ticker 'BTCUSDT'"),
        ({"historical": None}, "historical is missing"),
        ({"historical": {"start_time": SPAN.end_ns, "end_time": SPAN.start_ns, "period_seconds": 60}}, "end_time"),
        ({"historical": {"start_time": 1, "end_time": SPAN.end_ns, "period_seconds": 60}}, "start_time 1 is not on"),
        ({"historical": {"start_time": 0, "end_time": SPAN.end_ns, "period_seconds": 7}}, "period_seconds 7"),
        ({"historical": {"start_time": 0, "end_time": 2**64 - 1, "period_seconds": 60}}, "end_time 1844"),
    ],
)
def test_wrong_field_is_named(change: dict[str, Any], reason: str) -> None:
    request = dispatch("j1", SPAN)
    for name, value in change.items():
        request.ClearField(cast(Any, name))
        if isinstance(value, dict):
            request.historical.CopyFrom(pb.HistoricalParams(**value))
        elif value:
            setattr(request, name, value)
    with pytest.raises(InvalidRequest, match=reason):
        read_dispatch(request)
