"""Dispatches whose candles come from numbered trades: calls, proofs, and what is untrue for a while."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import floor_to_grid, open_times
from dexorder_common.model.proof import ProofKind
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialects.kraken import DIALECT, read_trades
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from dexorder_ingestor.exchange.trade_pager import PagerQuery, TradePager
from dexorder_ingestor.exchange.trades import TradeRow
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.one_venue import OneVenue

DAY = 1_440
START_S = minutes(0, 0).start_ns // SECOND_NS
Rows = list[list[Any]]


def market(times_s: Collection[float], *, first_id: int = 1, numbered: bool = True) -> Rows:
    """Return raw trades at these seconds after the start, each with a price of its own."""
    rows: Rows = [[f"{n % 97 + 1}.5", "0.1", START_S + t, "b", "l", ""] for n, t in enumerate(sorted(times_s))]
    return [[*row, first_id + n] for n, row in enumerate(rows)] if numbered else rows


class Kraken(OneVenue):
    """An exchange with these trades; the clock moves by calls and by sleeping."""

    dialect = replace(DIALECT, candles=replace(DIALECT.candles, limit=240))
    limits = dialect.candles.limits
    offered = (60,)

    def __init__(self, rows: Rows, *, now_ns: int, page: int = 1_000) -> None:
        super().__init__(Agreement(), now_ns=now_ns, hole_spacing_seconds=0.2)
        self.rows = rows
        self.page = page
        self.calls = 0
        self.absent: tuple[float, float, int] = (0, 0, 0)
        """Trades of these seconds are absent until this time."""
        self.late_ns = 0

    def answer(self, query: PagerQuery) -> list[TradeRow]:
        self.calls += 1
        self.clock_ns += SECOND_NS // 10
        first_s, last_s, until_ns = self.absent
        shown = []
        for row in self.rows:
            time_ns = round(row[2] * SECOND_NS)
            hidden = first_s <= row[2] - START_S < last_s and self.clock_ns < until_ns
            if time_ns >= query.since_ns and time_ns + self.late_ns <= self.clock_ns and not hidden:
                shown.append(row)
        shown = shown[: self.page]
        last = round(shown[-1][2] * SECOND_NS) if shown else query.since_ns
        return read_trades(shown, str(last), since_ns=query.since_ns)

    async def trades(self, symbol: str, query: PagerQuery, pager: TradePager) -> int:
        """Try as often as a session does."""
        for attempt in range(8):
            try:
                pager.add(self.answer(query))
            except BadAnswer as error:
                if error.opens:
                    raise ImpossibleCandle(str(error), error.opens) from error
                if attempt == 7:
                    raise ExchangeFailure(str(error)) from error
            else:
                return self.clock_ns
        raise AssertionError

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        pager = TradePager(window, 60, candles=240, answers=8, page=self.page, skip=skip)
        while query := pager.next_query():
            await self.trades(symbol, query, pager)
        return pager.candles(), self.clock_ns


async def fetch(exchange: Kraken, periods: int, limit: int = 0) -> tuple[list[CandlePage], list[Missing]]:
    job = Dispatch("j1", "r1", Series("BTC/USD.SIM", 60), minutes(0, periods), limit=limit)
    pages, missing = await exchange.fetch(job)
    parts = sorted([*(page.span for page in pages), *(m.span for m in missing)])
    assert limit or merge(parts) == [minutes(0, periods)]
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(parts))
    for page in pages:
        filled = [c.open_ns for c in page.candles] + [t for r in page.empty for t in open_times(r, 60)]
        assert sorted(filled) == open_times(page.span, 60)
        assert merge(p.span for p in page.proofs) == [page.span]
    return pages, missing


def found(pages: list[CandlePage]) -> dict[int, int | None]:
    """Return the number of trades of each candle."""
    return {c.open_ns: c.trade_count for page in pages for c in page.candles}


def counted(rows: Rows, periods: int) -> dict[int, int]:
    """Return the number of trades of each minute, by another way than the code."""
    counts: dict[int, int] = {}
    for row in rows:
        number = int((row[2] - START_S) // 60)
        if 0 <= number < periods:
            open_ns = minutes(number, 0).start_ns
            counts[open_ns] = counts.get(open_ns, 0) + 1
    return counts


def spread(count: int, minutes_: int, *, seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [-30.0, *(dice.randrange(minutes_ * 6_000) / 100 for _ in range(count)), minutes_ * 60 + 1.0]


def kinds(pages: list[CandlePage]) -> set[ProofKind]:
    return {proof.kind for page in pages for proof in page.proofs}


async def test_ids_prove_three_days_in_as_many_calls_as_a_walk() -> None:
    rows = market(spread(4_520, 3 * DAY))
    exchange = Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns)
    pages, missing = await fetch(exchange, 3 * DAY)
    assert (missing, found(pages)) == ([], counted(rows, 3 * DAY))
    assert exchange.calls <= 6
    assert kinds(pages) == {ProofKind.TRADE_IDS}
    assert not any(proof.is_provisional for page in pages for proof in page.proofs)


async def test_range_before_the_first_trade_is_only_likely() -> None:
    rows = market([6_000.0, 6_100.0, 12_001.0])
    pages, missing = await fetch(Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns), 200)
    assert (missing, found(pages)) == ([], counted(rows, 200))
    proofs = [(p.kind, p.span) for page in pages for p in page.proofs]
    assert proofs == [(ProofKind.ODDS, minutes(0, 101)), (ProofKind.TRADE_IDS, minutes(101, 99))]


async def test_skipped_id_is_only_likely() -> None:
    rows = market(spread(100, 200))
    del rows[50]
    pages, missing = await fetch(Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns), 200)
    assert (missing, found(pages)) == ([], counted(rows, 200))
    (part,) = [p.span for page in pages for p in page.proofs if p.kind is ProofKind.ODDS]
    first_ns, last_ns = (floor_to_grid(round(rows[n][2] * SECOND_NS), 60) for n in (49, 50))
    assert part == TimeRange(first_ns, last_ns + 60 * SECOND_NS)


async def test_trades_without_ids_need_answers_that_agree() -> None:
    rows = market(spread(100, 200), numbered=False)
    pages, missing = await fetch(Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns), 200)
    assert (missing, found(pages)) == ([], counted(rows, 200))
    assert kinds(pages) == {ProofKind.ODDS}


async def test_limit_is_reached_without_walking_on() -> None:
    rows = market(spread(20_000, DAY))
    exchange = Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns)
    pages, missing = await fetch(exchange, DAY, limit=30)
    assert missing == []
    assert list(found(pages).items()) == sorted(counted(rows, DAY).items())[:30]
    assert exchange.calls <= 2


async def test_moment_that_cannot_be_passed_costs_its_page() -> None:
    rows = market([*spread(50, 2_100), *[40_000.0] * 1_200])
    pages, missing = await fetch(Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns), 2_100)
    assert [m.span for m in missing] == [minutes(0, 1_000)]
    assert "no query reaches past them" in missing[0].reason
    assert found(pages) == {t: n for t, n in counted(rows, 2_100).items() if t >= minutes(1_000, 0).start_ns}


async def test_impossible_trade_costs_its_candle() -> None:
    rows = market(spread(50, 100))
    rows[20][0] = "0.0"
    bad_ns = floor_to_grid(round(rows[20][2] * SECOND_NS), 60)
    pages, missing = await fetch(Kraken(rows, now_ns=minutes(5 * DAY, 0).start_ns), 100)
    assert [m.span for m in missing] == [TimeRange(bad_ns, bad_ns + 60 * SECOND_NS)]
    assert found(pages) == {t: n for t, n in counted(rows, 100).items() if t != bad_ns}


@pytest.mark.parametrize("late_s", [1, 5, 60, 590])
async def test_trades_that_are_late_are_never_absent(late_s: int) -> None:
    """Up to now: a candle that may still lack trades is missing, and so is what follows it."""
    rows = market([-30.0, *(n * 20.0 for n in range(180))])
    exchange = Kraken(rows, now_ns=minutes(60, 0).start_ns)
    exchange.late_ns = late_s * SECOND_NS
    pages, missing = await fetch(exchange, 60)
    truth = counted(rows, 60)
    assert all(truth[t] == n for t, n in found(pages).items())
    assert not [r for page in pages for r in page.empty]
    assert all("not settled yet" in m.reason for m in missing)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    trades=st.integers(0, 300),
    page=st.sampled_from([40, 1_000]),
    first_s=st.floats(-100, 12_000),
    lasts_s=st.floats(1, 12_000),
    until_s=st.sampled_from([0.2, 1.0, 5.0, 30.0, 60.0, 600.0]),
    age_s=st.sampled_from([0, 30, 700, 90_000]),
)
async def test_trades_that_are_absent_for_a_while_are_never_lost_for_good(
    seed: int, trades: int, page: int, first_s: float, lasts_s: float, until_s: float, age_s: int
) -> None:
    rows = market(spread(trades, 200, seed=seed)[: -1 if age_s < 30 else None])
    exchange = Kraken(rows, now_ns=minutes(200, 0).start_ns + age_s * SECOND_NS, page=page)
    exchange.absent = first_s, first_s + lasts_s, exchange.clock_ns + round(until_s * SECOND_NS)
    pages, _ = await fetch(exchange, 200)
    truth = counted(rows, 200)
    provisional = [p.span for q in pages for p in q.proofs if p.is_provisional]
    for t in open_times(minutes(0, 200), 60):
        if any(q.span.start_ns <= t < q.span.end_ns for q in pages) and found(pages).get(t, 0) != truth.get(t, 0):
            assert any(p.start_ns <= t < p.end_ns for p in provisional)
