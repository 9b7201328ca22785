"""Quotas at each of their doors: a client without quota is refused by every call that docs/limits.toml names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_relay import access
from dexorder_relay.service.services import SERVICES
from tests.series_messages import series
from tests.unit.services.relay.harness import EARLIER, TICKER, Suite, at, page, request
from tests.unit.services.relay.realtime.worker import subscription
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded
from write_limits import limits

CODE, QUEUED = grpc.StatusCode, ingest.SubmitResponse.QUEUED
ADMIN = {"OperatorService.RefreshHistorical", "OperatorService.RepairCoverage"}
SERIES = series(ticker=TICKER, period_seconds=60)
TRIGGER = ingest.CEPTriggerRequest(
    trigger_id="new", sql_pattern="SELECT `close` FROM ohlc WHERE `close` > 5", tickers=[TICKER], callback_id="c"
)
OLDER = ingest.OHLCRequest(request_id="new", ticker=TICKER, start_time=at(0), end_time=at(10), period_seconds=60)
CALLS: Mapping[str, Callable[[int], Any]] = {
    "HistoryService.SubmitHistorical": lambda _: request("new", 0, 10),
    "HistoryService.SubmitHistoricalBatch": lambda _: history_pb.SubmitHistoricalBatchRequest(
        requests=[request("new", 0, 10)]
    ),
    "HistoryService.SnapshotTickers": lambda _: history_pb.SnapshotTickersRequest(request_id="new", exchange="SIM"),
    "HistoryService.StreamOhlc": lambda _: history_pb.StreamOhlcRequest(request=OLDER),
    "HistoryService.WatchProgress": lambda _: history_pb.WatchProgressRequest(request_id="known-desk"),
    "HistoryService.WatchNotifications": lambda _: history_pb.WatchNotificationsRequest(topic=f"REVISED:{TICKER}"),
    "OperatorService.RefreshHistorical": lambda _: operator_pb.RefreshHistoricalRequest(request=request("new", 0, 10)),
    "OperatorService.RepairCoverage": lambda _: operator_pb.RepairCoverageRequest(series=SERIES),
    "CoverageService.StreamCoverage": lambda _: coverage_pb.StreamCoverageRequest(series=SERIES),
    "CoverageService.VerifyCoverage": lambda _: coverage_pb.VerifyCoverageRequest(series=SERIES, values=True),
    "RealtimeService.StartRealtime": lambda now_ns: realtime_pb.StartRealtimeRequest(
        subscription=subscription("new", 60, since_ns=now_ns - 300 * SECOND_NS)
    ),
    "RealtimeService.WatchMarketData": lambda _: realtime_pb.WatchMarketDataRequest(
        tickers=[TICKER], include_trades=True
    ),
    "TriggerService.RegisterTrigger": lambda _: trigger_pb.RegisterTriggerRequest(trigger=TRIGGER),
    "TriggerService.RegisterTriggers": lambda _: trigger_pb.RegisterTriggersRequest(
        triggers=[trigger_pb.RegisterTriggerRequest(trigger=TRIGGER)]
    ),
    "TriggerService.EditTrigger": lambda _: trigger_pb.EditTriggerRequest(
        trigger_id="known-desk", sql_pattern="SELECT `close` FROM ohlc WHERE `close` > 6", wait_ms=1_000
    ),
    "TriggerService.PauseTrigger": lambda _: trigger_pb.PauseTriggerRequest(trigger_id="known-desk"),
    "TriggerService.ResumeTrigger": lambda _: trigger_pb.ResumeTriggerRequest(trigger_id="known-desk"),
    "TriggerService.WatchTriggerEvents": lambda _: trigger_pb.WatchTriggerEventsRequest(trigger_id="known-desk"),
    "TriggerService.BacktestTrigger": lambda _: trigger_pb.BacktestTriggerRequest(
        trigger=TRIGGER, start_ns=at(0), end_ns=at(10)
    ),
    "UdfRegistryService.StartUdf": lambda _: udf_pb.StartUdfRequest(udf=udf_pb.Udf(name="new", program="average")),
    "UdfRegistryService.StopUdf": lambda _: udf_pb.StopUdfRequest(name="known_desk"),
    "RowsService.StreamRows": lambda _: rows_pb.StreamRowsRequest(series=SERIES),
    "RowsService.CreateReceipt": lambda _: rows_pb.CreateReceiptRequest(
        receipt=rows_pb.Receipt(
            receipt_id="new", series=SERIES, start_ns=at(0), end_ns=at(10), snapshot_id=1, document_sha256="a" * 64
        )
    ),
    "RowsService.DeleteReceipt": lambda _: rows_pb.DeleteReceiptRequest(receipt_id="known-desk"),
}
"""A call of each door, which its client may make if no quota is in its way, at a time of the day."""
QUOTAS = {
    "submissions": ("submissions_per_minute", 3),
    "open streams": ("open_streams", 1),
    "unfinished requests": ("unfinished_requests", 1),
    "periods of unfinished requests": ("unfinished_periods", 12),
    "periods asked for": ("periods_per_day", 12),
    "periods fetched again, by refreshes and repairs": ("refreshed_periods_per_day", 2),
}
"""By row of docs/limits.toml: the quota's name in the callers file, and a value that the preparation uses up."""
DOORS = {row.resource: row.doors for row in limits() if row.resource in QUOTAS}
PATHS = {
    f"{service.name}.{method.name}": (f"/{service.full_name}/{method.name}", method)
    for module, _ in SERVICES.values()
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


async def call(channel: grpc.aio.Channel, door: str, now_ns: int) -> tuple[grpc.StatusCode, str]:
    """Return the outcome of a call; a stream is read until it ends or another answer than progress comes."""
    path, method = PATHS[door]
    made: Any = getattr(channel, f"unary_{'stream' if method.server_streaming else 'unary'}")(
        path, request_serializer=lambda each: each.SerializeToString()
    )
    running = made(CALLS[door](now_ns), timeout=60)
    if door == "HistoryService.SubmitHistoricalBatch":
        return await first_answer(running)
    if not method.server_streaming or door not in ("OperatorService.RepairCoverage", "CoverageService.VerifyCoverage"):
        return await code_of(running)
    try:
        async for _ in running:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return CODE.OK, ""


async def first_answer(batch: Any) -> tuple[grpc.StatusCode, str]:
    """Return the outcome of the only request of a batch, which has its quotas' refusal in its answer."""
    try:
        (found,) = history_pb.SubmitHistoricalBatchResponse.FromString(await batch.read()).answers
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    batch.cancel()
    return CODE.RESOURCE_EXHAUSTED if found.over_quota else CODE.OK, found.answer.error_message


async def prepare(s: Suite, name: str) -> Any:
    """Use three submissions, an unfinished request of ten periods and a stream; return the stream."""
    stub, channel = await s.stub(name), await s.channel_of(name)
    await stub.history.SubmitHistorical(request(f"known-{name}", 100, 110))
    known = ingest.CEPTriggerRequest(
        trigger_id=f"known-{name}",
        **{field: getattr(TRIGGER, field) for field in ("sql_pattern", "tickers", "callback_id")},
    )
    await stub.trigger.RegisterTrigger(trigger_pb.RegisterTriggerRequest(trigger=known))
    start: Any = channel.unary_unary(
        "/dexorder.udf.v1.UdfRegistryService/StartUdf", request_serializer=lambda each: each.SerializeToString()
    )
    await start(udf_pb.StartUdfRequest(udf=udf_pb.Udf(name=f"known_{name}", program="average")))
    stream = stub.history.WatchProgress(history_pb.WatchProgressRequest(request_id=f"known-{name}"))
    await stream.read()
    return stream


@pytest.mark.parametrize("resource", QUOTAS)
async def test_a_quota_that_is_used_up_closes_each_of_its_doors_and_no_other_clients(
    resource: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MINUTE_NS", 100 * access.DAY_NS)  # no submission comes back on a slow machine
    quota, value = QUOTAS[resource]
    used_up = {quota: value}
    tokens = callers_file(tmp_path / "callers.yaml", desk=used_up, boss=used_up)
    async with guarded(tmp_path, tokens=tokens) as s:
        await s.pipeline.stub.SyncUdfs(ppb.SyncUdfsRequest(declared=[udf_pb.Udf(name="average")]))
        offer = history_pb.CandleOffer(period_seconds=[60, 300], call_candles=1_000, volume_tolerance=1e-9)
        market = history_pb.Instrument(ticker=TICKER, active=True)
        await s.ingestors.ReportInstruments(
            ipb.ReportInstrumentsRequest(exchange="SIM", instruments=[market], fetched_ns=1, candles=offer)
        )
        snapshot_id = s.pipeline.write(range(20))
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 30)])
        streams = [await prepare(s, name) for name in ("desk", "boss", "other")]
        channels = {name: await s.channel_of(name) for name in ("desk", "boss")}

        async def is_closed(door: str) -> None:
            code, text = await call(channels["boss" if door in ADMIN else "desk"], door, time.time_ns())
            assert (code, f"{quota} would be" in text) == (CODE.RESOURCE_EXHAUSTED, True), (door, code, text)

        async with asyncio.TaskGroup() as calls:  # the first door that is open ends the test; some would wait for rows
            for door in DOORS[resource]:
                calls.create_task(is_closed(door))
        other = await s.stub("other")
        assert (await other.history.SubmitHistorical(request("theirs", 0, 10))).answer.status == QUEUED
        for each in streams:
            each.cancel()


async def refusal(channel: grpc.aio.Channel, door: str, now_ns: int) -> str:
    """Return why a door does not accept a request, "" if it does."""
    path, method = PATHS[door]
    answer: Any = GetMessageClass(method.output_type)
    made: Any = getattr(channel, f"unary_{'stream' if method.server_streaming else 'unary'}")(
        path, request_serializer=lambda each: each.SerializeToString(), response_deserializer=answer.FromString
    )
    running = made(CALLS[door](now_ns), timeout=60)
    try:
        found = await (running.read() if method.server_streaming else running)
    except grpc.aio.AioRpcError as error:
        assert error.code() is CODE.INVALID_ARGUMENT, error
        return error.details() or ""
    running.cancel()
    if door == "HistoryService.StreamOhlc":
        assert found.page.status == ingest.Response.ERROR, found
        return str(found.page.error_message)
    submitted = found.answers[0].answer if door == "HistoryService.SubmitHistoricalBatch" else found.answer
    assert submitted.status == ingest.SubmitResponse.INVALID, found
    return str(submitted.error_message)


async def test_a_request_of_too_many_periods_is_refused_at_each_door(tmp_path: Path) -> None:
    (row,) = [each for each in limits() if each.resource == "periods of a request"]
    async with guarded(tmp_path, max_request_periods=3) as s:
        channel = await s.channel_of("boss")
        for door in row.doors:
            words = await refusal(channel, door, time.time_ns())
            assert "at most 3 are allowed" in words, (door, words)
        assert not (await (await s.stub("boss")).history.ListRequests(history_pb.ListRequestsRequest())).records
