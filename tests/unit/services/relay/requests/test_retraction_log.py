"""Retractions: durable first, in order, and the same after any loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from dexorder_common.clock import SystemClock
from dexorder_common.lake.coverage import Retraction
from dexorder_common.lake.tables import RETRACTIONS
from dexorder_common.model.dispatch_id import DispatchNumbers, number_of
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as rpb
from dexorder_relay.requests.retraction_log import RetractionLog, RetractionTable
from tests.fakes.pages import dispatch_id
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    OK,
    SERIES,
    TICKER,
    Suite,
    at,
    catalog_settings,
    coverage_row,
    minute,
    page,
    ranges,
    span,
    span_of,
    suite,
    write_coverage,
)


class StoppedClock(SystemClock):
    def wall_ns(self) -> int:
        return at(0) + 1


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = catalog_settings(tmp_path).load()
    yield made
    made.close()


async def test_the_table_is_made_when_needed_and_gives_back_what_was_written(catalog: Catalog) -> None:
    table = RetractionTable(catalog)
    assert table.read() == [] and not catalog.namespace_exists("trading")
    numbers = DispatchNumbers()
    retraction_log = RetractionLog(table, numbers, StoppedClock())
    one = await retraction_log.record(SERIES, [span(0, 10), span(20, 30)], "because")
    two = await retraction_log.record(SERIES, [span(0, 10)], "again")
    assert one.time_ns % 1_000 == 0 and one.time_ns // 1_000 == StoppedClock().wall_ns() // 1_000, "microseconds"
    assert (one.dispatch, two.dispatch, numbers.next()) == (1, 2, 3), "each is later, whatever the clock says"
    expected = [(span(0, 10), one), (span(0, 10), two), (span(20, 30), one)]
    assert sorted(RetractionTable(catalog).read()) == [Retraction(SERIES, *each) for each in expected]
    rows = catalog.load_table(RETRACTIONS.name).scan().to_arrow().to_pylist()
    assert sorted(row["reason"] for row in rows) == ["again", "because", "because"]


async def test_what_cannot_be_written_is_not_taken_back(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table, tries = RetractionTable(catalog), list[int]()
    append = table.append

    def broken(*_: Any) -> None:
        tries.append(1)
        raise OSError("no space left on device")

    monkeypatch.setattr(asyncio, "sleep", _at_once)
    monkeypatch.setattr(table, "append", broken)
    retraction_log = RetractionLog(table, DispatchNumbers(), SystemClock())
    with pytest.raises(Unavailable, match="coverage_retractions can't be written: no space"):
        await retraction_log.record(SERIES, [span(0, 10)], "")
    assert len(tries) > 1 and table.read() == []
    monkeypatch.setattr(table, "append", append)
    assert (await retraction_log.record(SERIES, [span(0, 10)], "")).dispatch > 0


async def _at_once(_: float) -> None:
    return None


# ---- a whole relay -------------------------------------------------------------------------------------------------


async def covered(s: Suite) -> list[tuple[int, int]]:
    request = rpb.StreamCoverageRequest(series=series(ticker=TICKER, period_seconds=60))
    found = [each async for answer in s.relay.coverage.StreamCoverage(request) for each in answer.ranges]
    return [(minute(each.start_ns), minute(each.end_ns)) for each in found]


async def lose_four_to_seven(s: Suite) -> None:
    """Report ten minutes and write their coverage; the table has seven of them."""
    snapshot_id = s.pipeline.write([0, 1, 2, 3, 7, 8, 9])
    await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 10)])
    write_coverage(s.pipeline.catalog, coverage_row(0, 10, fetched_ns=at(100)))
    await s.queued("r", 0, 10)
    record = await s.finished("r")
    assert (record.status, list(record.missing)) == (ERROR, ranges([(4, 7)]))


async def test_lost_rows_are_taken_back_for_good_whatever_the_relay_loses(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await lose_four_to_seven(s)
        assert await covered(s) == [(0, 4), (7, 10)]
        (made,) = RetractionTable(s.pipeline.catalog).read()
        assert (made.series, made.span) == (SERIES, span(4, 7)) and made.order.dispatch > number_of(EARLIER)
    async with suite(tmp_path) as s:
        assert await covered(s) == [(0, 4), (7, 10)], "with its database"
    for name in ("relay.db", "relay.db-wal", "relay.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    async with suite(tmp_path) as s:
        assert await covered(s) == [(0, 4), (7, 10)], "from the two tables alone"
        ingestor = await s.offering()
        await s.queued("again", 0, 10)
        (dispatch,) = await ingestor.work(s.pipeline, dispatches=1)
        assert span_of(dispatch) == (4, 7)
        again = await s.finished("again")
        assert (again.status, again.row_count) == (OK, 10), "a page that was fetched since counts"
        pages = rpb.StreamCoverageRequest(series=series(ticker=TICKER, period_seconds=60), detail=True)
        reported = [each async for answer in s.relay.coverage.StreamCoverage(pages) for each in answer.pages]
        assert [list(each.retracted) for each in reported] == [ranges([(4, 7)])]


async def test_a_retraction_that_a_kill_kept_from_the_database_is_followed_at_the_next_start(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(10)), pages=[page(EARLIER, 0, 10)])
        write_coverage(s.pipeline.catalog, coverage_row(0, 10, fetched_ns=at(100)))
        numbers = DispatchNumbers()
        numbers.restart(number_of(EARLIER), wall_ns=0)
        retraction_log = RetractionLog(RetractionTable(s.pipeline.catalog), numbers, SystemClock())
        await retraction_log.record(SERIES, [span(2, 5)], "killed behind this")
        assert await covered(s) == [(0, 10)]
    for _ in range(2):
        async with suite(tmp_path) as s:
            assert await covered(s) == [(0, 2), (5, 10)]


async def test_others_who_wait_for_what_is_lost_get_it_fetched(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = s.ingestor()
        await s.queued("longer", 0, 20)  # its job is for 10 to 20 once the rest is reported
        snapshot_id = s.pipeline.write([0, 1, 2, 3, 7, 8, 9])
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 10)])
        await s.queued("r", 0, 10)
        assert (await s.finished("r")).status == ERROR
        await ingestor.offer()
        done = await ingestor.work(s.pipeline, dispatches=2)
        assert sorted(minute(each.historical.start_time) for each in done) == [4, 10]
        longer = await s.finished("longer")
        assert (longer.status, longer.row_count) == (OK, 20)


async def test_late_pages_of_a_dispatch_from_before_do_not_count(tmp_path: Path) -> None:
    """They were in Kafka when the range was retracted, whatever their ingestor's clock says."""
    async with suite(tmp_path) as s:
        _, dispatch = await s.dispatched("before", 10, 20)
        await lose_four_to_seven(s)
        table = RetractionTable(s.pipeline.catalog)
        (made,) = table.read()
        late = page(dispatch_id(made.order.dispatch - 1), 0, 10)
        late.fetched_ns = MAX_TIME_NS
        await s.pipeline.report(pages=[late])
        assert await covered(s) == [(0, 4), (7, 10)]
        newer = page(dispatch_id(made.order.dispatch + 1), 0, 10)
        newer.fetched_ns = 1
        await s.pipeline.report(pages=[newer])
        assert await covered(s) == [(0, 10)]
        await s.pipeline.land(dispatch)
        assert (await s.finished("before")).status == OK
