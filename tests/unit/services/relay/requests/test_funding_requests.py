"""Requests for a dataset without periods: funding rates, from the submission to coverage, rows and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dexorder_common.lake.tables import FUNDING
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as rpb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1.rows_service_pb2 import StreamRowsRequest
from tests.series_messages import series
from tests.unit.services.relay.harness import ERROR, NOT_FOUND, OK, Suite, at, final_of, moment, suite

PERPETUAL = "BTC/USDT:USDT.SIM"
OF_FUNDING: dict[str, Any] = {"ticker": PERPETUAL, "period_seconds": 0, "dataset": "funding"}


def write(s: Suite, *minutes: int) -> None:
    """Append rates, as the pipeline does before its report."""
    key = {"ticker": PERPETUAL, "fetched_at": moment(0), "dispatch": 1, "page": 0}
    rows = [{**key, "funding_time": moment(m), "rate": m / 1e4} for m in minutes]
    FUNDING.load_or_create(s.pipeline.catalog).append(pa.Table.from_pylist(rows, schema=FUNDING.arrow))


async def land(s: Suite, dispatch: Any, start: int, end: int, **final: Any) -> None:
    span: dict[str, Any] = {"start_ns": at(start), "end_ns": at(end)}
    page = ppb.PageResult(job_id=dispatch.job_id, series=series(ticker=PERPETUAL, dataset="funding"), **span)
    await s.pipeline.report(pages=[page], finals=[final_of(dispatch.job_id, **final)])


async def coverage(s: Suite) -> list[tuple[int, int]]:
    request = rpb.StreamCoverageRequest(series=series(ticker=PERPETUAL, dataset="funding"))
    answers = [answer async for answer in s.relay.coverage.StreamCoverage(request)]
    return [(each.start_ns, each.end_ns) for answer in answers for each in answer.ranges]


async def test_a_range_is_one_dispatch_and_what_it_settles_is_covered_for_good(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one, sent = await s.dispatched("f", 7, 100_003, **OF_FUNDING)
        assert (sent.type, sent.dataset, sent.ticker) == (ingest.DataRequest.DATASET, "funding", PERPETUAL)
        assert (sent.historical.start_time, sent.historical.end_time) == (at(7), at(100_003))
        (issued,) = (
            await s.pipeline.stub.DescribeDispatches(ppb.DescribeDispatchesRequest(job_ids=[sent.job_id]))
        ).dispatches
        assert issued.series == series(PERPETUAL, 0, "funding")
        assert await one.page(sent.job_id, 7, 100_003)
        write(s, 480, 960, 1_200)
        await land(s, sent, 7, 100_003)
        record = await s.finished("f")
        assert (record.status, record.row_count, record.request.dataset) == (OK, 3, "funding")
        note = (await s.notification("HISTORY_READY:f")).ready
        assert (note.iceberg_table, note.dataset, note.row_count) == ("funding", "funding", 3)
        assert await coverage(s) == [(at(7), at(100_003))]
    async with suite(tmp_path) as s:  # after a restart, a part of it is there without a dispatch
        await s.queued("part", 481, 1_000, **OF_FUNDING)
        assert await s.ended("part") == (OK, 1)
        await s.queued("none", 2_000, 3_000, **OF_FUNDING)
        assert (await s.finished("none")).status == NOT_FOUND
        wanted = StreamRowsRequest(
            series=series(ticker=PERPETUAL, dataset="funding"), start_ns=at(481), end_ns=at(1_201)
        )
        answers = [answer async for answer in s.relay.rows.StreamRows(wanted)]
        assert answers[1].row_count == 2
        rows = pa.ipc.open_stream(b"".join(each.data for each in answers)).read_all()
        assert rows["rate"].to_pylist() == [960 / 1e4, 1_200 / 1e4]


async def test_what_is_not_settled_is_missing_and_the_reason_is_the_ingestors(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one, sent = await s.dispatched("f", 0, 1_000, **OF_FUNDING)
        await one.page(sent.job_id, 0, 600)
        write(s, 480)
        await land(s, sent, 0, 600, status=ingest.DataResponse.ERROR, error="not known to SIM yet")
        record = await s.finished("f")
        assert record.status == ERROR and "not known to SIM yet" in record.error_message
        assert [(each.start_ns, each.end_ns) for each in record.missing] == [(at(600), at(1_000))]


async def test_rows_that_stand_twice_end_a_request_as_error(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        _, sent = await s.dispatched("f", 0, 1_000, **OF_FUNDING)
        write(s, 480, 480)
        await land(s, sent, 0, 1_000)
        record = await s.finished("f")
        assert record.status == ERROR
        assert "trading.funding has rows that it must not have: 1 duplicate" in record.error_message


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dataset": "fundings"}, "dataset 'fundings' is not one of candles, trades, tickers, funding"),
        ({"period_seconds": 60}, "period_seconds 60 does not go with dataset funding"),
        ({"limit": 5}, "limit 5 is not allowed for funding rates"),
        ({"end_time": at(0)}, "end_time"),
        ({"ticker": "*.SIM"}, "names all markets of an exchange"),
        ({"dataset": "trades"}, "period_seconds 0 is not one of"),
    ],
)
async def test_a_request_that_can_not_be_answered_is_refused(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    async with suite(tmp_path) as s:
        fields = {**OF_FUNDING, "start_time": at(0), "end_time": at(9), **changes}
        answer = (
            await s.relay.history.SubmitHistorical(ingest.SubmitHistoricalRequest(request_id="f", **fields))
        ).answer
        assert answer.status == ingest.SubmitResponse.INVALID
        assert text in answer.error_message
