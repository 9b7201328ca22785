"""A client's request over provisional ranges has the exchange asked again before it is answered."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_relay.state.provisional import LOOK_AGE_NS, ProvisionalRanges
from dexorder_relay.verification import rechecker
from dexorder_relay.verification.rechecker import MAX_LOOK_PERIODS, MAX_LOOKS, latest
from tests.unit.services.relay.harness import SERIES, Suite, at, final_of, page, ranges, span, span_of, suite
from tests.unit.services.relay.verification.test_second_look import (
    CELL,
    HIDDEN,
    MINUTES,
    TRADED,
    answer_with_cells,
    fetch_a_thin_market,
    provisional_minutes,
)

OK = ingest.HistoryReadyNotification.OK
HELD = [0, 1, 2, 6, 7, 8, 9]


@asynccontextmanager
async def told_of_a_hole(folder: Path, *, seconds_ago: float) -> AsyncIterator[Suite]:
    """A relay of which a client has minutes [0, 10), with [3, 6) as provisionally empty."""
    clock = ManualClock(time.time_ns())
    async with suite(folder, clock=clock, recheck_after_seconds=(3_600.0,)) as s:
        _, dispatch = await s.dispatched("first", 0, 10)
        young = page(dispatch.job_id, 0, 10, provisional=[(3, 6)])
        await s.pipeline.report(snapshot_id=s.pipeline.upsert(HELD), pages=[young], finals=[final_of(dispatch.job_id)])
        assert list((await s.finished("first")).provisional) == ranges([(3, 6)])
        clock.advance(round(seconds_ago * SECOND_NS))
        yield s


async def land(s: Suite, dispatch: Any, minutes: list[int], **holes: Any) -> None:
    """Commit what the exchange has by now of a dispatch that queries [3, 6)."""
    assert dispatch.request_id.startswith("recheck-") and span_of(dispatch) == (3, 6)
    found = page(dispatch.job_id, 3, 6, **holes)
    await s.pipeline.report(
        snapshot_id=s.pipeline.upsert([*HELD, *minutes]), pages=[found], finals=[final_of(dispatch.job_id)]
    )


async def test_the_exchange_is_asked_before_the_answer_and_what_it_has_by_then_is_in_it(tmp_path: Path) -> None:
    async with told_of_a_hole(tmp_path, seconds_ago=31) as s:
        ingestor = await s.offering()
        await s.queued("again", 0, 10)
        dispatch = await ingestor.take()
        assert "queried again about 1 provisional" in (await s.record("again")).progress.waiting
        await land(s, dispatch, [3, 4, 5])
        record = await s.finished("again")
        assert (record.status, record.row_count, list(record.provisional)) == (OK, 10, [])


async def test_a_hole_that_the_exchange_repeats_stays_provisional_and_is_not_asked_about_for_half_a_minute(
    tmp_path: Path,
) -> None:
    async with told_of_a_hole(tmp_path, seconds_ago=31) as s:
        ingestor = await s.offering(2)
        await s.queued("again", 2, 10)
        await land(s, await ingestor.take(), [], provisional=[(3, 6)])
        await s.queued("third", 2, 10)
        for request_id in ("again", "third"):
            record = await s.finished(request_id)
            assert (record.status, record.row_count, list(record.provisional)) == (OK, 5, ranges([(3, 6)]))


async def test_a_young_answer_and_a_part_without_holes_need_no_look(tmp_path: Path) -> None:
    async with told_of_a_hole(tmp_path, seconds_ago=29) as s:
        await s.queued("young", 0, 10)
        assert list((await s.finished("young")).provisional) == ranges([(3, 6)])
    (tmp_path / "older").mkdir()
    async with told_of_a_hole(tmp_path / "older", seconds_ago=3_000) as s:
        await s.queued("beside", 6, 10)
        assert (await s.ended("beside")) == (OK, 4)


async def test_clients_that_ask_at_the_same_time_share_one_look(tmp_path: Path) -> None:
    async with told_of_a_hole(tmp_path, seconds_ago=31) as s:
        ingestor = await s.offering(2)
        for number in range(5):
            await s.queued(f"again-{number}", 0, 10)
        await land(s, await ingestor.take(), [3], empty=[(4, 6)])
        assert [await s.ended(f"again-{number}") for number in range(5)] == [(OK, 8)] * 5


async def test_an_exchange_that_does_not_answer_delays_a_request_for_a_while_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rechecker, "LOOK_SECONDS", 0.3)
    async with told_of_a_hole(tmp_path, seconds_ago=31) as s:
        await s.queued("again", 0, 10)  # no ingestor is free
        record = await s.finished("again")
        assert (record.status, record.row_count, list(record.provisional)) == (OK, 7, ranges([(3, 6)]))
        await land(s, await (await s.offering()).take(), [3], empty=[(4, 6)])  # the look goes on by itself


async def test_a_query_that_fails_leaves_the_hole_provisional(tmp_path: Path) -> None:
    async with told_of_a_hole(tmp_path, seconds_ago=31) as s:
        ingestor = await s.offering()
        await s.queued("again", 0, 10)
        dispatch = await ingestor.take()
        await s.pipeline.report(finals=[final_of(dispatch.job_id, ingest.DataResponse.ERROR, "it is down")])
        record = await s.finished("again")
        assert (record.status, list(record.provisional)) == (OK, ranges([(3, 6)]))


async def test_a_request_that_is_cancelled_while_it_waits_ends_at_once(tmp_path: Path) -> None:
    async with told_of_a_hole(tmp_path, seconds_ago=31) as s:
        ingestor = await s.offering()
        await s.queued("again", 0, 10)
        await ingestor.take()
        await s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="again"))
        assert (await s.record("again")).error_message == "cancelled"


@pytest.mark.parametrize("shows", [False, True], ids=["the same", "a candle more"])
async def test_a_thin_market_is_looked_at_by_its_coarser_candles_and_nothing_is_final(
    tmp_path: Path, shows: bool
) -> None:
    clock = ManualClock(time.time_ns())
    held = [m for m in TRADED if m != HIDDEN] if shows else TRADED
    async with suite(tmp_path, clock=clock, recheck_after_seconds=(3_600.0,)) as s:
        ingestor = await fetch_a_thin_market(s, held)
        absent = await provisional_minutes(s)
        clock.advance(LOOK_AGE_NS + 1)
        await s.queued("again", 0, MINUTES)
        await answer_with_cells(s, ingestor, TRADED)
        if shows:
            dispatch = await ingestor.take()
            assert span_of(dispatch) == (HIDDEN, HIDDEN + CELL)
            holes = [(m, m + 1) for m in range(HIDDEN, HIDDEN + CELL) if m not in TRADED]
            found = page(dispatch.job_id, HIDDEN, HIDDEN + CELL, provisional=holes)
            finals = [final_of(dispatch.job_id)]
            await s.pipeline.report(snapshot_id=s.pipeline.upsert(TRADED), pages=[found], finals=finals)
        assert await s.ended("again") == (OK, len(TRADED))
        assert await provisional_minutes(s) == absent - set(TRADED)


# ---- rules ----------------------------------------------------------------------------------------------------------


def test_the_latest_ranges_are_looked_at_and_no_more_than_a_few_calls() -> None:
    many = [span(number * 2_000, number * 2_000 + 1) for number in range(100)]
    assert latest(many, 60) == many[-MAX_LOOKS:]
    year = [span(0, 10), span(1_000, 500_000)]
    assert latest(year, 60) == [span(500_000 - MAX_LOOK_PERIODS, 500_000)]
    assert latest([], 60) == []


def test_what_was_looked_at_since_is_seen_whichever_range_the_look_had() -> None:
    found = ProvisionalRanges([3_600 * SECOND_NS])
    other = Series("ETH/USDT.SIM", 60)
    found.add(SERIES, [span(0, 10), span(20, 30)], now_ns=0)
    found.looked(SERIES, span(5, 22), asked_ns=100 * SECOND_NS, now_ns=101 * SECOND_NS)
    everything = TimeRange(at(0), at(100))
    unseen = [found.unseen(SERIES, everything, before_ns=second * SECOND_NS) for second in (-1, 0, 100, 101)]
    assert unseen == [[], [span(0, 5), span(22, 30)], [span(0, 5), span(22, 30)], [span(0, 10), span(20, 30)]]
    assert found.unseen(other, everything, before_ns=0) == []
    assert [len(found.due_within(SERIES, everything, now_ns=n * SECOND_NS)) for n in (3_599, 3_600)] == [0, 2]
