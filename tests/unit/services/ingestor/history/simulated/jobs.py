"""Run of a simulated job, with or without deaths of the ingestor, and checks of its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from structlog.testing import capture_logs

from dexorder_common.model.history import Dispatch
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import ceil_to_grid, floor_to_grid, next_open, open_times, split_by_periods
from dexorder_common.model.proof import provisional_ranges
from dexorder_common.model.time_range import TimeRange, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage, page_periods
from dexorder_relay.state.provisional import MANY_RANGES
from dexorder_relay.verification.rechecker import judge
from tests.unit.services.ingestor.history.simulated.exchange import FAILURE, Exchange, Killed
from tests.unit.services.ingestor.history.simulated.world import World


@dataclass
class Outcome:
    """Pages and missing parts of a job."""

    world: World
    exchange: Exchange
    pages: list[CandlePage] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def candles(self) -> dict[int, Candle]:
        """Open time -> candle, of all pages."""
        return {c.open_ns: c for page in self.pages for c in page.candles}

    @property
    def empty(self) -> set[int]:
        """Open times that are called empty."""
        return _opens((r for page in self.pages for r in page.empty), self.world.period_seconds)

    def expected_missing(self) -> list[TimeRange]:
        """Return the ranges that cannot be fetched: impossible candles, those still open, and those too new."""
        world = self.world
        open_end = TimeRange(min(world.closed_end_ns, world.span.end_ns), world.span.end_ns)
        bad = [TimeRange(world.open_ns(n), world.open_ns(n + 1)) for n in world.impossible]
        return [part for r in merge([open_end, *bad, *_too_new(world)]) if (part := r.intersect(world.answered))]

    def explain(self) -> str:
        """Return the world, which can be run again, and the faults in it, as text."""
        exchange = self.exchange
        told = f"{exchange.calls} calls, {exchange.lies} lies, {exchange.failed} failures"
        return "\n".join(["", repr(self.world), told, *exchange.log, *map(str, self.missing)])


def _too_new(world: World) -> list[TimeRange]:
    """Return the candles that are not settled.

    Absent ones that closed less than 120 s ago, or less than 600 s ago without a later candle; and the last one if it
    closed less than 120 s ago and there is none that is still open.
    """
    now_ns = world.closed_end_ns + SECOND_NS // 2
    last_ns = max((t for t in world.market if t <= world.closed_end_ns), default=0)
    new = []
    for n in reversed(range(world.periods)):
        part = TimeRange(world.open_ns(n), world.open_ns(n + 1))
        age_ns, is_absent = now_ns - part.end_ns, part.start_ns not in world.market
        if age_ns >= 600 * SECOND_NS:
            break
        seconds = 600 if is_absent and part.start_ns > last_ns else 120
        if 0 <= age_ns < seconds * SECOND_NS and (is_absent or part.start_ns == last_ns):
            new.append(part)
    return new


def fetch(world: World, agreement: Agreement | None = None) -> Outcome:
    """Run the world's job to its end and return the outcome; without an agreement the exchange is new."""
    outcome = Outcome(world, Exchange(world))
    outcome.exchange.agreement = agreement or outcome.exchange.agreement

    async def put(page: CandlePage) -> None:
        outcome.pages.append(page)

    outcome.missing = asyncio.run(_run(world.job, outcome.exchange, put))
    return outcome


def fetch_parts(world: World, parts: Iterable[TimeRange]) -> Outcome:
    """Run a dispatch of the same request for each part, one after the other."""
    outcome = Outcome(world, Exchange(world))

    async def put(page: CandlePage) -> None:
        outcome.pages.append(page)

    for part in parts:
        outcome.missing += asyncio.run(_run(replace(world.job, span=part), outcome.exchange, put))
    outcome.pages.sort(key=lambda page: page.span)
    outcome.missing.sort(key=lambda missing: missing.span)
    return outcome


def most_calls(world: World) -> int:
    """Return the largest allowed number of calls of a job: for each page its chunks and the evidence of the settings.

    An impossible candle restarts its page twice, as the page is also split there. Coarser candles have pages of their
    own, and each of them may be settled by itself.
    """
    page = page_periods(world.page, world.call)
    begun = len(split_by_periods(world.span, world.period_seconds, page)) + 2 * len(world.impossible)
    begun += sum(2 * world.periods * world.period_seconds // seconds + 2 for seconds in world.cells[:1])
    chunks = min(page, world.periods) // world.call.candles + 1
    return begun * chunks * (Exchange(world).settings.evidence_queries + 1)


# ---- judgement


def check_account(outcome: Outcome) -> None:
    """Check the rule for every job, however its exchange lies: each period is settled once or missing, in order."""
    world, period = outcome.world, outcome.world.period_seconds
    spans = [page.span for page in outcome.pages]
    gaps = [m.span for m in outcome.missing]
    assert spans == sorted(spans) and gaps == sorted(gaps), outcome.explain()
    for page in outcome.pages:
        opens = [c.open_ns for c in page.candles]
        empty = _opens(page.empty, period)
        assert opens == sorted(opens), outcome.explain()
        assert sorted([*opens, *empty]) == open_times(page.span, period), f"{page.span} {outcome.explain()}"
    found = sum(len(page.candles) for page in outcome.pages)
    end_ns = world.span.end_ns
    if world.limit and found >= world.limit:
        assert found == world.limit, outcome.explain()
        end_ns = next_open(outcome.pages[-1].candles[-1].open_ns, period)
    parts = sorted([*spans, *gaps])
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(parts)), outcome.explain()
    assert merge(parts) == merge([TimeRange(world.span.start_ns, end_ns)]), outcome.explain()
    assert outcome.exchange.calls <= most_calls(world), outcome.explain()


def check_no_wrong_row(outcome: Outcome) -> None:
    """Check that no page holds a candle that the market lacks, or calls a candle empty that it has."""
    wrong = wrong_opens(outcome)
    numbers = [outcome.exchange.number(open_ns) for open_ns in wrong]
    assert not wrong, f"wrong in {len(wrong)} periods, {numbers[0]} to {numbers[-1]}{outcome.explain()}"


def check_never_silently_wrong(outcome: Outcome) -> None:
    """Check that every candle is the market's, and that a claim of absence which is wrong is provisional."""
    check_account(outcome)
    market = outcome.world.market
    assert all(market.get(t) == candle for t, candle in outcome.candles.items()), outcome.explain()
    proofs = [proof for page in outcome.pages for proof in page.proofs]
    provisional = merge(proof.span for proof in proofs if proof.is_provisional)
    final = [
        t for t in sorted(outcome.empty & market.keys()) if not any(p.start_ns <= t < p.end_ns for p in provisional)
    ]
    assert not final, f"periods {list(map(outcome.exchange.number, final))} are called empty{outcome.explain()}"


def check_found_later(outcome: Outcome) -> None:
    """Check that no candle that the market has is final as absent after the relay's first queries, 15 minutes later.

    Pages with many holes are judged by coarser candles, others are fetched again; the exchange is honest then.
    """
    check_never_silently_wrong(outcome)
    world, now_ns = outcome.world, outcome.world.closed_end_ns + 900 * SECOND_NS
    named = [m.span for m in outcome.missing]
    for page in outcome.pages:
        provisional = provisional_ranges(page.proofs, page.empty)
        if len(provisional) > MANY_RANGES:
            provisional = _judge(world, page, provisional, now_ns)
        named += provisional
    lost = [
        t for t in sorted(outcome.empty & world.market.keys()) if not any(n.start_ns <= t < n.end_ns for n in named)
    ]
    assert not lost, f"periods {list(map(outcome.exchange.number, lost))} are lost for good{outcome.explain()}"


def _judge(world: World, page: CandlePage, provisional: list[TimeRange], now_ns: int) -> list[TimeRange]:
    """Return what a second look fetches again, or leaves provisional, of a page of a thin market."""
    seconds = max(world.cells)
    market, rows = list(world.market.values()), {c.open_ns: c for c in page.candles}
    start_ns, end_ns = ceil_to_grid(page.span.start_ns, seconds), floor_to_grid(page.span.end_ns, seconds)
    cells = [TimeRange(t, next_open(t, seconds)) for t in range(start_ns, end_ns, seconds * SECOND_NS)]
    true = {c.open_ns: c for c in world.coarse([c for c in market if c.open_ns < now_ns], seconds)}
    mine = {c.open_ns: c for c in world.coarse(list(rows.values()), seconds)}
    differing = [cell for cell in cells if true.get(cell.start_ns) != mine.get(cell.start_ns)]
    hull = [TimeRange(provisional[0].start_ns, provisional[-1].end_ns)]
    found = judge(hull, provisional, merge(cells), merge(differing), seconds, now_ns=now_ns)
    return [*found.doubtful, *found.repeated]


def check_whole(outcome: Outcome) -> None:
    """Check that the rows are the truth, and only impossible and open candles are missing."""
    check_account(outcome)
    check_no_wrong_row(outcome)
    assert merge(m.span for m in outcome.missing) == outcome.expected_missing(), outcome.explain()
    gone = outcome.expected_missing()
    truth = {t: c for t, c in outcome.world.truth.items() if not any(r.start_ns <= t < r.end_ns for r in gone)}
    assert outcome.candles == truth, outcome.explain()


def check_failed(outcome: Outcome) -> None:
    """Check as `check_whole`, or that only a failure ended the job; the failure of an early query does not matter."""
    check_account(outcome)
    check_no_wrong_row(outcome)
    if not any(FAILURE in m.reason for m in outcome.missing):
        check_whole(outcome)


def wrong_opens(outcome: Outcome) -> list[int]:
    """Return the open times whose row is not the market's, ascending; missing parts are not wrong."""
    market = outcome.world.market
    invented = {t for t, candle in outcome.candles.items() if market.get(t) != candle}
    return sorted(invented | (outcome.empty & market.keys()))


# ---- deaths


@dataclass
class Table:
    """State of Kafka and the relay after any number of lives of the ingestor."""

    outcome: Outcome
    rows: dict[int, tuple[int, Candle]] = field(default_factory=dict)
    settled: list[TimeRange] = field(default_factory=list)
    deaths: int = 0

    def take(self, page: CandlePage) -> None:
        """Add a page of Kafka; of two copies of a candle the larger fetched_ns wins."""
        self.outcome.pages.append(page)
        for candle in page.candles:
            held = self.rows.get(candle.open_ns)
            if held is None or held[0] <= page.fetched_ns:
                self.rows[candle.open_ns] = (page.fetched_ns, candle)


def fetch_with_deaths(world: World, lives: Iterable[int]) -> Table:
    """Run the job again for its unsettled part, each time the ingestor dies.

    Args:
        lives: Steps until each death; a step is a query to the exchange, a page to Kafka, or its report.
    """
    return asyncio.run(_live_and_die(world, iter(lives)))


async def _live_and_die(world: World, lives: Iterator[int]) -> Table:
    table = Table(Outcome(world, Exchange(world)))
    left = [0]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    async def put(page: CandlePage) -> None:
        step()
        table.take(page)
        step()  # in Kafka, and the relay has not heard of it: the same page is fetched again
        table.settled.append(page.span)

    table.outcome.exchange.on_call = step
    while rest := subtract([world.span], table.settled):
        left[0] = next(lives, 0)
        job = replace(world.job, span=TimeRange(rest[0].start_ns, rest[-1].end_ns))
        try:
            table.outcome.missing = await _run(job, table.outcome.exchange, put)
            break
        except Killed:
            table.deaths += 1
            table.outcome.exchange.log.append(f"death {table.deaths} after call {table.outcome.exchange.calls}")
    return table


def check_table(table: Table) -> None:
    """Check that after all deaths each row is the market's, and what lacks is missing or provisional."""
    outcome = table.outcome
    market = outcome.world.market
    assert all(market.get(t) == candle for t, (_, candle) in table.rows.items()), outcome.explain()
    named = [p.span for page in outcome.pages for p in page.proofs if p.is_provisional]
    named += [m.span for m in outcome.missing]
    lost = outcome.world.truth.keys() - table.rows.keys()
    assert not [t for t in lost if not any(r.start_ns <= t < r.end_ns for r in named)], outcome.explain()
    settled = merge([*table.settled, *(m.span for m in outcome.missing)])
    assert settled == merge([outcome.world.span]), outcome.explain()


async def _run(job: Dispatch, exchange: Exchange, put: Any) -> list[Missing]:
    with capture_logs():  # what goes wrong is in the exchange's own log
        return await exchange.run(job, put)


def _opens(ranges: Iterable[TimeRange], period_seconds: int) -> set[int]:
    return {t for r in ranges for t in open_times(r, period_seconds)}
