"""StreamOhlc: rows as pages, read from a real table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.tables import OHLC
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_relay.reading import fetch_ohlc
from dexorder_relay.reading.rows import CANDLE_COLUMNS
from tests.unit.services.relay.harness import EARLIER, TICKER, VALUES, Suite, at, candle, page, refused, settings, suite

OK, NOT_FOUND, ERROR = ingest.Response.OK, ingest.Response.NOT_FOUND, ingest.Response.ERROR


def older(request_id: str, start: int, end: int, **fields: Any) -> rpb.StreamOhlcRequest:
    values = {"ticker": TICKER, "start_time": at(start), "end_time": at(end), "period_seconds": 60, **fields}
    return rpb.StreamOhlcRequest(request=ingest.OHLCRequest(request_id=request_id, **values))


async def fetch(s: Suite, request_id: str, start: int, end: int, **fields: Any) -> list[ingest.Response]:
    call = s.relay.history.StreamOhlc(older(request_id, start, end, **fields), timeout=60)
    pages = [answer.page async for answer in call]
    assert [answer.is_final for answer in pages] == [False] * (len(pages) - 1) + [True]
    assert {answer.request_id for answer in pages} == {request_id}
    return pages


def candles(pages: list[ingest.Response]) -> list[ohlcv_pb2.OHLCV]:
    return [ohlcv_pb2.OHLCV.FromString(data) for answer in pages for data in answer.data]


def expected(minutes: int) -> ohlcv_pb2.OHLCV:
    values = candle(minutes)
    return ohlcv_pb2.OHLCV(open_time_ns=at(minutes), trade_count=values.pop("trades"), **values)


async def have(s: Suite, minutes: list[int], start: int, end: int) -> None:
    """Put rows into the table; the rest of the range is verified empty."""
    holes = [(m, m + 1) for m in sorted({*range(start, end)} - {*minutes})]
    await s.pipeline.report(snapshot_id=s.pipeline.write(minutes), pages=[page(EARLIER, start, end, empty=holes)])


async def test_missing_candles_are_fetched_first_and_all_come_in_time_order(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await have(s, list(range(10, 30)), 10, 30)
        ingestor = await s.offering(2)
        call = s.relay.history.StreamOhlc(older("r", 0, 40), timeout=60)
        await ingestor.work(s.pipeline, dispatches=2, holes=[3, 35])
        pages = [answer.page async for answer in call]
        assert candles(pages) == [expected(m) for m in range(40) if m not in (3, 35)]
        assert [(p.status, p.total_records, p.is_final) for p in pages] == [(OK, 38, True)]
        assert await fetch(s, "r", 0, 40) == pages  # the same request again: read again, nothing dispatched
        record = await s.record("r")
        assert (record.row_count, record.progress.jobs) == (38, 2)


async def test_pages_hold_a_thousand_and_the_last_is_never_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_ohlc, "WINDOW_PERIODS", 1_500)
    async with suite(tmp_path) as s:
        there = [*range(2_999, 1_599, -1), *range(1_000), *range(5_000, 5_600)]  # written backwards, an empty window
        await have(s, there, 0, 6_000)
        pages = await fetch(s, "all", 0, 6_000)
        assert [len(p.data) for p in pages] == [1_000, 1_000, 1_000]
        assert {p.total_records for p in pages} == {3_000}
        assert candles(pages) == [expected(m) for m in sorted(there)]
        assert [len(p.data) for p in await fetch(s, "some", 0, 6_000, limit=1_001)] == [1_000, 1]


async def test_limit_ends_the_answer(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await have(s, [0, 2, 4, 6, 8], 0, 10)
        pages = await fetch(s, "r", 0, 10, limit=3)
        assert [c.open_time_ns for c in candles(pages)] == [at(0), at(2), at(4)]
        assert pages[0].total_records == 3


async def test_an_empty_range_is_one_page(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(pages=[page(EARLIER, 0, 10, empty=[(0, 10)])])
        assert await fetch(s, "r", 0, 10) == [
            ingest.Response(request_id="r", status=NOT_FOUND, total_records=0, is_final=True)
        ]


async def test_a_request_that_fails_or_can_not_be_answered_is_one_page_that_says_why(tmp_path: Path) -> None:
    async with suite(tmp_path, request_timeout_seconds=0.3) as s:
        await have(s, list(range(5)), 0, 5)
        (timed_out,) = await fetch(s, "timeout", 0, 10)
        assert (timed_out.status, len(timed_out.data)) == (ERROR, 0)
        assert timed_out.error_message.startswith("no progress for 0.3 s; missing [2024-01-01T00:05:00Z")
        (bad,) = await fetch(s, "bad", 0, 10, period_seconds=61)
        assert bad.status == ERROR and "period_seconds 61" in bad.error_message
        (other,) = await fetch(s, "timeout", 0, 11)
        assert other.error_message == "request_id 'timeout' was used for another request"


async def test_the_request_goes_on_when_its_caller_is_gone(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = s.ingestor()
        call = s.relay.history.StreamOhlc(older("r", 0, 10), timeout=60)
        await ingestor.offer()
        dispatch = await ingestor.take()
        call.cancel()
        assert await ingestor.page(dispatch.job_id, 0, 10)
        await s.pipeline.land(dispatch)
        assert (await s.finished("r")).row_count == 10
        assert len(candles(await fetch(s, "r", 0, 10))) == 10


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
async def test_rows_are_those_of_the_requests_snapshot_until_it_has_expired(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await have(s, [0, 1, 2], 0, 5)
        for request_id, limit in (("r", None), ("first", 3)):
            assert len(candles(await fetch(s, request_id, 0, 5, limit=limit))) == 3
        snapshot_id = (await s.record("r")).snapshot_id
        s.pipeline.write([4])
        assert len(candles(await fetch(s, "r", 0, 5))) == 3
        s.pipeline.catalog.load_table(OHLC.name).maintenance.expire_snapshots().by_id(snapshot_id).commit()
        (now,) = await fetch(s, "r", 0, 5)
        assert ([c.open_time_ns for c in candles([now])], now.total_records) == ([at(m) for m in (0, 1, 2, 4)], 4)
        assert len(candles(await fetch(s, "first", 0, 5, limit=3))) == 3
        s.pipeline.write([1])
        (doubled,) = await fetch(s, "r", 0, 5)
        assert doubled.status == ERROR and "rows that it must not have: 1 duplicate" in doubled.error_message
        s.pipeline.catalog.load_table(OHLC.name).delete()
        (lost,) = await fetch(s, "r", 0, 5)
        assert lost.status == ERROR and "has 0 of the request's 3 rows now" in lost.error_message


async def test_a_table_that_can_not_be_read_is_unavailable(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await have(s, [0, 1, 2], 0, 3)
        await fetch(s, "r", 0, 3)
        for file in (tmp_path / "warehouse").rglob("*.parquet"):
            file.unlink()
        with refused(grpc.StatusCode.UNAVAILABLE, OHLC.name):
            await fetch(s, "r", 0, 3)
        assert (await s.relay.history.GetRequest(rpb.GetRequestRequest(request_id="r"))).record.row_count == 3


def test_columns_are_those_of_the_real_table() -> None:
    assert {*CANDLE_COLUMNS, *VALUES, "ticker", "period_seconds"} <= {field.name for field in OHLC.schema.fields}


@given(st.integers(1_024, 8 * 2**20), st.text(min_size=1, max_size=256))
def test_a_page_fits_into_a_message_whatever_its_candles(most_bytes: int, request_id: str) -> None:
    most = 2**63 - 1
    worst = {name: [1e300] for name in VALUES}
    rows = pa.table({"open_time": pa.array([most // 1_000], pa.timestamp("us", tz="UTC")), **worst, "trades": [most]})
    candles = fetch_ohlc.candles_in_page(most_bytes)
    message = ingest.Response(
        request_id=request_id, data=fetch_ohlc.encode_rows(rows) * candles, total_records=2**32 - 1, is_final=True
    )
    assert 1 <= candles <= 1_000
    assert message.ByteSize() <= max(most_bytes, fetch_ohlc.MAX_ENVELOPE_BYTES + fetch_ohlc.MAX_CANDLE_BYTES)


def test_default_pages_are_full() -> None:
    assert fetch_ohlc.candles_in_page(settings(Path()).max_message_bytes) == 1_000
