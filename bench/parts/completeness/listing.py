"""Calls that prove that a market has no candle before its listing.

The ingestor's fetcher with unmodified ccxt against the simulated exchange, in virtual time, as the relay has it fetch:
dispatches of 50,000 periods, four at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.parts.completeness.virtual import VirtualWorld, copied, experienced, virtual_world
from dexorder_common.model.periods import split_by_periods
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_relay.config import RelaySettings
from tests.rig.report import markdown

ROW = "before_listing"
YEAR = 525_600
MOST_CALLS = {50_000: 60, YEAR: 20}
"""Largest allowed number of calls, by the number of minutes before the listing."""
LIMITS = ((1_000, True), (1_000, False), (300, False), (100, False))
"""Candles of a call, and whether its window may be wider than that."""
_SYMBOL = "LTC/USDT"
_NOW_NS = 1_706_745_630 * SECOND_NS
"""2024-02-01 00:00:30."""
_MINUTE_NS = 60 * SECOND_NS
_AT_ONCE = 4
_GOOD_ANSWERS, _GOOD_UNTIL_NS = 1_000, 1_698_796_800 * SECOND_NS


@dataclass(frozen=True, slots=True)
class ListingResult:
    """Calls of one range, of each ingestor that fetched it, and whether it was proven without a candle."""

    minutes: int
    candles: int
    wide: bool
    calls: tuple[int, ...]
    is_proven: bool

    @property
    def as_promised(self) -> bool:
        """Whether all of it was proven, with few calls."""
        return self.is_proven and max(self.calls) <= MOST_CALLS[self.minutes]


async def measure(folder: Path) -> list[ListingResult]:
    """Measure every range at every limit of a call."""
    results = []
    async with virtual_world(folder, now_ns=_NOW_NS) as world:
        known = await experienced(world, _GOOD_ANSWERS, "ETH/USDT", _GOOD_UNTIL_NS)
        for minutes in MOST_CALLS:
            for candles, wide in LIMITS:
                results.append(await measure_one(world, (Agreement(), copied(known)), minutes, candles, wide=wide))
    return results


async def measure_one(
    world: VirtualWorld, agreements: Sequence[Agreement], minutes: int, candles: int, *, wide: bool
) -> ListingResult:
    """Measure one range, by ingestors with these agreements."""
    listed_ns = world.simulator.venue.sources[_SYMBOL.replace("/", "")].instrument.listed_s * SECOND_NS
    span = TimeRange(listed_ns - minutes * _MINUTE_NS, listed_ns)
    limits, calls, proven = world.venue.limits, [], True
    world.venue.limits = replace(limits, candles=candles, wide=wide)
    for number, agreement in enumerate(agreements):
        world.set_faults([])
        request = f"{ROW}-{minutes}-{candles}-{wide}-{number}"
        proven &= await _is_proven_empty(world, request, span, agreement)
        calls.append(world.calls())
    world.venue.limits = limits
    return ListingResult(minutes, candles, wide, tuple(calls), proven)


async def _is_proven_empty(world: VirtualWorld, request: str, span: TimeRange, agreement: Agreement) -> bool:
    """Return whether the dispatches of a request prove that a range has no candle."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def fetch(part: TimeRange) -> Sequence[TimeRange]:
        async with slots:
            found = await world.fetch(_SYMBOL, 60, part, agreement, request_id=request)
        return [] if found.missing else [empty for page in found.pages for empty in page.empty]

    parts = split_by_periods(span, 60, RelaySettings.model_fields["job_periods"].default)
    return merge(empty for found in await asyncio.gather(*map(fetch, parts)) for empty in found) == [span]


def table(results: Sequence[ListingResult]) -> str:
    """Return the results as Markdown."""
    rows = [
        (
            f"{r.minutes:,}",
            f"{r.candles:,}, {'windows may be wide' if r.wide else 'narrow windows'}",
            f"{r.calls[0]}",
            f"{r.calls[1]}",
            f"{-(-r.minutes // r.candles):,}",
            f"{MOST_CALLS[r.minutes]}: {'met' if r.as_promised else 'MISSED'}",
        )
        for r in results
    ]
    header = ("minutes", "candles of a call", "calls, fresh ingestor", "experienced", "calls by page", "aim")
    return f"## Before a listing\n\n{_ABOUT}\n{markdown(header, rows)}"


_ABOUT = (
    "One-minute candles up to the listing of a market, which has none; dispatches of 50,000 minutes, four at once, "
    "with unmodified ccxt in virtual time. Calls for candles of all periods are counted. All is proven empty.\n"
)
