"""Coarser candles as checksums of finer ones. Pure.

A coarser candle, here a *cell*, has the first open, the highest high, the lowest low, the last close and the sum of the
volumes of the finer candles in it. Where a cell and the finer candles of an answer tally, the answer is complete and its
values are right, unless both are untrue in the same way. docs/completeness.md states what follows from that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum

from services.common.model.page import Candle
from services.common.model.periods import split_by_periods
from services.common.model.time_range import TimeRange

_DAY_SECONDS = 86_400
_CELLS_PER_CALL = 4
"""Least number of cells that one call for finer candles covers."""
SHORTFALL = 1e-3
"""Share of a cell's volume that late trades and rounding explain; more means that candles are missing."""


class Tally(StrEnum):
    """Result of comparing a cell with finer candles."""

    EQUAL = "equal"
    """All five values agree."""
    ROUNDED = "rounded"
    """Prices agree, and volumes up to `SHORTFALL`: no proof, and no contradiction."""
    DIFFERENT = "different"
    """The finer candles are not all that the cell is made of."""


def cell_seconds(period_seconds: int, offered: Collection[int], candles: int) -> int | None:
    """Return the largest period for cells: it divides evenly, and a call for ``candles`` covers several; None if none.

    >>> [cell_seconds(60, [60, 300, 900, 3600, 14400], candles) for candles in (1000, 300, 100, 10)]
    [14400, 3600, 900, None]
    """
    fitting = [
        each
        for each in offered
        if period_seconds < each <= _DAY_SECONDS
        and each % period_seconds == 0
        and _DAY_SECONDS % each == 0
        and each // period_seconds * _CELLS_PER_CALL <= candles
    ]
    return max(fitting, default=None)


def compare(cell: Candle, finer: Sequence[Candle], volume_tolerance: float) -> Tally:
    """Compare a cell with the finer candles in it."""
    if not finer:
        return Tally.DIFFERENT
    prices = finer[0].open, max(c.high for c in finer), min(c.low for c in finer), finer[-1].close
    if prices != (cell.open, cell.high, cell.low, cell.close):
        return Tally.DIFFERENT
    volume = fsum(c.volume for c in finer)
    off = abs(volume - cell.volume)
    if off <= volume_tolerance * max(volume, cell.volume):
        return Tally.EQUAL
    return Tally.ROUNDED if off <= SHORTFALL * cell.volume else Tally.DIFFERENT


@dataclass(slots=True)
class CheckedCell:
    """A cell and what answers have said about it so far.

    Attributes:
        versions: Its candle in answers about the coarser period; several if these differ.
        candles: The finer candles that tally, or else those of the last answer.
        tally: The best result so far.
        times_ns: Times of the answers.
    """

    span: TimeRange
    versions: list[Candle]
    candles: tuple[Candle, ...] = ()
    tally: Tally = Tally.DIFFERENT
    times_ns: list[int] = field(default_factory=list)

    def add(self, finer: Sequence[Candle], *, volume_tolerance: float, fetched_ns: int) -> None:
        """Compare finer candles with all versions, unless others have tallied."""
        self.times_ns.append(fetched_ns)
        if self.tally is Tally.EQUAL:
            return
        results = {compare(version, finer, volume_tolerance) for version in self.versions}
        self.tally = next(tally for tally in Tally if tally in results)
        self.candles = tuple(finer)

    def add_version(self, cell: Candle, *, volume_tolerance: float, fetched_ns: int) -> None:
        """Add another answer about the coarser period."""
        if cell not in self.versions:
            self.versions.append(cell)
        self.add(self.candles, volume_tolerance=volume_tolerance, fetched_ns=fetched_ns)


def cells_of(span: TimeRange, seconds: int, coarse: Mapping[int, Candle]) -> list[CheckedCell]:
    """Return the cells of a span, all of which are known."""
    return [CheckedCell(part, [coarse[part.start_ns]]) for part in split_by_periods(span, seconds, 1)]


def within(candles: Iterable[Candle], span: TimeRange) -> list[Candle]:
    """Return the candles that open inside a range."""
    return [c for c in candles if span.start_ns <= c.open_ns < span.end_ns]
