"""Jobs whose ingestors fail repeatedly: a real broker, scripted ingestors on real sockets."""

from __future__ import annotations

from pathlib import Path

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from tests.unit.services.relay.harness import ERROR, OK, Suite, minute, page, ranges, suite


async def attempt(s: Suite, pages: int = 0, *, killed: bool = False) -> ingest.DataRequest:
    """Take a job with a new ingestor, report pages of ten candles, and leave: with a message, or killed."""
    ingestor = await s.offering()
    dispatch = await ingestor.take()
    first = minute(dispatch.historical.start_time)
    for start in range(first, first + pages * 10, 10):
        assert await ingestor.page(dispatch.job_id, start, start + 10)
    if killed:
        ingestor.socket.close()
    else:
        await ingestor.send(ingest.WorkComplete(job_id=dispatch.job_id, success=False, error_message="stopped"))
    return dispatch


async def test_a_backfill_outlives_any_number_of_ingestors_as_long_as_pages_come_now_and_then(tmp_path: Path) -> None:
    async with suite(tmp_path, max_attempts=3) as s:
        await s.queued("r", 0, 50)
        lost = [await attempt(s, pages) for pages in (0, 0, 1, 0, 0, 1, 0, 0, 2, 0)]
        assert [minute(d.historical.start_time) for d in lost] == [0, 0, 0, 10, 10, 10, 20, 20, 20, 40]
        for dispatch, pages in ((lost[2], 1), (lost[5], 1), (lost[8], 2)):
            first = minute(dispatch.historical.start_time)
            snapshot_id = s.pipeline.write(range(first, first + pages * 10))
            await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(dispatch.job_id, first, first + pages * 10)])
        ingestor = await s.offering()
        await ingestor.work(s.pipeline, dispatches=1)
        assert await s.ended("r") == (OK, 50)


async def test_a_page_that_no_ingestor_lived_to_report_counts_once_it_is_committed(tmp_path: Path) -> None:
    async with suite(tmp_path, max_attempts=2) as s:
        await s.queued("r", 0, 40)
        for start in (0, 10, 20):
            first = await attempt(s)
            ingestor = await s.offering()
            second = await ingestor.take()
            assert minute(first.historical.start_time) == minute(second.historical.start_time) == start
            committed = page(second.job_id, start, start + 10)
            await s.pipeline.report(snapshot_id=s.pipeline.write(range(start, start + 10)), pages=[committed])
            await ingestor.send(ingest.WorkComplete(job_id=second.job_id, success=False, error_message="stopped"))
        ingestor = await s.offering()
        await ingestor.work(s.pipeline, dispatches=1)
        assert await s.ended("r") == (OK, 40)


async def test_a_page_that_kills_every_ingestor_ends_the_request_and_what_is_missing_is_named(tmp_path: Path) -> None:
    async with suite(tmp_path, max_attempts=2, lease_seconds=1) as s:
        await s.queued("r", 0, 40)
        lost = [await attempt(s, pages, killed=True) for pages in (0, 2, 0, 0)]
        assert [minute(d.historical.start_time) for d in lost] == [0, 0, 20, 20]
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(20)), pages=[page(lost[1].job_id, 0, 20)])
        record = await s.finished("r")
        assert (record.status, record.row_count, list(record.missing)) == (ERROR, 20, ranges([(20, 40)]))
        assert record.error_message == (
            "given up after 2 attempts in a row without a page, the last because its lease expired; "
            "missing [2024-01-01T00:20:00Z, 2024-01-01T00:40:00Z)"
        )


async def test_attempts_are_counted_on_after_a_restart_of_the_relay(tmp_path: Path) -> None:
    async with suite(tmp_path, max_attempts=3) as s:
        await s.queued("r", 0, 20)
        _, fruitful, _ = [await attempt(s, pages) for pages in (0, 1, 0)]
        ingestor = await s.offering()
        held = await ingestor.take()
    async with suite(tmp_path, max_attempts=3) as s:
        ingestor = s.ingestor()
        await ingestor.send(ingest.WorkComplete(job_id=held.job_id, success=False, error_message="stopped"))
        for _ in range(2):  # the third loss of the relay before is not counted: a proven ingestor was there
            await attempt(s)
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(10)), pages=[page(fruitful.job_id, 0, 10)])
        record = await s.finished("r")
        assert (record.status, record.row_count, list(record.missing)) == (ERROR, 10, ranges([(10, 20)]))
