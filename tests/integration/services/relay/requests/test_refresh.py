"""RefreshHistorical: the range is fetched again, once, and other requests for it are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.dispatch_id import number_of
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay.requests.retraction_log import RetractionTable
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    OK,
    Suite,
    at,
    coverage_row,
    page,
    ranges,
    refused,
    request,
    span,
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


async def until_waiting(changes: Any) -> AsyncIterator[Any]:
    async for each in changes:
        yield each
        if each.progress.waiting:
            return


async def cover(s: Suite, start: int, end: int) -> None:
    """Put ten minutes into the table, report them and write their coverage."""
    await s.pipeline.report(snapshot_id=s.pipeline.write(range(start, end)), pages=[page(EARLIER, start, end)])
    write_coverage(s.pipeline.catalog, coverage_row(start, end, fetched_ns=at(100)))


async def test_what_is_covered_is_fetched_again_and_counts_until_then(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 30)
        answer = await refresh(s.relay, "r", 10, 20, client_id="me")
        assert (answer.status, answer.notification_topic) == (QUEUED, "RESPONSE:me")
        assert await covered(s) == [(0, 30)]
        await s.queued("beside", 0, 30)
        assert ((await s.finished("beside")).status, (await s.record("beside")).progress.jobs) == (OK, 0)
    async with suite(tmp_path) as s:
        assert await covered(s) == [(0, 30)]
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        assert (span_of(dispatch), dispatch.request_id) == ((10, 20), "r")
        await s.pipeline.land(dispatch)
        record = await s.finished("r")
        assert (record.status, record.refresh, list(record.missing)) == (OK, True, [])
        assert (await refresh(s.relay, "r", 10, 20, client_id="me")).status == DUPLICATE
        assert await covered(s) == [(0, 30)] and RetractionTable(s.pipeline.catalog).read() == []
        await s.queued("plain", 0, 30)
        assert ((await s.finished("plain")).progress.jobs, (await s.record("plain")).refresh) == (0, False)


async def test_a_refresh_needs_pages_of_its_own_and_others_do_not_wait_for_them(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor, before = await s.dispatched("old", 0, 30)
        assert await ingestor.page(before.job_id, 0, 15)  # in Kafka, not in the table
        await refresh(s.relay, "new", 10, 20)
        await ingestor.offer()
        after = await ingestor.take()
        assert (span_of(after), after.request_id) == ((10, 20), "new")
        assert await ingestor.page(before.job_id, 15, 30)
        await s.pipeline.land(before)
        assert (await s.finished("old")).row_count == 30
        record = await s.record("new")
        assert (record.state, record.progress.settled_periods) == (history_pb.REQUEST_STATE_RUNNING, 0)
        await s.pipeline.land(after)
        assert (await s.finished("new")).status == OK


@pytest.mark.parametrize("landed", [False, True], ids=["before a page", "after half of them"])
async def test_a_cancelled_refresh_takes_nothing_from_anybody(tmp_path: Path, landed: bool) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 20)
        await refresh(s.relay, "r", 0, 20)
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        if landed:
            assert await ingestor.page(dispatch.job_id, 0, 10, empty=[(4, 5)])
            await s.pipeline.report(pages=[page(dispatch.job_id, 0, 10, empty=[(4, 5)])])
        await s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="r"))
        assert await covered(s) == [(0, 20)] and RetractionTable(s.pipeline.catalog).read() == []
        await s.queued("plain", 0, 20)
        record = await s.finished("plain")
        assert (record.status, record.row_count, record.progress.jobs) == (OK, 20, 0)


async def test_a_candle_that_is_gone_is_named_and_its_older_claim_is_taken_back(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 10)
        await refresh(s.relay, "r", 0, 10)
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        await s.pipeline.land(dispatch, holes=[4])
        record = await s.finished("r")
        assert record.status == ERROR and "1 in ranges verified empty" in record.error_message
        assert list(record.provisional) == ranges([(4, 5)]), "it is queried again"
        assert await covered(s) == [(0, 4), (4, 5), (5, 10)]
        (made,) = RetractionTable(s.pipeline.catalog).read()
        assert made.span == span(4, 5) and number_of(EARLIER) < made.order.dispatch < number_of(dispatch.job_id)
        holes, number = [(4, 5)], number_of(dispatch.job_id)
        write_coverage(s.pipeline.catalog, coverage_row(0, 10, fetched_ns=at(100), dispatch=number, empty=holes))
    for name in ("relay.db", "relay.db-wal", "relay.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    async with suite(tmp_path) as s:
        assert await covered(s) == [(0, 4), (4, 5), (5, 10)]
        await s.queued("plain", 0, 10)
        assert (await s.finished("plain")).status == ERROR, "the tables alone say the same"


async def test_a_retraction_that_cannot_be_written_delays_the_end_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RetractionTable.append

    def broken(*_: Any) -> None:
        raise OSError("the catalog is away")

    monkeypatch.setattr("dexorder_relay.requests.retraction_log.WRITE_ATTEMPTS", 1)
    monkeypatch.setattr("dexorder_relay.requests.completion.RETRY_NS", 0)
    async with suite(tmp_path) as s:
        await cover(s, 0, 10)
        await refresh(s.relay, "r", 0, 10)
        dispatch = await (await s.offering()).take()
        monkeypatch.setattr(RetractionTable, "append", broken)
        await s.pipeline.land(dispatch, holes=[4])
        watched = s.relay.history.WatchProgress(history_pb.WatchProgressRequest(request_id="r"))
        waiting = [each.progress.waiting async for each in until_waiting(watched)]
        assert "coverage_retractions can't be written" in waiting[-1]
        assert await covered(s) == [(0, 10)]
        monkeypatch.setattr(RetractionTable, "append", append)
        assert (await s.finished("r")).status == ERROR


async def test_the_same_refresh_at_once_is_one(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await cover(s, 0, 10)
        answers = await asyncio.gather(*(refresh(s.relay, "r", 0, 10) for _ in range(5)))
        assert sorted(each.status for each in answers) == sorted([QUEUED, *[DUPLICATE] * 4])
        assert (await s.record("r")).progress.jobs == 1
        assert "was used for another request" in (await s.submit("r", 0, 10)).error_message
        await s.queued("p", 20, 30)
        assert (await refresh(s.relay, "p", 20, 30)).status == INVALID


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


async def test_a_refresh_is_its_callers_and_counts_in_its_quotas(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", boss={"unfinished_requests": 1})
    async with guarded(tmp_path, tokens=tokens) as suite_:
        desk, boss, deputy = [await suite_.stub(name) for name in ("desk", "boss", "deputy")]
        assert (await refresh(boss, "r", 0, 10)).notification_topic == "RESPONSE:boss"
        code, text = await code_of(refresh(boss, "s", 0, 10))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith("unfinished_requests would be 2")
        assert (await refresh(deputy, "r", 0, 10)).status == INVALID
        assert [await ids(deputy, each) for each in ("boss", "deputy")] == [["r"], []] and await ids(desk) == []
