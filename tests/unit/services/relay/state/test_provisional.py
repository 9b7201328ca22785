"""Absences that are not final: rules of their queries, and the relay's part from the page to the announcement."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.clock import ManualClock
from dexorder_common.model.time_range import TimeRange, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_relay.requests import completion
from dexorder_relay.state.provisional import MANY_RANGES, Absence, AbsenceChange, ProvisionalRanges
from dexorder_relay.verification import rechecker
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    SERIES,
    TICKER,
    Suite,
    at,
    catalog_settings,
    coverage_row,
    final_of,
    make_tables,
    minute,
    page,
    ranges,
    span_of,
    suite,
    write_coverage,
)

MINUTE = 60 * SECOND_NS
DELAYS = [600 * SECOND_NS, 3_600 * SECOND_NS, 86_400 * SECOND_NS]
NOW = 1_000_000 * MINUTE


def span(first: int, last: int) -> TimeRange:
    return TimeRange(first * MINUTE, last * MINUTE)


def due(found: ProvisionalRanges, now_ns: int) -> list[TimeRange]:
    return [part for _, part, _ in found.due(now_ns=now_ns)]


def test_ranges_of_different_ages_that_are_added_together_are_due_each_at_its_time() -> None:
    """What is left of ranges of which a part was removed keeps its time."""
    found = ProvisionalRanges(DELAYS)
    found.add(SERIES, [span(10, 20)], now_ns=NOW)
    found.add(SERIES, [span(30, 40)], now_ns=NOW + 5 * MINUTE)
    found.remove(SERIES, [span(19, 20), span(30, 31)])
    assert due(found, NOW + DELAYS[0] - 1) == []
    assert due(found, NOW + DELAYS[0]) == [span(10, 19)]
    assert due(found, NOW + 5 * MINUTE + DELAYS[0]) == [span(10, 40)], "neighbours are joined"


def test_a_range_is_queried_after_each_delay_and_final_after_the_last() -> None:
    found = ProvisionalRanges(DELAYS)
    found.add(SERIES, [span(10, 20)], now_ns=NOW)
    for delay in DELAYS:
        assert due(found, NOW + delay - 1) == []
        assert due(found, NOW + delay) == [span(10, 20)]
        assert found.within(SERIES, span(0, 100)) == [span(10, 20)]
        found.queried(SERIES, span(10, 20), asked_ns=NOW + delay, now_ns=NOW + delay + SECOND_NS, answered=True)
    assert found.within(SERIES, span(0, 100)) == [] and found.counts() == {}


def test_only_ranges_that_were_due_count_a_query_that_reached_them() -> None:
    found = ProvisionalRanges(DELAYS)
    found.add(SERIES, [span(0, 1), span(100, 101)], now_ns=NOW)
    found.add(SERIES, [span(50, 51)], now_ns=NOW + DELAYS[0] - MINUTE)
    assert due(found, NOW + DELAYS[0]) == [span(0, 101)]  # one query for both ends
    found.queried(SERIES, span(0, 101), asked_ns=NOW + DELAYS[0], now_ns=NOW + DELAYS[0], answered=True)
    assert due(found, NOW + 2 * DELAYS[0]) == [span(50, 51)]


def test_a_query_without_an_answer_ends_nothing_and_is_repeated_daily_at_least() -> None:
    found = ProvisionalRanges(DELAYS)
    found.add(SERIES, [span(0, 1)], now_ns=NOW)
    now_ns, waits = NOW + DELAYS[0], []
    for _ in range(20):
        assert due(found, now_ns) == [span(0, 1)]
        found.queried(SERIES, span(0, 1), asked_ns=now_ns, now_ns=now_ns, answered=False)
        first = now_ns
        while not due(found, now_ns):
            now_ns += 60 * SECOND_NS
        waits.append(now_ns - first)
    assert waits[0] == DELAYS[0] and max(waits) == waits[-1] == DELAYS[-1]
    assert found.within(SERIES, span(0, 1))


def test_a_range_known_from_an_old_proof_is_queried_at_once_and_only_as_often_as_is_left() -> None:
    found = ProvisionalRanges(DELAYS)
    since_ns = NOW - 2 * DELAYS[1]
    found.add(SERIES, [span(0, 1)], now_ns=NOW, since_ns=since_ns)
    assert due(found, NOW) == [] and due(found, since_ns + DELAYS[2]) == [span(0, 1)]
    assert found.is_open(since_ns, now_ns=NOW) and not found.is_open(NOW - DELAYS[2], now_ns=NOW)


def test_many_ranges_are_one_without_the_parts_that_are_known() -> None:
    found = ProvisionalRanges(DELAYS)
    found.add(SERIES, [span(8, 9)], now_ns=NOW)
    few = [span(number, number + 1) for number in range(0, 2 * MANY_RANGES, 2)]
    assert [each.span for each in found.add(SERIES, few, now_ns=NOW).added] == [
        each for each in few if each != span(8, 9)
    ]
    found = ProvisionalRanges(DELAYS)
    found.add(SERIES, [span(9, 10)], now_ns=NOW)
    many = [*few, span(2 * MANY_RANGES, 2 * MANY_RANGES + 5)]
    assert [each.span for each in found.add(SERIES, many, now_ns=NOW).added] == [span(0, 9), span(10, 25)]


def test_ranges_are_unseen_without_a_look_since_a_time() -> None:
    found, asked_ns = ProvisionalRanges(DELAYS), NOW + 10 * SECOND_NS
    found.add(SERIES, [span(10, 20)], now_ns=NOW)
    found.add(SERIES, [span(30, 40)], now_ns=asked_ns + 1)
    assert found.unseen(SERIES, span(5, 100), before_ns=asked_ns) == [span(10, 20)], "the other one is younger"
    found.looked(SERIES, span(12, 15), asked_ns=asked_ns, now_ns=asked_ns)
    assert found.unseen(SERIES, span(11, 18), before_ns=asked_ns) == [span(11, 12), span(15, 18)]
    assert found.unseen(SERIES, span(10, 20), before_ns=asked_ns + 1) == [span(10, 20)], "the look is too old"


def test_without_delays_nothing_is_kept() -> None:
    found = ProvisionalRanges(())
    assert found.add(SERIES, [span(0, 1)], now_ns=NOW) == AbsenceChange()
    assert not found.is_open(NOW, now_ns=NOW)


def test_stored_ranges_are_queried_once_more_after_the_delays_were_removed_from_the_settings() -> None:
    for answered in (False, True):
        found = ProvisionalRanges(())
        found.load(SERIES, Absence(span(0, 1), NOW, 0, NOW))
        found.queried(SERIES, span(0, 1), asked_ns=NOW, now_ns=NOW, answered=answered)
        assert found.within(SERIES, span(0, 1)) == []


spans = st.builds(lambda start, length: span(start, start + length), st.integers(0, 60), st.integers(1, 12))
steps = st.one_of(
    st.tuples(st.just("add"), st.lists(spans, max_size=3)),
    st.tuples(st.just("remove"), st.lists(spans, max_size=3)),
    st.tuples(st.just("queried"), st.lists(spans, min_size=1, max_size=1)),
)


@given(st.lists(st.tuples(steps, st.integers(0, 90_000)), max_size=25))
def test_the_ranges_are_disjoint_and_the_stored_ones_are_those_in_memory(
    history: list[tuple[tuple[str, list[TimeRange]], int]],
) -> None:
    found, stored, known, now_ns = ProvisionalRanges(DELAYS), set[Absence](), list[TimeRange](), NOW
    for (step, parts), seconds in history:
        now_ns += seconds * SECOND_NS
        if step == "add":
            change = found.add(SERIES, parts, now_ns=now_ns)
            known = merge([*known, *parts])
        elif step == "remove":
            change = found.remove(SERIES, parts)
            known = subtract(known, parts)
        else:
            change = found.queried(SERIES, parts[0], asked_ns=now_ns, now_ns=now_ns, answered=True)
            gone = subtract([each.span for each in change.removed], [each.span for each in change.added])
            assert all(parts[0].contains(each) for each in gone)
            known = subtract(known, gone)
        assert set(change.removed) <= stored
        stored = (stored - set(change.removed)) | set(change.added)
        whole = found.within(SERIES, span(0, 1_000))
        assert whole == known == merge(each.span for each in stored)
        assert sum(each.span.end_ns - each.span.start_ns for each in stored) == sum(
            s.end_ns - s.start_ns for s in whole
        )
    again = ProvisionalRanges(DELAYS)
    for each in stored:
        again.load(SERIES, each)
    assert list(again.due(now_ns=now_ns + DELAYS[2])) == list(found.due(now_ns=now_ns + DELAYS[2]))


# ---- the relay ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecker, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(completion, "RETRY_NS", SECOND_NS // 5)


async def coverage_kinds(s: Suite) -> list[tuple[int, int, str]]:
    """Return the known ranges in minutes; provisional ones are marked."""
    found = []
    async for answer in s.relay.coverage.StreamCoverage(
        coverage_pb.StreamCoverageRequest(series=series(ticker=TICKER, period_seconds=60))
    ):
        for each in answer.ranges:
            kind = coverage_pb.CoverageKind.Name(each.kind).removeprefix("COVERAGE_KIND_").lower()
            found.append((minute(each.start_ns), minute(each.end_ns), kind + "?" * each.provisional))
    return found


async def fetch_with_a_young_hole(s: Suite) -> None:
    """Have minutes [0, 10) fetched by a client, of which [3, 6) are provisionally empty."""
    _, dispatch = await s.dispatched("first", 0, 10, client_id="me")
    snapshot_id = s.pipeline.upsert([0, 1, 2, 6, 7, 8, 9])
    young = page(dispatch.job_id, 0, 10, provisional=[(3, 6)])
    await s.pipeline.report(snapshot_id=snapshot_id, pages=[young], finals=[final_of(dispatch.job_id)])


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_young_hole_is_named_queried_again_and_announced_once_it_is_filled(
    tmp_path: Path, restarts: bool
) -> None:
    delays = (1.0, 2.0)
    async with suite(tmp_path, recheck_after_seconds=delays) as s:
        await fetch_with_a_young_hole(s)
        record = await s.finished("first")
        assert record.status == ingest.HistoryReadyNotification.OK
        assert list(record.provisional) == ranges([(3, 6)])
        told = await s.notification("RESPONSE:me")
        assert list(told.provisional) == ranges([(3, 6)]) and not told.revised
        assert await coverage_kinds(s) == [(0, 3, "rows"), (3, 6, "empty?"), (6, 10, "rows")]
        if not restarts:
            await fill(s, told.cursor)
    if restarts:
        async with suite(tmp_path, recheck_after_seconds=delays) as s:
            await fill(s, told.cursor)


async def fill(s: Suite, cursor: common_pb2.Cursor) -> None:
    """Answer the relay's own query with two of three candles; the third is absent for good."""
    ingestor = await s.offering()
    dispatch = await ingestor.take()
    asked = dispatch.historical
    assert dispatch.request_id.startswith("recheck-") and not dispatch.client_id
    assert (minute(asked.start_time), minute(asked.end_time)) == (3, 6)
    assert (3, 6, "empty?") in await coverage_kinds(s)  # coverage is in force while it is queried
    snapshot_id = s.pipeline.upsert([0, 1, 2, 3, 4, 6, 7, 8, 9])
    final_page = page(dispatch.job_id, 3, 6, empty=[(5, 6)])
    await s.pipeline.report(snapshot_id=snapshot_id, pages=[final_page], finals=[final_of(dispatch.job_id)])
    assert await coverage_kinds(s) == [(0, 5, "rows"), (5, 6, "empty"), (6, 10, "rows")]
    for topic, after in ((f"REVISED:{TICKER}", None), ("RESPONSE:me", cursor)):
        found = await s.notification(topic, after)
        assert found.ready.request_id == dispatch.request_id
        assert list(found.revised) == ranges([(3, 5)]) and not found.provisional
        assert (found.ready.start_time, found.ready.end_time) == (at(3), at(6))
        assert found.ready.row_count == 2
    record = await s.record("first")
    assert record.status == ingest.HistoryReadyNotification.OK and record.row_count == 7  # its one status stays


async def test_a_query_that_finds_nothing_announces_nothing_and_the_last_one_is_final(tmp_path: Path) -> None:
    async with suite(tmp_path, recheck_after_seconds=(0.5, 1.0)) as s:
        await fetch_with_a_young_hole(s)
        ingestor = s.ingestor()
        for _ in range(2):
            await ingestor.offer()
            dispatch = await ingestor.take()
            again = page(dispatch.job_id, 3, 6, provisional=[(3, 6)])
            await s.pipeline.report(pages=[again], finals=[final_of(dispatch.job_id)])
            assert (await s.finished(dispatch.request_id)).status == ingest.HistoryReadyNotification.NOT_FOUND
        assert await coverage_kinds(s) == [(0, 3, "rows"), (3, 6, "empty"), (6, 10, "rows")]
        late = page(dispatch.job_id, 3, 6, provisional=[(3, 6)])
        await s.pipeline.report(pages=[late])  # reported again
        assert (3, 6, "empty") in await coverage_kinds(s)


async def test_only_clients_that_were_told_of_the_absence_are_told_of_its_candles(tmp_path: Path) -> None:
    async with suite(tmp_path, recheck_after_seconds=(0.5,)) as s:
        await fetch_with_a_young_hole(s)
        told = await s.notification("RESPONSE:me")
        for name, start, end in (("before", 0, 3), ("head", 0, 4), ("tail", 5, 10), ("whole", 0, 10)):
            await s.queued(name, start, end, client_id=name)
            await s.finished(name)
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        snapshot_id = s.pipeline.upsert([0, 1, 2, 4, 6, 7, 8, 9])
        again = page(dispatch.job_id, 3, 6, empty=[(3, 4), (5, 6)])
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[again], finals=[final_of(dispatch.job_id)])
        await s.notification("RESPONSE:me", told.cursor)
    with closing(sqlite3.connect(tmp_path / "relay.db")) as connection:
        sql = "SELECT topic FROM notifications WHERE request_id = ?"
        topics = {topic for (topic,) in connection.execute(sql, (dispatch.request_id,))}
    own = f"HISTORY_READY:{dispatch.request_id}"
    assert topics == {own, f"REVISED:{TICKER}", "RESPONSE:me", "RESPONSE:whole"}


async def test_a_client_waits_for_the_report_of_candles_that_a_query_has_committed(tmp_path: Path) -> None:
    async with suite(tmp_path, recheck_after_seconds=(0.5, 60.0)) as s:
        await fetch_with_a_young_hole(s)
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        snapshot_id = s.pipeline.upsert(range(10))  # committed, and not reported yet
        await s.queued("second", 0, 10)
        async for answer in s.relay.history.WatchProgress(
            history_pb.WatchProgressRequest(request_id="second"), timeout=30
        ):
            if "not reported yet" in answer.progress.waiting:
                break
            assert answer.state != history_pb.REQUEST_STATE_FINISHED
        found = [page(dispatch.job_id, 3, 6)]
        await s.pipeline.report(snapshot_id=snapshot_id, pages=found, finals=[final_of(dispatch.job_id)])
        assert await s.ended("second") == (ingest.HistoryReadyNotification.OK, 10)


async def test_a_query_that_fails_names_its_range_and_leaves_coverage(tmp_path: Path) -> None:
    async with suite(tmp_path, recheck_after_seconds=(0.5, 60.0)) as s:
        await fetch_with_a_young_hole(s)
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        failed = final_of(dispatch.job_id, ingest.DataResponse.ERROR, "the exchange is down")
        await s.pipeline.report(finals=[failed])
        record = await s.finished(dispatch.request_id)
        assert record.status == ingest.HistoryReadyNotification.ERROR and list(record.missing) == ranges([(3, 6)])
        assert "the exchange is down" in record.error_message and record.recheck
        assert await coverage_kinds(s) == [(0, 3, "rows"), (3, 6, "empty?"), (6, 10, "rows")]


async def test_a_relay_that_lost_its_database_derives_the_ranges_and_one_that_has_it_adds_none(tmp_path: Path) -> None:
    """The claims are in the table for good, also of ranges that have become final since."""
    catalog = catalog_settings(tmp_path).load()
    make_tables(catalog)
    clock = ManualClock(time.time_ns())
    asked_ns = clock.wall_ns()
    write_coverage(
        catalog,
        coverage_row(0, 10, fetched_ns=asked_ns, dispatch=1, empty=[(0, 10)]),
        coverage_row(10, 20, fetched_ns=asked_ns - 3_600 * SECOND_NS, dispatch=2, empty=[(12, 20)]),
    )
    delays = (1.0, 600.0)
    async with suite(tmp_path, recheck_after_seconds=delays, clock=clock) as s:
        s.pipeline.write([10, 11])
        assert await coverage_kinds(s) == [(0, 10, "empty?"), (10, 12, "rows"), (12, 20, "empty")]
        clock.advance(SECOND_NS)
        ingestor = await s.offering()
        dispatch = await ingestor.take()
        assert span_of(dispatch) == (0, 10)
        proven = page(dispatch.job_id, 0, 10, empty=[(0, 10)])
        await s.pipeline.report(pages=[proven], finals=[final_of(dispatch.job_id)])
        await s.finished(dispatch.request_id)
        settled = [(0, 10, "empty"), (10, 12, "rows"), (12, 20, "empty")]
        assert await coverage_kinds(s) == settled
    async with suite(tmp_path, recheck_after_seconds=delays, clock=clock) as s:
        assert await coverage_kinds(s) == settled
