"""A whole relay with identity: each RPC by each role, ownership, quotas, and our own client over TLS."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import yaml

from dexorder import Client
from dexorder.errors import DexorderError, RelayUnreachable
from dexorder_common.rpc.identity import token_hash
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as cpb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as irpc
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as opb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as prpc
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as upb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as urpc
from dexorder_relay.access import ROLES
from dexorder_relay.service.services import SERVICES
from dexorder_relay.verification import rechecker
from dexorder_spark.records.reporter import RelayReporter
from tests.fixtures_tls import Authority
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    EARLIER,
    TICKER,
    Suite,
    at,
    final_of,
    minute,
    page,
    ranges,
    request,
    suite,
    token_of,
)

ROLE_OF = {
    "desk": "client",
    "other": "client",
    "boss": "admin",
    "deputy": "admin",
    "fetcher": "ingestor",
    "spark": "pipeline",
}
CODE = grpc.StatusCode


def callers_file(path: Path, rights: dict[str, dict[str, Any]] | None = None, **quotas: dict[str, int]) -> Path:
    """Write a callers file with further keys of some callers, and quotas of others."""
    entries = [
        {"client_id": name, "sha256": token_hash(token_of(name)), "role": role, "quota": quotas.get(name, {})}
        | (rights or {}).get(name, {})
        for name, role in ROLE_OF.items()
    ]
    path.write_text(yaml.safe_dump({"callers": entries}))
    return path


@asynccontextmanager
async def guarded(folder: Path, authority: Authority | None = None, **overrides: Any) -> AsyncIterator[Suite]:
    """Run a relay that accepts calls with a token only."""
    if authority:
        pair = authority.server()
        overrides |= {"tls_certificate": pair.certificate, "tls_key": pair.key}
    if "tokens" not in overrides:
        overrides["tokens"] = callers_file(folder / "callers.yaml")
    async with suite(folder, identity="token", **overrides) as s:
        s.tls_ca = authority.ca if authority else None
        s.pipeline.stub = prpc.PipelineServiceStub(await s.channel_of("spark"))
        s.ingestors = irpc.IngestorServiceStub(await s.channel_of("fetcher"))
        yield s


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return code and details of a call; a stream is OK with its first answer."""
    try:
        if hasattr(call, "read"):
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return CODE.OK, ""


# ---- roles ---------------------------------------------------------------------------------------------------------

CLIENTS, INGESTORS, PIPELINES = {"desk", "boss"}, {"fetcher"}, {"spark"}
MATRIX = {
    "HistoryService/SubmitHistorical": CLIENTS,
    "HistoryService/SubmitHistoricalBatch": CLIENTS,
    "HistoryService/GetRequest": CLIENTS,
    "HistoryService/ListRequests": CLIENTS,
    "HistoryService/CancelRequest": CLIENTS,
    "HistoryService/WatchProgress": CLIENTS,
    "HistoryService/WatchNotifications": CLIENTS,
    "RowsService/GetCatalog": CLIENTS,
    "HistoryService/ListInstruments": CLIENTS,
    "HistoryService/StreamOhlc": CLIENTS,
    "CoverageService/StreamCoverage": CLIENTS,
    "RowsService/StreamRows": CLIENTS,
    "RowsService/CreateReceipt": CLIENTS,
    "RowsService/GetReceipt": CLIENTS,
    "RowsService/ListReceipts": CLIENTS,
    "RowsService/DeleteReceipt": CLIENTS,
    "CoverageService/VerifyCoverage": CLIENTS,
    "OperatorService/RepairCoverage": {"boss"},
    "OperatorService/RefreshHistorical": {"boss"},
    "RealtimeService/StartRealtime": CLIENTS,
    "RealtimeService/StopRealtime": CLIENTS,
    "RealtimeService/ListRealtime": CLIENTS,
    "HistoryService/SnapshotTickers": CLIENTS,
    "RealtimeService/WatchMarketData": CLIENTS,
    "TriggerService/RegisterTrigger": CLIENTS,
    "TriggerService/RegisterTriggers": CLIENTS,
    "TriggerService/EditTrigger": CLIENTS,
    "TriggerService/PauseTrigger": CLIENTS,
    "TriggerService/ResumeTrigger": CLIENTS,
    "TriggerService/DeleteTrigger": CLIENTS,
    "TriggerService/ListTriggers": CLIENTS,
    "TriggerService/WatchTriggerEvents": CLIENTS,
    "TriggerService/BacktestTrigger": CLIENTS,
    "OperatorService/ControlIngestors": {"boss"},
    "IngestorService/ReportPage": INGESTORS,
    "IngestorService/ReportDelay": INGESTORS,
    "IngestorService/ReportInstruments": INGESTORS,
    "IngestorService/ResumeRealtime": INGESTORS,
    "IngestorService/ReportRealtime": INGESTORS,
    "IngestorService/PushMarketData": INGESTORS,
    "IngestorService/WatchControl": INGESTORS,
    "IngestorService/ReportControl": INGESTORS,
    "PipelineService/ReportJobs": PIPELINES,
    "PipelineService/DescribeDispatches": PIPELINES,
    "PipelineService/ListNamedSnapshots": PIPELINES,
    "PipelineService/WatchTriggers": PIPELINES,
    "PipelineService/ReportTriggerEvents": PIPELINES,
    "PipelineService/SyncUdfs": PIPELINES,
    "UdfRegistryService/StartUdf": CLIENTS,
    "UdfRegistryService/StopUdf": CLIENTS,
    "UdfRegistryService/ListUdfs": CLIENTS,
    "UdfRegistryService/ListUdfLogs": CLIENTS,
}


async def test_each_rpc_by_each_role(tmp_path: Path) -> None:
    methods = {
        f"{service.name}/{method.name}": (f"/{service.full_name}/{method.name}", method)
        for module, _ in SERVICES.values()
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(methods) == set(MATRIX), "a new RPC needs its row here, and its service an entry in ROLES"
    assert {name.partition("/")[0] for name in MATRIX} == {name.rpartition(".")[2] for name in ROLES}
    refused = {}
    async with guarded(tmp_path) as s:
        for caller in ("desk", "boss", "fetcher", "spark", None):
            channel: Any = await s.channel_of(caller)
            for name, (path, method) in methods.items():
                sent, answered = (
                    "stream" if s else "unary" for s in (method.client_streaming, method.server_streaming)
                )
                call = getattr(channel, f"{sent}_{answered}")(path)
                code, _ = await code_of(call([b""] if method.client_streaming else b"", timeout=30))
                if code in (CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED):
                    refused[name, caller] = code
    expected = {
        (name, caller): CODE.PERMISSION_DENIED if caller else CODE.UNAUTHENTICATED
        for name, allowed in MATRIX.items()
        for caller in ("desk", "boss", "fetcher", "spark", None)
        if caller not in allowed
    }
    assert refused == expected


# ---- UDFs ----------------------------------------------------------------------------------------------------------


async def test_udfs_belong_to_who_started_them_and_commands_need_an_admin(tmp_path: Path) -> None:
    async with guarded(tmp_path) as s:
        spark = prpc.PipelineServiceStub(await s.channel_of("spark"))
        desk, other, boss = [
            urpc.UdfRegistryServiceStub(await s.channel_of(each)) for each in ("desk", "other", "boss")
        ]
        declared = upb.Udf(
            name="average", command=upb.UdfCommand(process=upb.UdfProcess(prog="average", env={"KEY": "secret"}))
        )
        await spark.SyncUdfs(ppb.SyncUdfsRequest(declared=[declared]), timeout=30)
        await desk.StartUdf(upb.StartUdfRequest(udf=upb.Udf(name="mine", program="average")), timeout=30)
        own = upb.Udf(name="shell", command=upb.UdfCommand(process=upb.UdfProcess(prog="sh")))
        code, text = await code_of(desk.StartUdf(upb.StartUdfRequest(udf=own), timeout=30))
        assert code is CODE.PERMISSION_DENIED and "its own command" in text
        await boss.StartUdf(upb.StartUdfRequest(udf=own), timeout=30)
        for call in (
            other.StopUdf(upb.StopUdfRequest(name="mine"), timeout=30),
            other.ListUdfLogs(upb.ListUdfLogsRequest(name="mine"), timeout=30),
            other.StartUdf(upb.StartUdfRequest(udf=upb.Udf(name="mine")), timeout=30),
        ):
            assert (await code_of(call))[0] is CODE.NOT_FOUND
        listed = {each.udf.name: each for each in (await other.ListUdfs(upb.ListUdfsRequest(), timeout=30)).udfs}
        assert [*listed] == ["average"] and not listed["average"].udf.command.process.env
        seen = {each.udf.name: each for each in (await boss.ListUdfs(upb.ListUdfsRequest(), timeout=30)).udfs}
        assert seen["average"].udf.command.process.env == {"KEY": "secret"} and seen["mine"].client_id == "desk"
        await boss.StopUdf(upb.StopUdfRequest(name="mine"), timeout=30)


async def test_a_client_does_not_touch_what_is_not_its_own(tmp_path: Path) -> None:
    """No client stops, takes over or reads a UDF of the file, nor names a user or topic that is not in its entry."""
    rights: dict[str, dict[str, Any]] = {"desk": {"users": ["ann"], "topics": "desk-signals"}, "other": {"users": "*"}}
    tokens = callers_file(tmp_path / "callers.yaml", rights)
    async with guarded(tmp_path, tokens=tokens) as s:
        spark = prpc.PipelineServiceStub(await s.channel_of("spark"))
        desk, other, boss = [
            urpc.UdfRegistryServiceStub(await s.channel_of(each)) for each in ("desk", "other", "boss")
        ]

        async def start(stub: Any, name: str, **output: str) -> tuple[Any, str]:
            udf = upb.Udf(name=name, program="average", output=upb.UdfOutput(**output))
            return await code_of(stub.StartUdf(upb.StartUdfRequest(udf=udf), timeout=30))

        assert (await start(desk, "average"))[0] is CODE.UNAVAILABLE, "which names the file has is not known yet"
        command = upb.UdfCommand(process=upb.UdfProcess(prog="average"))
        await spark.SyncUdfs(ppb.SyncUdfsRequest(declared=[upb.Udf(name="average", command=command)]), timeout=30)
        for call in (
            desk.StopUdf(upb.StopUdfRequest(name="average"), timeout=30),
            desk.StartUdf(upb.StartUdfRequest(udf=upb.Udf(name="average")), timeout=30),
            desk.StartUdf(upb.StartUdfRequest(udf=upb.Udf(name="average", program="average")), timeout=30),
            desk.ListUdfLogs(upb.ListUdfLogsRequest(name="average"), timeout=30),
        ):
            code, text = await code_of(call)
            assert code is CODE.PERMISSION_DENIED and "belongs to admins" in text
        again = ppb.SyncUdfsRequest(declared=[upb.Udf(name="average", command=command)])
        assert not (await spark.SyncUdfs(again, timeout=30)).registrations
        for output, field in (
            ({"topic": "payments"}, "output.topic 'payments' is not one of the topics of client_id 'desk'"),
            ({"user_id": "bob", "title": "URGENT"}, "output.user_id 'bob' is not one of the users of client_id 'desk'"),
        ):
            code, text = await start(desk, "mine", **output)
            assert code is CODE.PERMISSION_DENIED and text.startswith(field)
        assert (await start(desk, "mine", topic="desk-signals", user_id="ann"))[0] is CODE.OK
        assert (await start(other, "theirs", user_id="bob"))[0] is CODE.OK
        assert (await start(other, "more", topic="desk-signals"))[0] is CODE.PERMISSION_DENIED
        assert (await start(boss, "any", topic="payments", user_id="bob"))[0] is CODE.OK
        await boss.StopUdf(upb.StopUdfRequest(name="average"), timeout=30)


async def test_rights_that_were_withdrawn_stop_the_next_start(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", {"desk": {"topics": "desk-signals"}})
    async with guarded(tmp_path, tokens=tokens) as s:
        spark = prpc.PipelineServiceStub(await s.channel_of("spark"))
        desk = urpc.UdfRegistryServiceStub(await s.channel_of("desk"))
        await spark.SyncUdfs(ppb.SyncUdfsRequest(declared=[upb.Udf(name="average")]), timeout=30)
        mine = upb.Udf(name="mine", program="average", output=upb.UdfOutput(topic="desk-signals"))
        await desk.StartUdf(upb.StartUdfRequest(udf=mine), timeout=30)
        await desk.StopUdf(upb.StopUdfRequest(name="mine"), timeout=30)
        callers_file(tokens)
        code, text = await code_of(desk.StartUdf(upb.StartUdfRequest(udf=upb.Udf(name="mine")), timeout=30))
        assert code is CODE.PERMISSION_DENIED and "output.topic 'desk-signals'" in text


async def test_udfs_of_a_client_are_limited_and_others_keep_their_room(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={"udfs": 2})
    async with guarded(tmp_path, tokens=tokens) as s:
        spark = prpc.PipelineServiceStub(await s.channel_of("spark"))
        desk, other = [urpc.UdfRegistryServiceStub(await s.channel_of(each)) for each in ("desk", "other")]
        await spark.SyncUdfs(ppb.SyncUdfsRequest(declared=[upb.Udf(name="average")]), timeout=30)

        async def start(stub: Any, name: str, **options: str) -> tuple[Any, str]:
            given = [upb.UdfOption(name=key, values=[value]) for key, value in options.items()]
            udf = upb.Udf(name=name, program="average", options=given)
            return await code_of(stub.StartUdf(upb.StartUdfRequest(udf=udf), timeout=30))

        assert [(await start(desk, name))[0] for name in ("one", "two")] == [CODE.OK] * 2
        code, text = await start(desk, "three")
        assert code is CODE.RESOURCE_EXHAUSTED and text.startswith("udfs would be 3, 2 are allowed")
        await desk.StopUdf(upb.StopUdfRequest(name="one"), timeout=30)
        assert (await start(desk, "three"))[0] is CODE.RESOURCE_EXHAUSTED, "a stop gives nothing back"
        assert (await start(desk, "one", size="5"))[0] is CODE.OK, "its name is still its own"
        assert (await start(other, "three"))[0] is CODE.OK


# ---- whose request it is -------------------------------------------------------------------------------------------


def asks(relay: Any, request_id: str, client_id: str) -> dict[str, Any]:
    """Return every call about a request or a client."""
    topic = rpb.WatchNotificationsRequest
    return {
        "get": relay.history.GetRequest(rpb.GetRequestRequest(request_id=request_id), timeout=30),
        "cancel": relay.history.CancelRequest(rpb.CancelRequestRequest(request_id=request_id), timeout=30),
        "watch": relay.history.WatchProgress(rpb.WatchProgressRequest(request_id=request_id), timeout=30),
        "topic": relay.history.WatchNotifications(topic(topic=f"HISTORY_READY:{request_id}"), timeout=30),
        "client topic": relay.history.WatchNotifications(topic(topic=f"RESPONSE:{client_id}"), timeout=30),
        "list": relay.history.ListRequests(rpb.ListRequestsRequest(client_id=client_id), timeout=30),
    }


async def ids(relay: Any, client_id: str = "") -> list[str]:
    answer = await relay.history.ListRequests(rpb.ListRequestsRequest(client_id=client_id))
    return [record.request.request_id for record in answer.records]


async def test_anothers_request_is_not_there(tmp_path: Path) -> None:
    async with guarded(tmp_path) as s:
        desk, other, boss = [await s.stub(name) for name in ("desk", "other", "boss")]
        submitted = (await desk.history.SubmitHistorical(request("ours", 0, 10))).answer
        assert submitted.status == ingest.SubmitResponse.QUEUED
        assert submitted.notification_topic == "RESPONSE:desk"  # filled in

        there, never = asks(other, "ours", "desk"), asks(other, "none", "nobody")
        for way, call in there.items():
            code, text = await code_of(call)
            same_code, same_text = await code_of(never[way])
            assert code is same_code is CODE.NOT_FOUND, way
            assert text == same_text.replace("none", "ours").replace("nobody", "desk"), way
        assert await ids(other) == []
        assert await ids(desk) == await ids(desk, "desk") == await ids(boss) == await ids(boss, "desk") == ["ours"]

        taken = (await other.history.SubmitHistorical(request("ours", 0, 10))).answer
        assert (taken.status, taken.notification_topic) == (ingest.SubmitResponse.INVALID, "")
        assert "was used for another request" in taken.error_message
        older = ingest.OHLCRequest(
            request_id="ours", ticker=TICKER, start_time=at(0), end_time=at(10), period_seconds=60
        )
        page = (await other.history.StreamOhlc(rpb.StreamOhlcRequest(request=older)).read()).page
        assert (page.status, page.error_message) == (ingest.Response.ERROR, taken.error_message)
        disguised = (await other.history.SubmitHistorical(request("new", 0, 10, client_id="desk"))).answer
        assert disguised.status == ingest.SubmitResponse.INVALID
        assert "client_id 'desk' is not the caller's, 'other'" in disguised.error_message

        again = (await desk.history.SubmitHistorical(request("ours", 0, 10, client_id="desk"))).answer
        assert again.status == ingest.SubmitResponse.DUPLICATE
        ended = (await boss.history.CancelRequest(rpb.CancelRequestRequest(request_id="ours"))).record
        assert (ended.state, ended.request.client_id) == (rpb.REQUEST_STATE_FINISHED, "desk")
        # the older form names no client; it is the caller's all the same
        page = (await desk.history.StreamOhlc(rpb.StreamOhlcRequest(request=older)).read()).page
        assert (page.status, page.error_message) == (ingest.Response.ERROR, "cancelled")
        for who in (desk, boss):
            for topic in ("HISTORY_READY:ours", "RESPONSE:desk"):
                call = who.history.WatchNotifications(rpb.WatchNotificationsRequest(topic=topic))
                assert (await call.read()).HasField("opened")
                assert (await call.read()).notification.ready.request_id == "ours"


async def test_every_client_sees_what_the_relay_queries_again_and_no_one_else_s_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rechecker, "INTERVAL_SECONDS", 0.05)
    async with guarded(tmp_path, recheck_after_seconds=(0.3,)) as s:
        desk, other, boss = [await s.stub(name) for name in ("desk", "other", "boss")]
        ingestor = s.ingestor()
        await ingestor.offer(2)
        await desk.history.SubmitHistorical(request("ours", 0, 10))
        dispatch = await ingestor.take()
        young = page(dispatch.job_id, 0, 10, provisional=[(3, 6)])
        there = [0, 1, 2, 6, 7, 8, 9]
        await s.pipeline.report(snapshot_id=s.pipeline.upsert(there), pages=[young], finals=[final_of(dispatch.job_id)])
        again = await ingestor.take()
        recheck = again.request_id
        for who in (desk, other, boss):
            record = (await who.history.GetRequest(rpb.GetRequestRequest(request_id=recheck))).record
            assert (record.recheck, record.request.client_id) == (True, "")
            assert (
                await who.history.WatchProgress(rpb.WatchProgressRequest(request_id=recheck)).read()
            ).progress.jobs == 1
        code, text = await code_of(other.history.CancelRequest(rpb.CancelRequestRequest(request_id=recheck)))
        assert code is CODE.PERMISSION_DENIED
        assert (
            text
            == f"client_id 'other' may not cancel the relay's own request {recheck!r}: its role is client, not admin"
        )
        found = page(again.job_id, 3, 6)
        await s.pipeline.report(
            snapshot_id=s.pipeline.upsert(range(10)), pages=[found], finals=[final_of(again.job_id)]
        )
        topic = rpb.WatchNotificationsRequest
        for who in (desk, other, boss):
            for name in (f"REVISED:{TICKER}", f"HISTORY_READY:{recheck}"):
                call = who.history.WatchNotifications(topic(topic=name), timeout=30)
                assert (await call.read()).HasField("opened")
                told = (await call.read()).notification
                assert (told.ready.request_id, list(told.revised)) == (recheck, ranges([(3, 6)]))
        stream = desk.history.WatchNotifications(topic(topic="RESPONSE:desk"), timeout=30)
        assert (await stream.read()).HasField("opened")
        assert [(await stream.read()).notification.ready.request_id for _ in range(2)] == ["ours", recheck]
        code, _ = await code_of(other.history.WatchNotifications(topic(topic="RESPONSE:desk"), timeout=30))
        assert code is CODE.NOT_FOUND
        assert await ids(boss) == [recheck, "ours"] and await ids(desk) == ["ours"] and await ids(other) == []


# ---- quotas --------------------------------------------------------------------------------------------------------


async def test_quotas_refuse_and_store_nothing(tmp_path: Path) -> None:
    tokens = callers_file(
        tmp_path / "callers.yaml",
        desk={"unfinished_requests": 2, "unfinished_periods": 100, "open_streams": 1},
        other={"submissions_per_minute": 1},
    )
    async with guarded(tmp_path, tokens=tokens) as s:
        desk, other, boss = [await s.stub(name) for name in ("desk", "other", "boss")]
        await desk.history.SubmitHistorical(request("1", 0, 60))
        code, text = await code_of(desk.history.SubmitHistorical(request("2", 0, 41)))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert text.startswith("unfinished_periods would be 101, 100 are allowed for client_id 'desk'; ")
        await desk.history.SubmitHistorical(request("2", 0, 40))
        code, text = await code_of(desk.history.SubmitHistorical(request("3", 0, 1)))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert text.startswith("unfinished_requests would be 3, 2 are allowed for client_id 'desk'; submit it")
        assert await ids(boss) == ["2", "1"]
        assert (
            await desk.history.SubmitHistorical(request("1", 0, 60))
        ).answer.status == ingest.SubmitResponse.DUPLICATE

        await other.history.SubmitHistorical(request("o", 0, 1))
        with pytest.raises(grpc.aio.AioRpcError, match="submissions_per_minute") as caught:
            await other.history.SubmitHistorical(request("p", 0, 1))
        assert 0 < int(dict(caught.value.trailing_metadata())["retry-after-ms"]) <= 60_000

        watch = desk.history.WatchProgress(rpb.WatchProgressRequest(request_id="1"))
        await watch.read()
        code, text = await code_of(desk.history.WatchProgress(rpb.WatchProgressRequest(request_id="2")))
        assert (code, "open_streams would be 2, 1 are allowed" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        watch.cancel()
        async with asyncio.timeout(60):
            while (await code_of(desk.history.WatchProgress(rpb.WatchProgressRequest(request_id="2"))))[
                0
            ] is not CODE.OK:
                pass  # the relay has not heard of the end yet

    async with guarded(tmp_path, tokens=tokens) as s:  # what was unfinished still is
        desk = await s.stub("desk")
        assert (await code_of(desk.history.SubmitHistorical(request("3", 0, 1))))[0] is CODE.RESOURCE_EXHAUSTED
        await desk.history.CancelRequest(rpb.CancelRequestRequest(request_id="1"))
        assert (await desk.history.SubmitHistorical(request("3", 0, 60))).answer.status == ingest.SubmitResponse.QUEUED


async def test_refreshes_that_are_cancelled_use_the_quota_and_take_no_coverage(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", boss={"refreshed_periods_per_day": 100})
    async with guarded(tmp_path, tokens=tokens) as s:
        desk, boss = [await s.stub(name) for name in ("desk", "boss")]
        pipeline = prpc.PipelineServiceStub(await s.channel_of("spark"))
        await pipeline.ReportJobs(ppb.ReportJobsRequest(pages=[page(EARLIER, 0, 60)]))

        async def refresh(stub: Any, name: str) -> tuple[Any, str]:
            message = opb.RefreshHistoricalRequest(request=request(name, 0, 30))
            answer = await code_of(stub.operator.RefreshHistorical(message))
            with suppress(grpc.aio.AioRpcError):
                await stub.history.CancelRequest(rpb.CancelRequestRequest(request_id=name))
            return answer

        assert (await refresh(desk, "no"))[0] is CODE.PERMISSION_DENIED
        answers = [await refresh(boss, str(number)) for number in range(4)]
        assert [code for code, _ in answers] == [CODE.OK] * 3 + [CODE.RESOURCE_EXHAUSTED]
        assert answers[-1][1].startswith("refreshed_periods_per_day would be 130, 100 are allowed for client_id 'boss'")
        whole = cpb.StreamCoverageRequest(series=series(TICKER, 60))
        found = [each async for answer in desk.coverage.StreamCoverage(whole) for each in answer.ranges]
        assert [(minute(each.start_ns), minute(each.end_ns)) for each in found] == [(0, 60)]


async def test_sparks_reporter_carries_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_TOKEN", token_of("spark"))
    async with guarded(tmp_path) as s:
        reporter = RelayReporter(s.running.address, threading.Event())
        await asyncio.to_thread(reporter.report, None, [], [])
        reporter.close()


# ---- our own client, and what is logged ----------------------------------------------------------------------------


def records_of(caplog: pytest.LogCaptureFixture) -> str:
    """Return the records of all loggers at every level, shown or not."""
    return "\n".join(f"{record.getMessage()} {record.__dict__!r} {record.exc_info!r}" for record in caplog.records)


async def test_the_client_over_tls_with_a_token_and_not_a_trace_of_it_in_any_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    caplog.set_level(1, logger="asyncio")
    structlog.configure(
        processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    asyncio.get_running_loop().set_debug(True)
    ours, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "foreign")
    try:
        async with guarded(tmp_path, ours) as s:
            ingestor = s.ingestor()
            await ingestor.offer()
            working = asyncio.create_task(ingestor.work(s.pipeline, dispatches=1))

            def asked(token: str, ca: Path) -> int:
                monkeypatch.setenv("DEXORDER_TOKEN", token)
                monkeypatch.setenv("DEXORDER_CHANNEL_TLS_CA", str(ca))
                with Client(s.running.address, patience_seconds=1) as client:
                    table = client.history(TICKER, "1m", at(0), at(10), request_id="r", timeout=60)
                    assert [record.request_id for record in client.list_requests()] == ["r"]
                    return int(table.num_rows)

            assert await asyncio.to_thread(asked, token_of("desk"), ours.ca) == 10
            await working
            with pytest.raises(RelayUnreachable):
                await asyncio.to_thread(asked, token_of("desk"), foreign.ca)
            for token, problem in (
                (token_of("stranger"), "the token is not known"),
                (token_of("fetcher"), "role ingestor"),
                ("", "0 tokens"),
            ):
                with pytest.raises(DexorderError, match=problem) as caught:
                    await asyncio.to_thread(asked, token, ours.ca)
                assert "no-log-may-show" not in str(caught.value)
            (tmp_path / "callers.yaml").write_text(f"callers: [{{client_id: desk, sha256: {token_of('desk')}}}]")
            assert await asyncio.to_thread(asked, token_of("desk"), ours.ca) == 10  # the file before it still counts
    finally:
        structlog.reset_defaults()
    reported = records_of(caplog)
    assert "the callers file is invalid" in reported
    assert "no-log-may-show" not in reported
