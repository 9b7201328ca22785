"""What one dispatch proves about a long range without candles serves the market's other dispatches."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from services.common.model.periods import split_by_periods
from services.common.model.proof import SPREAD_NS, Proof, ProofKind
from services.common.model.time_range import TimeRange, merge
from services.ingestor.exchange.dialects.table import CallLimits
from services.ingestor.history.absences import MAX_AGE_NS, KnownAbsences
from services.ingestor.history.fetch import Fetcher
from services.ingestor.history.job import Missing
from services.ingestor.history.paging import Page
from tests.unit.services.ingestor.history.simulated.exchange import Exchange
from tests.unit.services.ingestor.history.simulated.world import History, Untruth, World
from tests.unit.services.ingestor.history.test_evidence import warm

CELLS = (300, 900, 3600, 14_400, 86_400)


def proof(start: int, end: int, last_ns: int = 0) -> Proof:
    return Proof(TimeRange(start, end), ProofKind.ODDS, 8, last_ns, last_ns)


def test_the_longest_known_range_from_a_start_is_cut_to_what_is_asked() -> None:
    known = KnownAbsences()
    for start, end in ((0, 50), (0, 80), (30, 100)):
        known.note("A", proof(start, end))
    assert known.at_start("A", TimeRange(20, 60), now_ns=0) == proof(20, 60)
    assert known.at_start("A", TimeRange(20, 90), now_ns=0) == proof(20, 80)
    assert known.at_start("A", TimeRange(100, 120), now_ns=0) is None
    assert known.at_start("B", TimeRange(20, 60), now_ns=0) is None
    assert known.turn("A") is known.turn("A")


def test_an_absence_is_forgotten_before_the_relay_queries_it_again() -> None:
    known = KnownAbsences()
    known.note("A", proof(0, 50))
    assert known.at_start("A", TimeRange(0, 50), now_ns=MAX_AGE_NS - 1)
    assert known.at_start("A", TimeRange(0, 50), now_ns=MAX_AGE_NS) is None
    assert MAX_AGE_NS < SPREAD_NS


MINUTES, SIZE = 200_000, 50_000


def fetch_parts(exchange: Exchange) -> tuple[list[Page], list[Missing]]:
    """Run a dispatch for every 50,000 minutes, one after the other, as one ingestor."""
    pages: list[Page] = []

    async def put(page: Page) -> None:
        pages.append(page)

    async def run() -> list[Missing]:
        missing: list[Missing] = []
        for part in split_by_periods(exchange.world.span, 60, SIZE):
            job, venue = replace(exchange.world.job, span=part), cast(Any, exchange)
            missing += await Fetcher(job, venue, venue, exchange.agreement).run(put)
        return missing

    return pages, asyncio.run(run())


@pytest.mark.parametrize(("limits", "most_calls"), [(CallLimits(300), 90), (CallLimits(1_000, wide=True), 40)])
def test_months_before_a_listing_are_proven_by_a_few_coarse_calls(limits: CallLimits, most_calls: int) -> None:
    world = World(7, History(listed=MINUTES), MINUTES + 60, 60, limits, page=1_000, cells=CELLS)
    exchange = Exchange(world)
    exchange.agreement = warm()
    pages, missing = fetch_parts(exchange)
    assert not missing
    assert {c.open_ns for page in pages for c in page.candles} == set(world.truth)
    assert merge(part for page in pages for part in page.empty) == [TimeRange(world.open_ns(0), world.open_ns(MINUTES))]
    assert all(p.is_provisional for page in pages for p in page.proofs if page.empty)
    assert exchange.calls <= most_calls


def test_what_was_absent_for_a_while_is_not_taken_for_a_listing() -> None:
    """Everything is absent during the first dispatch only; the others query their own ends."""
    limits = CallLimits(300)
    untruth = Untruth(-150, MINUTES + 300, lasts_s=5.0)
    world = World(7, History(), MINUTES, 60, limits, page=1_000, cells=CELLS, untruth=untruth)
    exchange = Exchange(world)
    exchange.agreement = warm()
    pages, missing = fetch_parts(exchange)
    found = {c.open_ns for page in pages for c in page.candles}
    named = merge([*(m.span for m in missing), *(p.span for page in pages for p in page.proofs if p.is_provisional)])
    assert not [t for t in world.truth if t not in found and not any(e.start_ns <= t < e.end_ns for e in named)]
    assert len(found) >= MINUTES - SIZE
