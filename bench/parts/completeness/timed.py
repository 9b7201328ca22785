"""Runs of the cells of `timed_cells` in virtual time: ccxt's loop, a fresh and an experienced ingestor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.parts.completeness.timed_cells import TimedCell
from bench.parts.completeness.timed_outcome import Table, TimedOutcome, judge
from bench.parts.completeness.virtual import VirtualWorld, copied, experienced, virtual_world
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement

SYMBOL = "BTC/USDT"
MINUTES = 6_000
GOOD_ANSWERS = 2_000
_NOW_NS = 1_706_745_630 * SECOND_NS
"""2024-02-01 00:00:30."""
_GOOD_UNTIL_NS = 1_698_796_800 * SECOND_NS
"""2023-11-01: the true answers were about candles before it."""
_MINUTE_NS = 60 * SECOND_NS
_AFTERWARDS_NS = 2 * 3_600 * SECOND_NS
"""Time until the range is queried again, without the fault."""
_STARTS = (0, 4)
"""Calls before the fault begins."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a cell.

    Attributes:
        text: The state of the ingestor and the seed, to repeat it.
        first: Outcome of the first dispatch.
        again: Outcome after provisional and missing ranges were queried again without the fault.
        calls: Calls of the first dispatch.
    """

    text: str
    first: TimedOutcome
    again: TimedOutcome
    calls: int


@dataclass(frozen=True, slots=True)
class TimedResult:
    """All runs of a cell, and ccxt's loop: candles that it lost, or got wrong; its calls."""

    cell: TimedCell
    runs: tuple[Run, ...]
    ccxt_lost: int
    ccxt_wrong: int
    ccxt_calls: int
    ccxt_end: str


class TimedBench:
    """Measures cell after cell in one world."""

    def __init__(self, world: VirtualWorld, agreement: Agreement) -> None:
        """Take the agreement of an experienced ingestor."""
        self._world = world
        self._agreement = agreement

    async def measure(self, cell: TimedCell) -> TimedResult:
        """Run a cell: by a fresh and an experienced ingestor, with faults that begin at once and a few calls later."""
        runs = []
        for after in _STARTS:
            for name, agreement in (("fresh", Agreement()), ("experienced", copied(self._agreement))):
                runs.append(await self._run(cell, f"{name}, after {after}", agreement, after))
        return TimedResult(cell, tuple(runs), *await self._ccxt(cell))

    def _span(self, cell: TimedCell) -> TimeRange:
        now_ns = self._world.time.wall_ns()
        if cell.newest:
            # the last candle has been closed for two seconds
            self._world.simulator.clock.advance(62 * SECOND_NS - now_ns % _MINUTE_NS)
            end_ns = self._world.time.wall_ns() // _MINUTE_NS * _MINUTE_NS
        else:
            end_ns = now_ns // (3_600 * SECOND_NS) * 3_600 * SECOND_NS - (30 * 1_440 - 13) * _MINUTE_NS
        return TimeRange(end_ns - MINUTES * _MINUTE_NS, end_ns)

    def _rules(self, cell: TimedCell, span: TimeRange, after: int) -> list[dict[str, Any]]:
        return [{**rule, "after": after} for rule in cell.rules(span)]

    async def _run(self, cell: TimedCell, text: str, agreement: Agreement, after: int) -> Run:
        world, span, table = self._world, self._span(cell), Table()
        world.set_faults(self._rules(cell, span, after))
        found = await world.fetch(SYMBOL, 60, span, agreement)
        table.add(found.pages, found.missing)
        world.set_faults([])
        world.simulator.clock.advance(_AFTERWARDS_NS)
        truth = world.truth(SYMBOL, "1m", span)
        first = judge(truth, span, table)
        for part in table.open_ranges:
            more = await world.fetch(SYMBOL, 60, part, agreement)
            table.add(more.pages, more.missing)
        return Run(text, first, judge(truth, span, table), found.calls)

    async def _ccxt(self, cell: TimedCell) -> tuple[int, int, int, str]:
        world, span = self._world, self._span(cell)
        world.set_faults(self._rules(cell, span, 0))
        rows, calls, end = await world.ccxt_loop(SYMBOL, "1m", span)
        world.set_faults([])
        world.simulator.clock.advance(_AFTERWARDS_NS)
        truth = world.truth(SYMBOL, "1m", span)
        got = {int(row[0]) * 1_000_000: tuple(row[1:6]) for row in rows}
        wrong = len(rows) - len(got) + sum(truth.get(t) != values for t, values in got.items())
        return sum(t not in got for t in truth), wrong, calls, end


def worst(runs: Sequence[Run]) -> Run:
    """Return the run with the worst first outcome."""
    return max(runs, key=lambda r: (r.first.wrong + r.first.final, r.first.there, r.first.named, r.first.provisional))


async def measure_all(
    cells: Sequence[TimedCell], folder: Path, *, checksums: bool, say: Callable[[TimedResult], None]
) -> list[TimedResult]:
    """Measure cells against an exchange with or without coarser candles; ``say`` gets each result."""
    results = []
    async with virtual_world(folder, checksums=checksums, now_ns=_NOW_NS) as world:
        bench = TimedBench(world, await experienced(world, GOOD_ANSWERS, "ETH/USDT", _GOOD_UNTIL_NS))
        for cell in cells:
            results.append(await bench.measure(cell))
            say(results[-1])
    return results
