"""A full disk at each call of clients that needs it: refused, whether the call fills the disk or finds it full."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import MethodOptions

from dexorder_common.storage import durable_sqlite
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_relay.access import ROLES
from dexorder_relay.store import writer
from tests.unit.services.relay.harness import Suite, request, until
from tests.unit.services.relay.realtime.worker import subscription
from tests.unit.services.relay.service.test_turns import READS
from tests.unit.services.relay.test_access_rpc import callers_file, guarded
from tests.unit.services.relay.test_quota_doors import ADMIN, CALLS, PATHS, call, prepare
from write_limits import limits

CODE, NO_SIDE_EFFECTS = grpc.StatusCode, MethodOptions.NO_SIDE_EFFECTS
ENDS: Mapping[str, Callable[[int], Any]] = {
    "HistoryService.CancelRequest": lambda _: history_pb.CancelRequestRequest(request_id="known-desk"),
    "RealtimeService.StopRealtime": lambda _: realtime_pb.StopRealtimeRequest(subscription_id="known"),
    "OperatorService.ControlIngestors": lambda _: operator_pb.ControlIngestorsRequest(
        control=ingest.IngestorControl(action=ingest.IngestorControl.CANCEL, request_id="known-desk")
    ),
    "TriggerService.DeleteTrigger": lambda _: trigger_pb.DeleteTriggerRequest(trigger_id="known-desk"),
}
STREAMS = ("OperatorService.RepairCoverage", "CoverageService.VerifyCoverage")
"""Calls that wait for space if they find the disk full on their way."""
(DOORS,) = (row.doors for row in limits() if row.resource == "space on the disk of relay.db")


class Disk:
    """The disk of the relay of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._run = writer.run_group
        monkeypatch.setattr(writer, "run_group", self._write)
        monkeypatch.setattr(durable_sqlite, "SPACE_SECONDS", 0.02)
        monkeypatch.setattr(writer, "FULL_SECONDS", 0.2)

    def _write(self, connection: sqlite3.Connection, group: Sequence[writer.Work], last: Any = None) -> list[Any]:
        if self.is_full and any(work.writes for work in group):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._run(connection, group, last)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    for door, make in ENDS.items():
        monkeypatch.setitem(CALLS, door, make)
    return Disk(monkeypatch)


async def outcome(s: Suite, door: str) -> tuple[grpc.StatusCode, str]:
    name = "boss" if door in {*ADMIN, "OperatorService.ControlIngestors"} else "desk"
    return await call(await s.channel_of(name), door, time.time_ns())


async def with_known(s: Suite) -> None:
    """Make what the calls name."""
    await s.pipeline.stub.SyncUdfs(ppb.SyncUdfsRequest(declared=[udf_pb.Udf(name="average")]))
    (await prepare(s, "desk")).cancel()
    desk = await s.stub("desk")
    await desk.realtime.StartRealtime(realtime_pb.StartRealtimeRequest(subscription=subscription("known", 60)))


def test_each_call_that_changes_something_for_good_is_named() -> None:
    """Receipts are in the table, not in relay.db."""
    others = {"RowsService.CreateReceipt", "RowsService.DeleteReceipt", "TriggerService.BacktestTrigger"}
    changes = {
        door
        for door, (path, method) in PATHS.items()
        if ROLES[path.split("/")[1]][0].name in ("CLIENT", "ADMIN")
        and method.GetOptions().idempotency_level != NO_SIDE_EFFECTS
    }
    assert changes - others == set(DOORS)


@pytest.mark.parametrize("door", DOORS)
async def test_a_call_is_refused_whether_it_fills_the_disk_or_finds_it_full(
    door: str, tmp_path: Path, disk: Disk
) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={}, boss={})
    async with guarded(tmp_path, tokens=tokens) as s:
        await with_known(s)
        disk.is_full = True
        if door in STREAMS:
            await outcome(s, "HistoryService.SubmitHistorical")
        for _ in range(2):
            code, text = await outcome(s, door)
            assert (code, "disk" in text) == (CODE.RESOURCE_EXHAUSTED, True), (door, code, text)
        disk.is_full = False
        await until_there_is_space(s)


async def test_a_call_that_ends_slowly_keeps_no_other_from_its_limit() -> None:
    given, told = writer.GivenBatches(), list[str]()

    async def wait(name: str, ending: asyncio.Event | None = None) -> None:
        try:
            async with asyncio.timeout(0.0 if ending else None) as timeout:
                given.timeouts.add(timeout)
                try:
                    await asyncio.Event().wait()
                finally:
                    if ending:
                        await ending.wait()
        except TimeoutError:
            told.append(name)

    ending = asyncio.Event()
    tasks = [asyncio.create_task(wait("slow", ending)), *(asyncio.create_task(wait(f"{n}")) for n in range(20))]
    await until(lambda: len(given.timeouts) == 21 and any(each.expired() for each in given.timeouts))
    given.fill(True)
    given.fill(False)
    given.fill(True)
    ending.set()
    await asyncio.gather(*tasks)
    assert len(told) == 21


async def test_a_call_that_reads_is_answered_or_refused(tmp_path: Path, disk: Disk) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={}, boss={})
    async with guarded(tmp_path, tokens=tokens) as s:
        await with_known(s)
        disk.is_full = True
        assert (await outcome(s, "HistoryService.SubmitHistorical"))[0] is CODE.RESOURCE_EXHAUSTED
        channel = await s.channel_of("desk")
        for door, message in READS.items():
            made: Any = channel.unary_unary(PATHS[door][0], request_serializer=lambda each: each.SerializeToString())
            assert await made(message, timeout=30).code() in (CODE.OK, CODE.NOT_FOUND, CODE.RESOURCE_EXHAUSTED), door
        disk.is_full = False
        await until_there_is_space(s)


async def until_there_is_space(s: Suite) -> None:
    """Submit a request until it is accepted; the test's timeout ends it."""
    desk, status = await s.stub("desk"), None
    while status not in (ingest.SubmitResponse.QUEUED, ingest.SubmitResponse.DUPLICATE):
        try:
            status = (await desk.history.SubmitHistorical(request("later", 200, 210))).answer.status
        except grpc.aio.AioRpcError as error:
            assert error.code() is CODE.RESOURCE_EXHAUSTED
