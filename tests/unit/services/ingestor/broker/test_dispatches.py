from __future__ import annotations

from typing import Any, cast

import pytest

from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.realtime import RealtimeDispatch, RealtimeParams
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.dispatches import (
    read_dispatch,
    slot_of,
    used_slot,
)
from dexorder_ingestor.broker.slots import JobKind, SlotType
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.fakes import dispatch

SPAN = minutes(0, 10)


def test_data_request_becomes_a_dispatch() -> None:
    assert read_dispatch(dispatch("j1", SPAN, limit=7)) == Dispatch(
        "j1", "request of j1", Series("BTC/USDT.SIM", 60), SPAN, limit=7
    )
    assert read_dispatch(dispatch("j1", SPAN)) == Dispatch(
        "j1", "request of j1", Series("BTC/USDT.SIM", 60), SPAN, limit=0
    )


def realtime(**params: Any) -> pb.DataRequest:
    return pb.DataRequest(
        request_id="r1",
        job_id="j1",
        type=pb.DataRequest.REALTIME_TICKS,
        ticker="BTC/USDT.SIM",
        realtime=pb.RealtimeParams(**params),
    )


@pytest.mark.parametrize(
    ("params", "ticks", "periods"),
    [
        ({"include_ticks": True}, True, ()),
        ({"include_ohlc": True, "ohlc_period_seconds": [60, 300, 60]}, False, (60, 300)),
        ({"include_ticks": True, "ohlc_period_seconds": [60]}, True, ()),
    ],
)
def test_realtime_request_becomes_a_dispatch_of_a_realtime_slot(
    params: dict[str, Any], ticks: bool, periods: tuple[int, ...]
) -> None:
    request = realtime(**params)
    found = read_dispatch(request)
    assert found == RealtimeDispatch("j1", "r1", "BTC/USDT.SIM", RealtimeParams(ticks, periods))
    assert slot_of(found) == used_slot(request) == SlotType("SIM", JobKind.REALTIME)


def test_snapshot_of_tickers_becomes_a_dispatch_of_a_historical_slot() -> None:
    request = pb.DataRequest(request_id="r1", job_id="j1", type=pb.DataRequest.TICKER_SNAPSHOT, ticker="*.SIM")
    found = read_dispatch(request)
    assert found == Dispatch("j1", "r1", Series.whole_exchange("SIM", TICKERS), TimeRange(0, 0))
    assert slot_of(found) == used_slot(request) == SlotType("SIM", JobKind.HISTORICAL)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (realtime(), "realtime asks for no data"),
        (realtime(include_ohlc=True), "realtime asks for no data"),
        (realtime(include_ohlc=True, ohlc_period_seconds=[7]), "period_seconds 7"),
        (pb.DataRequest(job_id="j1", type=pb.DataRequest.REALTIME_TICKS, ticker="A/B.SIM"), "realtime is missing"),
        (pb.DataRequest(job_id="j1", type=pb.DataRequest.TICKER_SNAPSHOT, ticker="A/B.SIM"), r"is not \*\.SIM"),
    ],
)
def test_wrong_fields_of_realtime_and_ticker_requests_are_named(request_: pb.DataRequest, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_dispatch(request_)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"job_id": ""}, "job_id is missing"),
        ({"type": 9}, "type 9 is not one of HISTORICAL_OHLC, REALTIME_TICKS, TICKER_SNAPSHOT"),
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
