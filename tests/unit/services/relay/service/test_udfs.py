"""The registry of UDFs over gRPC, in parts and pages, and over a restart of the relay."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as rpc
from dexorder_relay.requests import queries
from dexorder_spark.udf.report import lines_of, report_parts
from tests.unit.services.relay.harness import refused, suite

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


async def test_a_report_beyond_the_limit_of_a_message_arrives_in_parts_and_is_listed_in_pages(tmp_path: Path) -> None:
    """6 MB of definitions and 3 MB of lines, where a message may have 4 MiB."""
    large = [
        pb.Udf(name=f"n{n:02}", program="average", options=[pb.UdfOption(name="text", values=["x" * 60_000] * 4)])
        for n in range(25)
    ]
    lines = {"n00": [(n, f"{n:03}" + "\N{SNOWMAN}" * 2_000) for n in range(500)]}
    statuses = [pb.UdfStatus(name=each.name, state=pb.UDF_STATE_RUNNING) for each in large]
    parts = report_parts(large, statuses, lines)
    assert len(parts) > 8 and max(each.ByteSize() for each in parts) < 1.1 * 2**20
    assert sum(each.ByteSize() for each in parts) > 2 * 4 * 2**20
    async with suite(tmp_path) as s:
        udfs = rpc.UdfRegistryServiceStub(s.channel)
        for part in parts:
            assert not (await udfs.ListUdfs(pb.ListUdfsRequest())).udfs, "it counts when all of it is there"
            await s.pipeline.stub.SyncUdfs(part)
        names: list[str] = []
        token = ""
        while token or not names:
            page = await udfs.ListUdfs(pb.ListUdfsRequest(page_size=1_000, page_token=token))
            names += [each.udf.name for each in page.udfs if each.udf.options]
            token = page.next_page_token
        assert names == [each.name for each in large]
        found: list[str] = []
        token = ""
        while token or not found:
            log = await udfs.ListUdfLogs(pb.ListUdfLogsRequest(name="n00", page_size=1_000, page_token=token))
            found += [line.text for line in log.lines]
            token = log.next_page_token
        assert found == [text for _, text in lines["n00"]]
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "part 3 is not the next one, 0"):
            await s.pipeline.stub.SyncUdfs(parts[3])
        assert len((await udfs.ListUdfs(pb.ListUdfsRequest())).udfs) > 1, "what it had is kept"


async def test_what_is_to_run_comes_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 1)
    async with suite(tmp_path) as s:
        udfs = rpc.UdfRegistryServiceStub(s.channel)
        for name in ("a", "b", "c"):
            await udfs.StartUdf(pb.StartUdfRequest(udf=pb.Udf(name=name, program="average")))
        answer, found = await s.pipeline.stub.SyncUdfs(ppb.SyncUdfsRequest()), []
        while True:
            found += [[each.name for each in answer.registrations]]
            if not answer.next_page_token:
                break
            answer = await s.pipeline.stub.SyncUdfs(ppb.SyncUdfsRequest(page_token=answer.next_page_token))
        assert found == [["a"], ["b"], ["c"]]
        assert (await udfs.ListUdfs(pb.ListUdfsRequest())).reported_ns, "a page is no report"
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "have 300000 bytes; at most 262144 are allowed"):
            text = pb.UdfOption(name="", values=["x" * 60_000] * 5)
            await udfs.StartUdf(pb.StartUdfRequest(udf=pb.Udf(name="d", program="average", options=[text])))


def test_lines_of_parts_that_were_not_taken_are_kept_in_order() -> None:
    lines = {"a": [(n, f"a{n}") for n in range(5)], "b": [(9, "b")]}
    parts = report_parts([], [pb.UdfStatus(name="a")], lines, most_bytes=20)
    assert [part.part for part in parts] == [*range(len(parts))] and len(parts) > 2
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert lines_of(parts) == lines
    parts.popleft()
    assert lines_of(parts)["a"][-1] == (4, "a4") and lines_of(parts)["b"] == lines["b"]
