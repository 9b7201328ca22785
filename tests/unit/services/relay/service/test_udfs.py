"""The registry of UDFs over gRPC, and over a restart of the relay."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as rpc
from tests.unit.services.relay.harness import suite

UDF = pb.Udf(name="mine", program="average", options=[pb.UdfOption(name="period", values=["3"])])


async def test_registrations_survive_a_restart_of_the_relay(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        udfs = rpc.UdfRegistryServiceStub(s.channel)
        first = await udfs.StartUdf(pb.StartUdfRequest(udf=UDF))
        assert first == await udfs.StartUdf(pb.StartUdfRequest(udf=UDF)), "the same start again changes nothing"
        await udfs.StartUdf(pb.StartUdfRequest(udf=pb.Udf(name="other", program="average"), reset_state=True))
        await udfs.StopUdf(pb.StopUdfRequest(name="other"))
        with pytest.raises(grpc.aio.AioRpcError, match="name 'Mine' is not a lower-case letter"):
            await udfs.StartUdf(pb.StartUdfRequest(udf=pb.Udf(name="Mine", program="average")))
    async with suite(tmp_path) as s:
        udfs = rpc.UdfRegistryServiceStub(s.channel)
        status = pb.UdfStatus(name="mine", state=pb.UDF_STATE_RUNNING, rows=7, generation=first.generation)
        lines = [pb.UdfLogLine(time_ns=1, text=text) for text in ("field is close", "second", "third")]
        report = ppb.SyncUdfsRequest(statuses=[status], logs=[ppb.UdfLogLines(name="mine", lines=lines)])
        answer = await s.pipeline.stub.SyncUdfs(report)
        mine, other = answer.registrations
        assert (mine.generation, mine.stopped, mine.reset_generation) == (first.generation, False, 0)
        assert mine.definition.options == UDF.options and mine.definition.program == "average"
        assert (other.name, other.stopped, other.reset_generation) == ("other", True, other.generation)
        listed = {each.udf.name: each.status for each in (await udfs.ListUdfs(pb.ListUdfsRequest())).udfs}
        assert (listed["mine"].rows, listed["mine"].state) == (7, pb.UDF_STATE_RUNNING)
        logs = await udfs.ListUdfLogs(pb.ListUdfLogsRequest(name="mine", page_size=2))
        assert [line.text for line in logs.lines] == ["field is close", "second"]
        logs = await udfs.ListUdfLogs(pb.ListUdfLogsRequest(name="mine", page_size=2, page_token=logs.next_page_token))
        assert [line.text for line in logs.lines] == ["third"] and not logs.next_page_token
        assert not (
            await udfs.ListUdfLogs(pb.ListUdfLogsRequest(name="mine", after_number=logs.lines[-1].number))
        ).lines
        again = await udfs.StartUdf(pb.StartUdfRequest(udf=pb.Udf(name="other")))
        assert again.generation > other.generation
