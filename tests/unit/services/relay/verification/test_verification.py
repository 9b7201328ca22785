"""VerifyCoverage on a whole relay with a real table."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.lake.tables import OHLC
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1.operator_service_pb2 import RepairCoverageRequest
from dexorder_relay.reading.rows import CandleRows
from dexorder_relay.requests.retraction_log import RetractionTable
from dexorder_relay.verification import mending, verification
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    OK,
    TICKER,
    Suite,
    at,
    minute,
    page,
    ranges,
    span_of,
    suite,
)
from tests.unit.services.relay.requests.test_outcome import write_off_grid
from tests.unit.services.relay.requests.test_retraction_log import covered


async def verify(
    s: Suite, ticker: str = TICKER, *, repair: bool = False, **fields: Any
) -> tuple[list[coverage_pb.VerifyProgress], coverage_pb.VerifyResult]:
    values: Any = {"series": series(ticker, 60), **fields}
    call: Any
    if repair:
        call = s.relay.operator.RepairCoverage(RepairCoverageRequest(**values), timeout=60)
    else:
        call = s.relay.coverage.VerifyCoverage(coverage_pb.VerifyCoverageRequest(**values), timeout=60)
    answers = [each async for each in call]
    *progress, last = answers
    assert last.WhichOneof("answer") == "result"
    assert {each.WhichOneof("answer") for each in progress} == {"progress"}
    return [each.progress for each in progress], last.result


async def faulty(s: Suite) -> None:
    """Claim 0 to 30, 10 to 12 as empty. The table lacks 4, 5 and 20; it has 11, 7 twice, and unclaimed 40."""
    there = [m for m in range(30) if m not in (4, 5, 10, 20)]
    snapshot_id = s.pipeline.write([*there, 7, 40])
    await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 30, empty=[(10, 12)])])


async def test_every_kind_of_fault_is_told_and_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "WINDOW_PERIODS", 8)
    async with suite(tmp_path) as s:
        await faulty(s)
        s.pipeline.write([5, 6], ticker="ETH/USDT.SIM")
        progress, found = await verify(s)
        assert found == coverage_pb.VerifyResult(
            checked=ranges([(0, 41)])[0],
            rows=28,
            row_periods=28,
            empty_periods=2,
            lost=ranges([(4, 6), (20, 21)]),
            lost_periods=3,
            unexpected=ranges([(11, 12)]),
            unexpected_periods=1,
            duplicates=ranges([(7, 8)]),
            surplus_rows=1,
            unclaimed_periods=1,
        )
        assert [(each.windows, each.checked_windows) for each in progress[:4]] == [(0, 0), (6, 0), (6, 1), (6, 2)]
        assert (progress[-1].checked_windows, progress[-1].rows, progress[-1].lost_periods) == (6, 28, 3)
        assert await covered(s) == [(0, 10), (10, 12), (12, 30)]
        assert RetractionTable(s.pipeline.catalog).read() == []
        _, part = await verify(s, start_ns=at(6), end_ns=at(12))
        assert (part.checked, part.lost_periods, part.rows) == (ranges([(6, 12)])[0], 0, 6)
        _, nothing = await verify(s, start_ns=at(100))
        assert nothing == coverage_pb.VerifyResult()
        _, unclaimed = await verify(s, start_ns=at(30), end_ns=at(60))
        assert (unclaimed.checked, unclaimed.unclaimed_periods) == (ranges([(40, 41)])[0], 1)


async def test_repair_removes_what_must_not_be_there_and_fetches_again_what_is_lost_or_unsure(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = await s.offering()
        await faulty(s)
        write_off_grid(s, 9)
        s.pipeline.write([15], close=0.5)
        _, found = await verify(s, repair=True)
        assert found.repaired_periods == found.lost_periods == 3
        assert (found.surplus_rows, found.unexpected_periods, list(found.off_grid)) == (2, 1, ranges([(9, 10)]))
        assert found.removed_rows == 4, "one of 7, 15 and 11 each, and the one off the grid"
        assert rows_of(s).count(15) == 0, "until it is fetched again"
        (request_id,) = found.repair_request_ids
        assert request_id.startswith("verify-")
        made = RetractionTable(s.pipeline.catalog).read()
        spans = [TimeRange(at(start), at(end)) for start, end in ((4, 6), (11, 12), (15, 16), (20, 21))]
        assert sorted(each.span for each in made) == spans, "copies of 7 are equal, those of 15 are not"
        done = await ingestor.work(s.pipeline, dispatches=4, holes=[11])
        assert [minute(each.historical.start_time) for each in done] == [4, 11, 15, 20]
        record = await s.finished(request_id)
        assert (record.status, record.request.ticker, list(record.missing)) == (OK, TICKER, [])
        assert rows_of(s) == [*(m for m in range(30) if m not in (10, 11)), 40]


def rows_of(s: Suite) -> list[int]:
    found = s.pipeline.catalog.load_table(OHLC.name).scan(row_filter=f"ticker == '{TICKER}'").to_arrow()
    return sorted(each["open_time"].minute for each in found.to_pylist())


async def test_a_repaired_table_agrees_with_its_coverage(tmp_path: Path) -> None:
    """What the exchange says now holds: a candle in a range once verified empty, and none where there was a row."""
    async with suite(tmp_path) as s:
        ingestor = await s.offering()
        await s.pipeline.report(
            snapshot_id=s.pipeline.write([0, 1, 2, 2, 5, 6]), pages=[page(EARLIER, 0, 8, empty=[(5, 8)])]
        )
        _, found = await verify(s, repair=True)
        assert (found.removed_rows, found.lost_periods) == (3, 2)
        (done,) = await ingestor.work(s.pipeline, dispatches=1, holes=[6])
        assert span_of(done) == (3, 7)
        assert (await s.finished(found.repair_request_ids[0])).status == OK
        _, again = await verify(s, repair=True)
        assert again == coverage_pb.VerifyResult(checked=ranges([(0, 8)])[0], rows=6, row_periods=6, empty_periods=2)
        await s.queued("r", 0, 8)
        record = await s.finished("r")
        assert (record.status, record.row_count, record.empty_periods) == (OK, 6, 2)


async def test_duplicates_alone_are_removed_without_a_fetch_and_without_a_retraction(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(snapshot_id=s.pipeline.write([0, 1, 2]), pages=[page(EARLIER, 0, 3)])
        s.pipeline.write([0, 1, 2])
        _, found = await verify(s, repair=True)
        assert (found.removed_rows, list(found.repair_request_ids)) == (3, [])
        assert RetractionTable(s.pipeline.catalog).read() == []
        await s.queued("r", 0, 3)
        assert await s.ended("r") == (OK, 3)


async def test_a_repair_that_cannot_change_the_table_leaves_ranges_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError("disk full")

    async with suite(tmp_path) as s:
        await faulty(s)
        monkeypatch.setattr(mending, "replace_rows", full)
        with pytest.raises(grpc.aio.AioRpcError, match=r"trading\.ohlc can't be changed: disk full; check") as caught:
            await verify(s, repair=True)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await covered(s) == [(0, 4), (6, 10), (10, 11), (12, 20), (21, 30)], (
            "retracted, as the removal may have begun"
        )
        assert not (await s.relay.history.ListRequests(history_pb.ListRequestsRequest())).records
        monkeypatch.undo()
        _, found = await verify(s, repair=True)
        assert (found.removed_rows, found.surplus_rows) == (1, 1)


@pytest.mark.parametrize(
    ("step", "status"),
    [("verification.mending.replace_rows", ERROR), ("requests.submitter.Submitter._accept", OK)],
    ids=["before", "after"],
)
async def test_a_repair_cut_off_leaves_ranges_missing_or_wrong_rows_but_no_wrong_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, status: int
) -> None:
    """The relay starts again with what was on disk when it stopped, before or after the removal of rows."""

    def stop(*_: Any) -> Any:
        raise RuntimeError("killed")

    async with suite(tmp_path) as s:
        await faulty(s)
        with monkeypatch.context() as patch:
            patch.setattr(f"dexorder_relay.{step}", stop)
            with pytest.raises(grpc.aio.AioRpcError):
                await verify(s, repair=True)
    async with suite(tmp_path) as s:
        assert await covered(s) == [(0, 4), (6, 10), (10, 11), (12, 20), (21, 30)]
        ingestor = await s.offering()
        await s.queued("r", 0, 30)
        await ingestor.work(s.pipeline, dispatches=3, holes=[11])
        assert (await s.finished("r")).status == status, "7 is there twice and 11 must not be"
        repaired = asyncio.create_task(verify(s, repair=True))
        if status == ERROR:
            await ingestor.work(s.pipeline, dispatches=1, holes=[11])
        _, found = await repaired
        for request_id in found.repair_request_ids:
            assert (await s.finished(request_id)).status == ingest.HistoryReadyNotification.NOT_FOUND
        await s.queued("again", 0, 30)
        record = await s.finished("again")
        assert (record.status, record.row_count, record.empty_periods) == (OK, 28, 2)


async def test_what_is_committed_and_reported_meanwhile_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was read before a commit that coverage already includes: the next reading agrees."""
    looks, times = list[int](), CandleRows.times

    async with suite(tmp_path, count_attempts=3) as s:
        await s.pipeline.report(
            snapshot_id=s.pipeline.write(range(5)), pages=[page(EARLIER, 0, 5), page(EARLIER, 5, 10)]
        )

        def late(rows: CandleRows, *which: Any) -> Any:
            looks.append(1)
            found = times(rows, *which)
            if len(looks) == 1:
                s.pipeline.write(range(5, 10))
            return found

        monkeypatch.setattr(CandleRows, "times", late)
        progress, found = await verify(s, repair=True)
        assert (found.lost_periods, len(looks), list(found.repair_request_ids)) == (0, 2, [])
        assert [each.lost_periods for each in progress[:4]] == [0, 0, 5, 0]
        assert await covered(s) == [(0, 10)]


async def test_a_table_that_cannot_be_read_is_unavailable_and_takes_nothing_back(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await faulty(s)

        for file in (tmp_path / "warehouse").rglob("*.parquet"):
            file.unlink()
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"trading\.ohlc can't be read: .*parquet.*; check that"
        ) as caught:
            await verify(s, repair=True)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await covered(s) == [(0, 10), (10, 12), (12, 30)]


async def test_a_repair_goes_through_though_its_caller_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    loop, append = asyncio.get_running_loop(), RetractionTable.append

    def slow(*which: Any) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
        append(*which)

    monkeypatch.setattr(RetractionTable, "append", slow)
    async with suite(tmp_path) as s:
        await faulty(s)
        call = s.relay.operator.RepairCoverage(RepairCoverageRequest(series=series(TICKER, 60)))
        reading = asyncio.create_task(_drain(call))
        async with asyncio.timeout(30):
            await entered.wait()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await covered(s) == [(0, 10), (10, 12), (12, 30)], "nothing before it is durable"
        go_on.set()
        async with asyncio.timeout(30):
            while not (listed := (await s.relay.history.ListRequests(history_pb.ListRequestsRequest())).records):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert listed[0].request.request_id.startswith("verify-")
        assert await covered(s) == [(0, 4), (6, 10), (10, 11), (12, 20), (21, 30)]


async def _drain(call: Any) -> None:
    async for _ in call:
        pass


async def test_values_without_cells_are_not_compared_and_nothing_is_fetched(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(30)), pages=[page(EARLIER, 0, 30)])
        _, found = await verify(s, values=True)
        assert list(found.values.errors) == ["no ingestor has reported which candles SIM has"]
        for offer in (
            history_pb.CandleOffer(period_seconds=[60], call_candles=1_000, volume_tolerance=1e-9),
            history_pb.CandleOffer(period_seconds=[60, 3_600], call_candles=1_000),
        ):
            market = history_pb.Instrument(ticker=TICKER, active=True)
            await s.ingestors.ReportInstruments(
                ipb.ReportInstrumentsRequest(exchange="SIM", instruments=[market], fetched_ns=1, candles=offer)
            )
            _, found = await verify(s, values=True)
            assert found.values == coverage_pb.ValueComparison(uncompared=ranges([(0, 30)]), uncompared_periods=30)
        _, nothing = await verify(s, values=True, start_ns=at(100))
        assert nothing == coverage_pb.VerifyResult(values=coverage_pb.ValueComparison())
        assert not (await s.relay.history.ListRequests(history_pb.ListRequestsRequest())).records
