"""RefreshHistorical: the range is fetched again, once, and other requests for it are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay.requests.retraction_log import RetractionTable
from tests.unit.services.relay.harness import (
    EARLIER,
    OK,
    Suite,
    at,
    coverage_row,
    page,
    refused,
    request,
    span_of,
    suite,
    write_coverage,
)
from tests.unit.services.relay.requests.test_retraction_log import covered
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded, ids
from tests.unit.services.relay.test_relay import BAD

QUEUED, DUPLICATE, INVALID = (ingest.SubmitResponse.SubmitStatus.Value(n) for n in ("QUEUED", "DUPLICATE", "INVALID"))


async def refresh(s: Any, request_id: str, start: int, end: int, **fields: Any) -> ingest.SubmitResponse:
    message = operator_pb.RefreshHistoricalRequest(request=request(request_id, start, end, **fields))
    answer: ingest.SubmitResponse = (await s.operator.RefreshHistorical(message, timeout=30)).answer
    return answer


async def cover(s: Suite, start: int, end: int) -> None:
    """Put ten minutes into the table, report them and write their coverage."""
    await s.pipeline.report(snapshot_id=s.pipeline.write(range(start, end)), pages=[page(EARLIER, start, end)])
    write_coverage(s.pipeline.catalog, coverage_row(start, end, fetched_ns=at(100)))


async def test_what_is_covered_is_fetched_again_also_after_a_restart(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 30)
        answer = await refresh(s.relay, "r", 10, 20, client_id="me")
        assert (answer.status, answer.notification_topic) == (QUEUED, "RESPONSE:me")
        assert await covered(s) == [(0, 10), (20, 30)]
    async with suite(tmp_path) as s:
        assert await covered(s) == [(0, 10), (20, 30)]
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        assert (span_of(dispatch), dispatch.request_id) == ((10, 20), "r")
        await s.pipeline.land(dispatch)
        record = await s.finished("r")
        assert (record.status, record.refresh, list(record.missing)) == (OK, True, [])
        assert await covered(s) == [(0, 30)]
        assert (await refresh(s.relay, "r", 10, 20, client_id="me")).status == DUPLICATE
        assert await covered(s) == [(0, 30)], "a repeat takes nothing back"
        await s.queued("plain", 0, 30)
        assert ((await s.finished("plain")).progress.jobs, (await s.record("plain")).refresh) == (0, False)


@pytest.mark.smoke
async def test_a_job_that_was_dispatched_before_brings_nothing_of_it(tmp_path: Path) -> None:
    """The older request waits for the new job as well; pages of the older dispatch do not count."""
    async with suite(tmp_path) as s:
        ingestor, before = await s.dispatched("old", 0, 30)
        assert await ingestor.page(before.job_id, 0, 15)  # in Kafka, not in the table
        await refresh(s.relay, "new", 10, 20)
        await ingestor.offer()
        after = await ingestor.take()
        assert (span_of(after), after.request_id) == ((10, 20), "new")
        assert await ingestor.page(before.job_id, 15, 30)
        await s.pipeline.land(before)
        assert await covered(s) == [(0, 10), (20, 30)]
        for request_id in ("old", "new"):
            assert (await s.record(request_id)).state == history_pb.REQUEST_STATE_RUNNING
        assert (await s.record("new")).progress.settled_periods == 0
        assert await ingestor.page(after.job_id, 10, 20)
        await s.pipeline.report(snapshot_id=s.pipeline.write([]), pages=[page(after.job_id, 10, 20)])
        old = await s.finished("old")
        assert (old.status, old.row_count, list(old.missing)) == (OK, 30, [])
        assert (await s.finished("new")).status == OK


async def test_a_job_that_nobody_has_yet_is_shared(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = s.ingestor()
        await s.queued("old", 0, 20)
        await refresh(s.relay, "new", 10, 20)
        await ingestor.offer()
        (dispatch,) = await ingestor.work(s.pipeline, dispatches=1)
        assert span_of(dispatch) == (0, 20)
        assert [(await s.finished(each)).status for each in ("old", "new")] == [OK, OK]


async def test_the_same_refresh_at_once_takes_back_once(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 10)
        plain = s.submit("r", 0, 10)
        answers = await asyncio.gather(*(refresh(s.relay, "r", 0, 10) for _ in range(5)))
        assert sorted(each.status for each in answers) == sorted([QUEUED, *[DUPLICATE] * 4])
        assert len(RetractionTable(s.pipeline.catalog).read()) == 1
        assert "was used for another request" in (await plain).error_message, "without refresh it is another one"
        await s.queued("p", 20, 30)
        assert (await refresh(s.relay, "p", 20, 30)).status == INVALID
        assert len(RetractionTable(s.pipeline.catalog).read()) == 1


async def test_bad_fields_are_named_and_nothing_is_taken_back(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 10)
        for fields, text in [*BAD, ({"limit": 5}, "limit 5 is not allowed in a refresh")]:
            message = operator_pb.RefreshHistoricalRequest(request=request("bad", 0, 10))
            for name, value in fields.items():
                setattr(message.request, name, value)
            answer = (await s.relay.operator.RefreshHistorical(message)).answer
            assert (answer.status, answer.notification_topic) == (INVALID, ""), fields
            assert text in answer.error_message, fields
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "request is missing"):
            await s.relay.operator.RefreshHistorical(operator_pb.RefreshHistoricalRequest())
        assert not (await s.relay.history.ListRequests(history_pb.ListRequestsRequest())).records
        assert await covered(s) == [(0, 10)] and RetractionTable(s.pipeline.catalog).read() == []


async def test_what_cannot_be_made_durable_is_unavailable_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RetractionTable.append

    def broken(*_: Any) -> None:
        raise OSError("the catalog is away")

    async with suite(tmp_path) as s:
        await cover(s, 0, 10)
        monkeypatch.setattr(RetractionTable, "append", broken)
        monkeypatch.setattr("dexorder_relay.requests.retraction_log.WRITE_ATTEMPTS", 1)
        with refused(grpc.StatusCode.UNAVAILABLE, "coverage_retractions can't be written"):
            await refresh(s.relay, "r", 0, 10)
        assert await covered(s) == [(0, 10)]
        monkeypatch.setattr(RetractionTable, "append", append)
        assert (await refresh(s.relay, "r", 0, 10)).status == QUEUED, "the id is not taken"
        assert await covered(s) == []


async def test_a_refresh_is_its_callers_and_counts_in_its_quotas(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", boss={"unfinished_requests": 1})
    async with guarded(tmp_path, tokens=tokens) as suite_:
        desk, boss, deputy = [await suite_.stub(name) for name in ("desk", "boss", "deputy")]
        assert (await refresh(boss, "r", 0, 10)).notification_topic == "RESPONSE:boss"
        code, text = await code_of(refresh(boss, "s", 0, 10))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith("unfinished_requests would be 2")
        assert len(RetractionTable(suite_.pipeline.catalog).read()) == 1, "refused before anything was taken back"
        assert (await refresh(deputy, "r", 0, 10)).status == INVALID
        assert [await ids(deputy, each) for each in ("boss", "deputy")] == [["r"], []] and await ids(desk) == []
