"""Turns at reads: whatever a client reads, and however fast, another one's call waits for two of its calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.lake import receipts
from dexorder_common.rpc.identity import Role, current_client
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_relay.access import ROLES
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.reading import fetch_ohlc
from dexorder_relay.reading.table_reader import TableReader
from dexorder_relay.requests import context
from dexorder_relay.service import turns
from dexorder_relay.service.turns import Handler, ReadTurns, only_reads
from tests.unit.services.relay.harness import EARLIER, Suite, page, until
from tests.unit.services.relay.test_access_rpc import guarded
from tests.unit.services.relay.test_quota_doors import CALLS, PATHS, SERIES
from write_limits import limits

READS: Mapping[str, Any] = {
    "HistoryService.GetRequest": history_pb.GetRequestRequest(request_id="r"),
    "HistoryService.ListRequests": history_pb.ListRequestsRequest(),
    "HistoryService.ListInstruments": history_pb.ListInstrumentsRequest(exchange="SIM"),
    "RealtimeService.ListRealtime": realtime_pb.ListRealtimeRequest(),
    "TriggerService.ListTriggers": trigger_pb.ListTriggersRequest(),
    "RowsService.GetCatalog": rows_pb.GetCatalogRequest(),
    "UdfRegistryService.ListUdfs": udf_pb.ListUdfsRequest(),
    "UdfRegistryService.ListUdfLogs": udf_pb.ListUdfLogsRequest(name="u"),
}
TABLES: Mapping[str, tuple[Any, Any, str]] = {
    "RowsService.StreamRows": (CALLS["RowsService.StreamRows"](0), TableReader, "candles"),
    "CoverageService.StreamCoverage": (
        coverage_pb.StreamCoverageRequest(series=SERIES, detail=True),
        TableReader,
        "pages",
    ),
    "HistoryService.StreamOhlc": (CALLS["HistoryService.StreamOhlc"](0), fetch_ohlc, "_encoded"),
    "CoverageService.VerifyCoverage": (coverage_pb.VerifyCoverageRequest(series=SERIES), TableReader, "candles"),
    "RowsService.ListReceipts": (rows_pb.ListReceiptsRequest(), receipts, "all_receipts"),
    "RowsService.GetReceipt": (rows_pb.GetReceiptRequest(receipt_id="r"), receipts, "all_receipts"),
}
"""By door: a request, and what reads the table for it."""


async def start(s: Suite, client: str, door: str, request: Any) -> Any:
    path, method = PATHS[door]
    make: Any = getattr(await s.channel_of(client), f"unary_{'stream' if method.server_streaming else 'unary'}")
    return make(path, request_serializer=lambda each: each.SerializeToString())(request, timeout=60)


async def end_of(call: Any) -> grpc.StatusCode:
    if hasattr(call, "read"):
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
    code: grpc.StatusCode = await call.code()
    return code


def test_every_call_that_only_reads_has_its_row() -> None:
    unary = {door for door, (path, method) in PATHS.items() if only_reads(method) and _is_for_clients(path)}
    assert unary == {*READS, "RowsService.ListReceipts", "RowsService.GetReceipt"}
    rows = {each.resource: set(each.doors) for each in limits()}
    assert rows["unary reads at the same time"] == rows["unary reads that wait"] == {*READS}
    writes = {"RowsService.CreateReceipt", "RowsService.DeleteReceipt"}
    named = (
        "reads of tables for clients at the same time",
        "windows of a verification that are read at the same time, one",
        "calls about receipts at the same time, one",
    )
    assert set().union(*(rows[each] for each in named)) == {*TABLES, "OperatorService.RepairCoverage"} | writes


def _is_for_clients(path: str) -> bool:
    return Role.CLIENT in ROLES[path.split("/")[1]]


async def test_a_client_that_reads_without_end_delays_another_one_by_two_calls_and_keeps_few_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, gate, semaphores = list[str](), asyncio.Event(), list[FairSemaphore]()
    around = ReadTurns.around

    def held(self: ReadTurns, handler: Handler) -> Handler:
        async def at_work(request: Any, given: Any) -> Any:
            order.append(current_client())
            await gate.wait()
            return await handler(request, given)

        semaphores.append(self._reads)
        return around(self, at_work)

    monkeypatch.setattr(turns, "PARALLEL_READS", 1)
    monkeypatch.setattr(turns, "MAX_WAITING_READS", 3)
    monkeypatch.setattr(ReadTurns, "around", held)
    async with guarded(tmp_path) as s:
        waiting = semaphores[0]._waiting
        for door, request in READS.items():
            order.clear()
            gate.clear()
            calls = [await start(s, "desk", door, request) for _ in range(4)]
            await until(lambda: len(waiting.get("desk", ())) == 3)
            refused = await start(s, "desk", door, request)
            assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, door
            assert "3 calls of client_id 'desk' wait for their turn" in await refused.details()
            calls.append(await start(s, "other", door, request))
            await until(lambda: "other" in waiting)
            gate.set()
            for each in calls:
                assert await each.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
            assert order == ["desk", "desk", "other", "desk", "desk"], door
            assert not waiting and len({id(each) for each in semaphores}) == 1


@pytest.mark.parametrize("door", TABLES)
async def test_a_client_that_reads_tables_without_end_delays_another_one_by_two_reads_of_a_part(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, owner, name = TABLES[door]
    order, gate, read = list[str](), threading.Event(), getattr(owner, name)

    def held(*given: Any, **named: Any) -> Any:
        order.append(current_client())
        assert gate.wait(60)
        return read(*given, **named)

    monkeypatch.setattr(context, "PARALLEL_TABLE_READS", 1)
    monkeypatch.setattr("dexorder_relay.service.receipts.MAX_WAITING_READS", 7)
    async with guarded(tmp_path) as s:
        snapshot_id = s.pipeline.write(range(20))
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 30)])
        taken, take, calls = list[str](), FairSemaphore._take, list[Any]()

        async def noted(self: FairSemaphore, client_id: str) -> None:
            taken.append(client_id)
            await take(self, client_id)

        monkeypatch.setattr(FairSemaphore, "_take", noted)
        monkeypatch.setattr(owner, name, held)
        try:
            for number in range(8):
                given = type(request).FromString(request.SerializeToString())
                if door == "HistoryService.StreamOhlc":
                    given.request.request_id = f"r{number}"
                calls.append(await start(s, "desk", door, given))
            await until(lambda: order == ["desk"] and taken.count("desk") >= 8)  # its earlier parts are not held
            if "Receipt" in door:  # calls of the others are streams, which have a quota
                async with asyncio.timeout(20):
                    refused = await start(s, "desk", door, request)
                    assert await end_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
            calls.append(await start(s, "other", door, request))
            await until(lambda: "other" in taken)
        finally:
            gate.set()
        for each in calls:
            assert await end_of(each) in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)
    assert order[0] == "desk" and order.index("other") <= 4, "an answer has two parts, and each waits for two of desk's"
