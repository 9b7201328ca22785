"""Calls of the suite's parts to the relay, each of whose first answers a proxy loses and repeats: they count once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as udf_rpc
from tests.fakes.mesh_proxy import RepeatingProxy
from tests.unit.services.relay.harness import OK, Pipeline, Suite, at, suite
from tests.unit.services.relay.realtime.test_control import APPLIED, HEARTBEAT, watching
from tests.unit.services.relay.realtime.worker import at_work, report, resume, the_job
from tests.unit.services.relay.requests.test_instruments import market
from tests.unit.services.relay.triggers import test_trigger_rpc as triggers


@asynccontextmanager
async def lossy(s: Suite) -> AsyncIterator[tuple[Suite, RepeatingProxy]]:
    """Give the same relay as its parts see it behind a proxy that loses the first answer of each call."""
    proxy = RepeatingProxy(s.running.address, marks=False)
    proxy.loses_all = True
    async with proxy.listening() as address, grpc.aio.insecure_channel(address) as channel:
        yield Suite(s.folder, s.running, channel, Pipeline(s.pipeline.catalog, None), s.opened), proxy


async def test_history_ends_once_with_all_rows(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, lossy(s) as (parts, proxy):
        topic = await s.queued("r", 0, 5, client_id="me")
        ingestor = parts.ingestor()
        await ingestor.offer()
        dispatch = await ingestor.take()
        delay = await parts.ingestors.ReportDelay(ipb.ReportDelayRequest(job_id=dispatch.job_id))
        assert delay.current
        assert await ingestor.page(dispatch.job_id, 0, 5)
        await ingestor.send(ingest.WorkComplete(job_id=dispatch.job_id, success=True))
        await parts.pipeline.land(dispatch)
        assert await s.ended("r") == (OK, 5)
        assert len(proxy.answers) == 6, "ReportDelay, ReportPage and ReportJobs, twice each"
        assert (await s.record("r")).progress.settled_periods == 5
        first = await s.notification(topic)
        call = s.relay.history.WatchNotifications(
            history_pb.WatchNotificationsRequest(topic=topic, after=first.cursor), timeout=20
        )
        await call.read()
        await s.queued("next", 0, 5, client_id="me")
        assert (await call.read()).notification.ready.request_id == "next", "the first one was announced once"
        call.cancel()


async def test_realtime_reports_settle_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, lossy(s) as (parts, proxy):
        _, job = await at_work(s)
        began = await resume(parts, job.job_id)
        assert began == ipb.ResumeRealtimeResponse.FromString(proxy.answers[-2]) and began.current
        start_ns = began.start_ns
        assert await report(parts, job.job_id, (0, start_ns, start_ns + 1_000), count=7) == []
        assert len(proxy.answers) == 4
        (series,) = (await the_job(s)).series
        assert series.settled_until_ns == start_ns + 1_000
        assert series.count == 14, "a repeated report can't be told from an amendment, which counts again, too"


async def test_instruments_and_instructions_are_reported_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, lossy(s) as (parts, proxy):
        instruments = ipb.ReportInstrumentsRequest(exchange="SIM", instruments=[market("A/Q")], fetched_ns=1)
        await parts.ingestors.ReportInstruments(instruments)
        listed = await s.relay.history.ListInstruments(history_pb.ListInstrumentsRequest(exchange="SIM"))
        assert [each.ticker for each in listed.instruments] == ["A/Q.SIM"]
        async with watching(s, "a") as seen:
            control = ingest.IngestorControl(action=HEARTBEAT)
            request = operator_pb.ControlIngestorsRequest(control=control)
            answer = await parts.relay.operator.ControlIngestors(request)
        assert [(each.ingestor_id, each.outcome) for each in answer.results] == [("a", APPLIED)]
        assert len(seen) == 2, "an instruction that is repeated is given again, as it asks for a state"
        late = ipb.ReportControlRequest(
            control_id=99, result=operator_pb.ControlResult(outcome=APPLIED, state=operator_pb.IngestorState())
        )
        await parts.ingestors.ReportControl(late)
        assert len(proxy.answers) == 6


async def test_a_firing_is_announced_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, lossy(s) as (parts, proxy):
        await triggers.register(s, "t")
        first = (await triggers.changes(s)).changes[0].registration
        events = ppb.ReportTriggerEventsRequest(events=[triggers.event("e1", first)])
        await parts.pipeline.stub.ReportTriggerEvents(events)
        assert len(proxy.answers) == 2
        await triggers.report(s, [triggers.event("e2", 1)])
        assert [each.event_id for each in await triggers.take(s, 2, trigger_id="t")] == ["e1", "e2"]


async def test_the_state_of_udfs_is_taken_once_but_lines_of_logs_may_be_there_twice(tmp_path: Path) -> None:
    async with suite(tmp_path) as s, lossy(s) as (parts, _):
        udfs: Any = udf_rpc.UdfRegistryServiceStub(s.channel)
        started = await udfs.StartUdf(udf_pb.StartUdfRequest(udf=udf_pb.Udf(name="mine", program="average")))
        status = udf_pb.UdfStatus(name="mine", state=udf_pb.UDF_STATE_RUNNING, rows=7, generation=started.generation)
        lines = ppb.UdfLogLines(name="mine", lines=[udf_pb.UdfLogLine(time_ns=at(1), text="line")])
        answer = await parts.pipeline.stub.SyncUdfs(ppb.SyncUdfsRequest(statuses=[status], logs=[lines]))
        assert [each.generation for each in answer.registrations] == [started.generation]
        (listed,) = (await udfs.ListUdfs(udf_pb.ListUdfsRequest())).udfs
        assert listed.status.rows == 7
        found = await udfs.ListUdfLogs(udf_pb.ListUdfLogsRequest(name="mine"))
        assert [line.text for line in found.lines] == ["line", "line"]
