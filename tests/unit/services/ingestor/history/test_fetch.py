"""Dispatches in which single candles or single queries stay bad."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods, open_times
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.dialect import CallLimits, CandleFacts, Dialect
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.one_venue import OneVenue
from tests.unit.services.ingestor.history.test_evidence import candle, opens, warm

Answer = Callable[[TimeRange, Collection[int]], list[Candle]]
NEXT_DAY_NS = minutes(1440, 0).start_ns


class Exchange(OneVenue):
    """An exchange with answers of a function."""

    limits = CallLimits(100, wide=True)
    dialect = Dialect("sim", CandleFacts(100, wide=True))

    def __init__(self, answer: Answer, *, now_ns: int, **settings: Any) -> None:
        super().__init__(warm(), now_ns=now_ns, **settings)
        self.answer = answer
        self.asked: list[TimeRange] = []

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        self.asked.append(window)
        return self.answer(window, skip)[: self.limits.candles], len(self.asked)


async def fetch(
    answer: Answer, *, now_ns: int = NEXT_DAY_NS, limit: int = 0, **settings: Any
) -> tuple[list[CandlePage], list[Missing]]:
    exchange = Exchange(answer, now_ns=now_ns, **{"page_candles": 98, **settings})
    return await exchange.fetch(Dispatch("j1", "r1", Series("BTC/USDT.SIM", 60), minutes(0, 300), limit=limit))


def all_but(*numbers: int) -> Answer:
    absent = set(opens(*numbers))
    return lambda window, skip: [candle(t) for t in open_times(window, 60) if t not in absent and t not in skip]


async def test_impossible_candles_alone_are_missing() -> None:
    bad = opens(0, 150, 151, 250, 320)
    whole = all_but(140, 260)

    def answer(window: TimeRange, skip: Collection[int]) -> list[Candle]:
        inside = [t for t in bad if window.start_ns <= t < window.end_ns and t not in skip]
        if inside:
            raise ImpossibleCandle(f"keeps answering {inside[0]}", inside)
        return [c for c in whole(window, skip) if c.open_ns not in bad]

    pages, missing = await fetch(answer)
    assert [m.span for m in missing] == [minutes(n, 1) for n in (0, 150, 151, 250)]
    assert [c.open_ns for p in pages for c in p.candles] == opens(
        *(n for n in range(300) if n not in (0, 140, 150, 151, 250, 260))
    )
    assert [r for p in pages for r in p.empty] == [minutes(140, 1), minutes(260, 1)]
    assert [(p.span.start_ns, p.span.end_ns) for p in pages] == [
        (opens(a)[0], opens(b)[0]) for a, b in ((1, 96), (96, 150), (152, 192), (192, 250), (251, 288), (288, 300))
    ]


async def test_too_many_impossible_candles_cost_their_pages() -> None:
    def answer(window: TimeRange, skip: Collection[int]) -> list[Candle]:
        bad = [t for t in open_times(window, 60) if t not in skip and t < opens(150)[0]]
        if bad:
            raise ImpossibleCandle("keeps answering rubbish", bad[:1])
        return [candle(t) for t in open_times(window, 60) if t not in skip]

    pages, missing = await fetch(answer)
    assert opens_in(pages) + sum(count_periods(m.span, 60) for m in missing) == 300
    assert pages[-1].span.end_ns == minutes(300, 0).start_ns
    assert not [p for p in pages if p.span.start_ns < opens(150)[0]]


async def test_a_page_that_fails_costs_no_other_page() -> None:
    whole = all_but()

    def answer(window: TimeRange, skip: Collection[int]) -> list[Candle]:
        if window.overlaps(minutes(120, 1)):
            raise ExchangeFailure("SIM stays bad")
        return whole(window, skip)

    pages, missing = await fetch(answer)
    assert [p.span for p in pages] == [minutes(0, 96), minutes(192, 96), minutes(288, 12)]
    assert list(map(str, missing)) == ["missing [2023-11-01T01:36:00Z, 2023-11-01T03:12:00Z): SIM stays bad"]


async def test_an_exchange_that_stays_bad_is_left_alone() -> None:
    asked = 0

    def answer(window: TimeRange, skip: Collection[int]) -> list[Candle]:
        nonlocal asked
        asked += 1
        raise ExchangeFailure("SIM stays bad")

    pages, missing = await fetch(answer, page_candles=10)
    assert (pages, asked) == ([], 3)
    assert missing == [Missing(minutes(0, 300), "SIM stays bad")]


def hole_that_stays_unproven(window: TimeRange, skip: Collection[int]) -> list[Candle]:
    """A real hole at 60; every answer but the first to a page lacks a known candle."""
    return (all_but(60) if window == minutes(0, 98) else all_but(59, 60))(window, skip)


async def test_limit_reached_before_an_unproven_hole_is_a_complete_answer() -> None:
    pages, missing = await fetch(hole_that_stays_unproven, evidence_queries=3, limit=50)
    assert [p.span for p in pages] == [minutes(0, 50)]
    assert missing == []


async def test_page_with_unproven_holes_is_settled_up_to_the_first() -> None:
    pages, missing = await fetch(hole_that_stays_unproven, evidence_queries=3)
    assert [p.span for p in pages] == [minutes(0, 60), *(minutes(*part) for part in ((96, 96), (192, 96), (288, 12)))]
    assert missing == [Missing(minutes(60, 36), "SIM's answers do not agree on which candles exist")]


def opens_in(pages: list[CandlePage]) -> int:
    return sum(len(p.candles) for p in pages)


async def test_exchange_that_changes_what_it_published_is_named() -> None:
    turn = 0

    def answer(window: TimeRange, skip: Collection[int]) -> list[Candle]:
        nonlocal turn
        turn += 1
        close = 1.5 if turn <= 2 else 1.6
        return [candle(t, close=close) for t in open_times(window, 60)]

    pages, missing = await fetch(answer)
    assert [p.span for p in pages] == [minutes(0, 96), minutes(96, 96)]
    (gap,) = missing
    assert gap.span == minutes(192, 108)
    assert "contradict each other" in gap.reason
    assert "another series" in gap.reason


@pytest.mark.parametrize(
    ("seconds_to_close", "close_wait_seconds", "missing"),
    [(3, 5, []), (5, 5, []), (6, 5, [minutes(299, 1)]), (66, 5, [minutes(298, 2)]), (3, 0, [minutes(299, 1)])],
)
async def test_wait_for_the_last_candle_is_limited(
    seconds_to_close: int, close_wait_seconds: int, missing: list[TimeRange]
) -> None:
    now_ns = minutes(300, 0).start_ns - seconds_to_close * SECOND_NS
    pages, found = await fetch(all_but(), now_ns=now_ns, close_wait_seconds=close_wait_seconds)
    assert [m.span for m in found] == missing
    assert opens_in(pages) == 300 - sum(len(open_times(m, 60)) for m in missing)
    assert all(m.reason == "not closed yet" for m in found)


async def test_range_in_the_future_is_entirely_missing() -> None:
    pages, missing = await fetch(all_but(), now_ns=minutes(-10, 0).start_ns)
    assert pages == []
    assert [m.span for m in missing] == [minutes(0, 300)]
