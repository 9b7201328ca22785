"""The newest candles of a finished request are fetched again a minute later, and what has changed is announced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.history import HistoryRequest, Outcome, RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.verification import newest_values
from dexorder_relay.verification.newest_values import AFTER_NS, MAX_WAIT_NS, Look, NewestLooks, newest
from tests.unit.services.relay.harness import SERIES, TICKER, Suite, at, final_of, page, ranges, span, span_of, suite

MINUTE_NS = 60 * SECOND_NS


@pytest.mark.parametrize(
    ("end", "missing", "expected"),
    [
        (100, [], (89, 100)),
        (100, [(98, 100)], (89, 98)),  # of an answer that lacks the last ones
        (100, [(85, 100)], None),
        (90, [], (89, 90)),
        (89, [], None),
        (100, [(80, 95)], (95, 100)),
    ],
)
def test_the_newest_candles_are_those_of_the_last_ten_minutes(
    end: int, missing: list[tuple[int, int]], expected: tuple[int, int] | None
) -> None:
    status = RequestStatus.ERROR if missing else RequestStatus.OK
    outcome = Outcome(status, "", at(end), 0, missing=tuple(span(*each) for each in missing))
    request = HistoryRequest("r", TICKER, at(0), at(end), 60)
    assert newest(request, outcome, now_ns=at(99) + 30 * SECOND_NS) == (expected and span(*expected))


def test_a_longer_period_has_one_candle_and_a_request_without_an_answer_has_none() -> None:
    day = HistoryRequest("r", TICKER, 0, 10 * 86_400 * SECOND_NS, 86_400)
    now_ns = day.end_ns + MINUTE_NS
    outcome = Outcome(RequestStatus.OK, "", day.end_ns, 0)
    assert newest(day, outcome, now_ns=now_ns) == TimeRange(9 * 86_400 * SECOND_NS, day.end_ns)
    for status in (RequestStatus.TIMEOUT, RequestStatus.NOT_FOUND):
        assert newest(day, Outcome(status, "", day.end_ns, 0), now_ns=now_ns) is None


def test_a_chart_that_polls_each_second_costs_one_look_a_minute_with_all_of_its_candles() -> None:
    looks, found = NewestLooks(), list[tuple[int, Look]]()
    for second in range(601):
        now_ns = second * SECOND_NS
        looks.add(SERIES, TimeRange(at(second // 60), at(second // 60 + 1)), now_ns=now_ns)
        for series, look in list(looks.due(now_ns=now_ns)):
            looks.remove(series)
            found.append((second, look))
    assert [second for second, _ in found] == list(range(60, 601, 61))
    assert all(look.span.end_ns >= at(second // 60) for second, look in found), "none is forgotten"


def test_series_that_wait_are_bounded_and_none_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_values, "MAX_SERIES", 3)
    looks = NewestLooks()
    for number in range(5):
        looks.add(Series(f"C{number}/USDT.SIM", 60), span(0, 1), now_ns=number)
    waiting = [series.ticker for series, _ in looks.due(now_ns=AFTER_NS + 5)]
    assert waiting == [f"C{number}/USDT.SIM" for number in (2, 3, 4)]
    assert not list(looks.due(now_ns=AFTER_NS + MAX_WAIT_NS + 5))
    assert not list(looks.due(now_ns=AFTER_NS + 5)), "they are left out for good"


async def fetched(s: Suite, request_id: str = "first") -> Any:
    """Let a client have minutes [90, 100); return the ingestor."""
    ingestor, dispatch = await s.dispatched(request_id, 90, 100)
    await s.pipeline.land(dispatch)
    await s.finished(request_id)
    return ingestor


async def test_a_value_that_the_exchange_has_changed_is_the_row_and_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_values, "INTERVAL_SECONDS", 0.02)
    clock = ManualClock(at(100) + 10 * SECOND_NS)
    async with suite(tmp_path, clock=clock) as s:
        ingestor = await fetched(s)
        await ingestor.offer()
        clock.advance(AFTER_NS)
        again = await ingestor.take()
        assert again.request_id.startswith("newest-") and span_of(again) == (90, 100)
        s.pipeline.upsert([97, 98], close=3.5)
        await s.pipeline.report(
            snapshot_id=s.pipeline.snapshot_id(),
            pages=[page(again.job_id, 90, 100)],
            finals=[final_of(again.job_id)],
        )
        told = await s.notification(f"REVISED:{TICKER}")
        assert told.ready.request_id == again.request_id
        assert list(told.revised) == ranges([(97, 99)])


async def test_what_has_not_changed_is_not_announced_and_the_look_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_values, "INTERVAL_SECONDS", 0.02)
    clock = ManualClock(at(100) + 10 * SECOND_NS)
    async with suite(tmp_path, clock=clock) as s:
        ingestor = await fetched(s)
        await ingestor.offer(2)
        clock.advance(AFTER_NS)
        again = await ingestor.take()
        await s.pipeline.report(
            snapshot_id=s.pipeline.upsert(list(range(90, 100))),
            pages=[page(again.job_id, 90, 100)],
            finals=[final_of(again.job_id)],
        )
        assert not list((await s.finished(again.request_id)).revised)
        clock.advance(2 * AFTER_NS)
        await s.queued("next", 90, 101)  # the one that was not covered
        assert span_of(await ingestor.take()) == (100, 101)
