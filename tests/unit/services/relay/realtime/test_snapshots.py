"""Snapshots of all tickers of an exchange: a request with one dispatch and one end, whoever fails on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from tests.series_messages import series
from tests.unit.services.relay.harness import ERROR, NOT_FOUND, OK, Suite, suite
from tests.unit.services.relay.realtime.worker import RawWorker, described, start, worker

QUEUED, DUPLICATE, INVALID = (
    ingest.SubmitResponse.QUEUED,
    ingest.SubmitResponse.DUPLICATE,
    ingest.SubmitResponse.INVALID,
)
ALL = "*.SIM"
TAKEN_NS = 1_704_067_200_123_456_789


async def snapshot(s: Suite, request_id: str, exchange: str = "SIM", **fields: Any) -> Any:
    return (
        await s.relay.history.SnapshotTickers(
            pb.SnapshotTickersRequest(request_id=request_id, exchange=exchange, **fields)
        )
    ).answer


async def taken(s: Suite) -> tuple[RawWorker, Any]:
    """Ask for snapshots; return a worker with their dispatch."""
    await snapshot(s, "t")
    one = worker(s)
    await one.ready(ingest.ANY)
    return one, await one.job()


async def land(s: Suite, job_id: str, rows: int, *, refused: str | None = None, error: str | None = None) -> None:
    """Report what Spark does: a page of snapshots, and the final record."""
    page = ppb.PageResult(
        job_id=job_id,
        series=series(ticker=ALL),
        start_ns=TAKEN_NS,
        end_ns=TAKEN_NS,
        rows=0 if refused else rows,
        refused=refused,
    )
    status = ingest.DataResponse.ERROR if error else ingest.DataResponse.OK
    final = ppb.FinalResult(job_id=job_id, status=status, error_message=error, total_records=rows)
    await s.pipeline.report(pages=[page] if rows else [], finals=[final])


async def test_snapshots_are_taken_by_one_dispatch_and_announced_with_their_table(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        answer = await snapshot(s, "t", client_id="me")
        assert (answer.status, answer.notification_topic) == (QUEUED, "RESPONSE:me")
        assert (await snapshot(s, "t", client_id="me")).status == DUPLICATE
        one = worker(s)
        await one.ready(ingest.REALTIME)  # not for this
        await one.ready(ingest.HISTORICAL)
        sent = await one.job()
        assert (sent.type, sent.ticker, sent.request_id) == (ingest.DataRequest.TICKER_SNAPSHOT, ALL, "t")
        assert not sent.HasField("historical") and not sent.HasField("realtime")
        (issued,) = await described(s, [sent.job_id])
        assert issued.WhichOneof("work") == "series" and issued.series == series(ALL)
        assert (await s.record("t")).state == pb.REQUEST_STATE_RUNNING
        await one.complete(sent.job_id)
        await land(s, sent.job_id, 731)
        record = await s.finished("t")
        assert (record.status, record.row_count, record.answered_end_ns) == (OK, 731, TAKEN_NS)
        for topic in ("RESPONSE:me", "HISTORY_READY:t"):
            note = (await s.notification(topic)).ready
            assert (note.request_id, note.ticker, note.row_count, note.end_time) == ("t", ALL, 731, TAKEN_NS)
            assert (note.iceberg_namespace, note.iceberg_table, note.status) == ("trading", "tickers", OK)


async def test_a_lost_dispatch_is_taken_again_and_only_the_last_one_counts(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await snapshot(s, "t")
        one = worker(s)
        await one.ready()
        await one.ready(ingest.ANY)
        first = await one.job()
        await s.pipeline.report(
            pages=[
                ppb.PageResult(job_id=first.job_id, series=series(ticker=ALL), start_ns=5, end_ns=5, refused="broken")
            ]
        )
        await one.complete(first.job_id, success=False)
        await one.ready(ingest.ANY)
        second = await one.job()
        await land(s, first.job_id, 9, refused="late")  # fenced
        assert (await s.record("t")).state == pb.REQUEST_STATE_RUNNING
        await land(s, second.job_id, 3)
        assert await s.ended("t") == (OK, 3)


@pytest.mark.parametrize(
    ("rows", "refused", "error", "status", "text"),
    [
        (0, None, None, NOT_FOUND, ""),
        (4, "price -1", None, ERROR, "a page was refused: price -1"),
        (0, None, "the exchange has no tickers", ERROR, "the exchange has no tickers"),
    ],
)
async def test_other_ends(
    tmp_path: Path, rows: int, refused: str | None, error: str | None, status: Any, text: str
) -> None:
    async with suite(tmp_path) as s:
        _, sent = await taken(s)
        await land(s, sent.job_id, rows, refused=refused, error=error)
        record = await s.finished("t")
        assert (record.status, record.error_message) == (status, text)


async def test_a_restart_keeps_the_request_and_its_dispatch(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        _, sent = await taken(s)
        page = ppb.PageResult(job_id=sent.job_id, series=series(ticker=ALL), start_ns=TAKEN_NS, end_ns=TAKEN_NS, rows=2)
        await s.pipeline.report(pages=[page])
    async with suite(tmp_path) as s:
        assert (await snapshot(s, "t")).status == DUPLICATE
        final = ppb.FinalResult(job_id=sent.job_id, status=ingest.DataResponse.OK, total_records=2)
        await s.pipeline.report(finals=[final])
        record = await s.finished("t")
        assert (record.status, record.row_count, record.answered_end_ns) == (OK, 2, TAKEN_NS)


async def test_cancel_ends_it(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        _, sent = await taken(s)
        await s.relay.history.CancelRequest(pb.CancelRequestRequest(request_id="t"))
        record = await s.finished("t")
        assert (record.status, record.error_message) == (ERROR, "cancelled")
        assert not await s.ingestor().page(sent.job_id, 0, 1)


async def test_ids_and_exchanges_are_checked_and_a_market_is_not_all_of_them(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.queued("r", 0, 1)
        answer = await snapshot(s, "r")
        assert (answer.status, answer.error_message) == (INVALID, "request_id 'r' was used for another request")
        answer = await snapshot(s, "t", "NOWHERE")
        assert (answer.status, answer.error_message) == (INVALID, "exchange 'NOWHERE' is not known; this relay has SIM")
        answer = await s.submit("u", 0, 1, ticker=ALL)
        assert answer.status == INVALID and "names all markets of an exchange" in answer.error_message
        answer = await s.submit("u", 0, 0, ticker=ALL, start_time=0, end_time=0, period_seconds=0)
        assert answer.status == INVALID
        with pytest.raises(grpc.aio.AioRpcError, match="names all markets of an exchange"):
            await start(s, "a", ticker=ALL)
