"""Calls of the relay whose first answer a proxy loses and which it then repeats; docs/api.md has the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as udf_rpc
from tests.fakes.mesh_proxy import RepeatingProxy
from tests.unit.services.relay.harness import TICKER, Suite, refused, request, suite
from tests.unit.services.relay.service.test_receipts import wanted
from tests.unit.services.relay.triggers.test_trigger_rpc import SQL


@asynccontextmanager
async def losing(s: Suite) -> AsyncIterator[tuple[RepeatingProxy, RelayStubs]]:
    proxy = RepeatingProxy(s.running.address, marks=False)
    async with proxy.listening() as address, grpc.aio.insecure_channel(address) as channel:
        yield proxy, RelayStubs(channel)


async def lost(proxy: RepeatingProxy, call: Any, message: Any) -> Any:
    """Make a call whose first answer is lost; return the second one."""
    before = len(proxy.answers)
    proxy.lost = 1
    answer = await call(message)
    assert len(proxy.answers) == before + 2
    assert isinstance(proxy.answers[-2], bytes), "the first attempt was carried out"
    return answer


async def test_requests_are_accepted_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, losing(s) as (proxy, stub):
        answer = await lost(proxy, stub.history.SubmitHistorical, request("r", 0, 5))
        assert answer.answer.status == ingest.SubmitResponse.DUPLICATE
        again = operator_pb.RefreshHistoricalRequest(request=request("again", 0, 5))
        answer = await lost(proxy, stub.operator.RefreshHistorical, again)
        assert answer.answer.status == ingest.SubmitResponse.DUPLICATE
        snapshot = history_pb.SnapshotTickersRequest(request_id="all", exchange="SIM")
        answer = await lost(proxy, stub.history.SnapshotTickers, snapshot)
        assert answer.answer.status == ingest.SubmitResponse.DUPLICATE
        found = (await stub.history.ListRequests(history_pb.ListRequestsRequest())).records
        assert len(found) == 3
        cancelled = await lost(proxy, stub.history.CancelRequest, history_pb.CancelRequestRequest(request_id="r"))
        assert cancelled.record.state == history_pb.REQUEST_STATE_FINISHED


async def test_subscriptions_and_triggers_are_started_and_ended_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, losing(s) as (proxy, stub):
        subscription = pb.RealtimeSubscription(
            subscription_id="live", ticker=TICKER, params=ingest.RealtimeParams(include_ticks=True)
        )
        started = await lost(proxy, stub.realtime.StartRealtime, pb.StartRealtimeRequest(subscription=subscription))
        assert started.duplicate
        like_t: dict[str, Any] = {"sql_pattern": SQL, "tickers": [TICKER]}
        trigger = ingest.CEPTriggerRequest(trigger_id="t", **like_t)
        registered = await lost(proxy, stub.trigger.RegisterTrigger, trigger_pb.RegisterTriggerRequest(trigger=trigger))
        assert registered.ack.status == ingest.CEPTriggerAck.ALREADY_REGISTERED
        batch = [trigger_pb.RegisterTriggerRequest(trigger=trigger)]
        batch.append(trigger_pb.RegisterTriggerRequest(trigger=ingest.CEPTriggerRequest(trigger_id="u", **like_t)))
        many = await lost(proxy, stub.trigger.RegisterTriggers, trigger_pb.RegisterTriggersRequest(triggers=batch))
        assert [each.status for each in many.acks] == [ingest.CEPTriggerAck.ALREADY_REGISTERED] * 2
        assert len((await stub.trigger.ListTriggers(trigger_pb.ListTriggersRequest())).triggers) == 2
        await stub.trigger.DeleteTrigger(trigger_pb.DeleteTriggerRequest(trigger_id="u"))
        for reset, revision in ((False, 2), (True, 4)):
            edit = trigger_pb.EditTriggerRequest(trigger_id="t", parameters={"cooldown": "5"}, reset=reset)
            assert (await lost(proxy, stub.trigger.EditTrigger, edit)).revision == revision
        await lost(proxy, stub.trigger.PauseTrigger, trigger_pb.PauseTriggerRequest(trigger_id="t"))
        await lost(proxy, stub.trigger.ResumeTrigger, trigger_pb.ResumeTriggerRequest(trigger_id="t"))
        await lost(proxy, stub.realtime.StopRealtime, pb.StopRealtimeRequest(subscription_id="live"))
        with refused(grpc.StatusCode.NOT_FOUND, "trigger_id 't' is not known"):
            await lost(proxy, stub.trigger.DeleteTrigger, trigger_pb.DeleteTriggerRequest(trigger_id="t"))
        assert not (await stub.trigger.ListTriggers(trigger_pb.ListTriggersRequest())).triggers


async def test_udfs_are_started_and_stopped_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        proxy = RepeatingProxy(s.running.address, marks=False)
        async with proxy.listening() as address, grpc.aio.insecure_channel(address) as channel:
            stub: Any = udf_rpc.UdfRegistryServiceStub(channel)
            request = udf_pb.StartUdfRequest(udf=udf_pb.Udf(name="mean", program="average"))
            started = await lost(proxy, stub.StartUdf, request)
            first = udf_pb.StartUdfResponse.FromString(proxy.answers[-2])
            assert started.generation == first.generation == (await stub.StartUdf(request)).generation
            assert [each.udf.name for each in (await stub.ListUdfs(udf_pb.ListUdfsRequest())).udfs] == ["mean"]
            anew = await lost(proxy, stub.StartUdf, udf_pb.StartUdfRequest(udf=request.udf, reset_state=True))
            assert anew.generation > udf_pb.StartUdfResponse.FromString(proxy.answers[-2]).generation > first.generation
            await lost(proxy, stub.StopUdf, udf_pb.StopUdfRequest(name="mean"))
            assert (await stub.StartUdf(request)).generation > anew.generation, "it had been stopped"


async def test_a_receipt_is_kept_and_deleted_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, losing(s) as (proxy, stub):
        kept = await lost(proxy, stub.rows.CreateReceipt, wanted("r-1", s.pipeline.write(range(10))))
        assert kept.receipt == rows_pb.CreateReceiptResponse.FromString(proxy.answers[-2]).receipt
        assert len((await stub.rows.ListReceipts(rows_pb.ListReceiptsRequest())).receipts) == 1
        with refused(grpc.StatusCode.NOT_FOUND, "r-1"):
            await lost(proxy, stub.rows.DeleteReceipt, rows_pb.DeleteReceiptRequest(receipt_id="r-1"))
        assert not (await stub.rows.ListReceipts(rows_pb.ListReceiptsRequest())).receipts
