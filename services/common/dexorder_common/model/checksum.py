"""Coarser candles as checksums of finer ones. Pure.

A coarser candle, here a *cell*, has the first open, the highest high, the lowest low, the last close and the sum of the
volumes of the finer candles in it. Ingestors prove with it the fetched candles, and ``dexorder verify`` compares
the table with it. docs/completeness.md states under "Checksums" the conclusions if they agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import fsum, inf
from typing import NamedTuple

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import WEEK_SECONDS

SETTLED_AFTER_SECONDS = 600
"""Age at which a cell counts as closed: a replica may be behind by that much."""
_DAY_SECONDS = 86_400
_MAX_CANDLES = 60
"""Finer candles of a cell: many, so that cells cost few calls; not more, so that a fault is near where they differ."""


class Aggregate(NamedTuple):
    """Finer candles of a cell as one candle.

    Attributes:
        candles: Their number, at least 1.
        smallest_volume: Smallest volume above 0; infinite without any.
    """

    open: float
    high: float
    low: float
    close: float
    volume: float
    candles: int
    smallest_volume: float


def aggregate(finer: Sequence[Candle]) -> Aggregate | None:
    """Return candles in time order as one; None without candles."""
    if not finer:
        return None
    return Aggregate(
        finer[0].open,
        max(c.high for c in finer),
        min(c.low for c in finer),
        finer[-1].close,
        fsum(c.volume for c in finer),
        len(finer),
        min((c.volume for c in finer if c.volume), default=inf),
    )


def cell_ladder(period_seconds: int, offered: Collection[int], call_candles: int) -> list[int]:
    """Return the periods for cells: the one to start with, and the smallest, for cells that do not tally.

    One call brings the finer candles of several cells. Halving the period step by step would cost a call for each step,
    and one for the smallest period has the same candles.

    >>> [cell_ladder(60, [60, 300, 900, 3600, 14400], candles) for candles in (1000, 100, 10, 5)]
    [[3600, 300], [900, 300], [300], []]
    """
    most = min(_MAX_CANDLES, call_candles // 2)
    fitting = sorted(each for each in offered if _is_divided(each, period_seconds) and each // period_seconds <= most)
    return list(dict.fromkeys([fitting[-1], fitting[0]])) if fitting else []


def scan_periods(cell_seconds: int, offered: Collection[int]) -> list[int]:
    """Return the periods by which long ranges without trades are found, down to the cells' own.

    >>> scan_periods(3_600, [60, 3_600, 21_600, 86_400, 604_800]), scan_periods(604_800, [86_400, 604_800])
    ([604800, 86400, 3600], [604800])
    """
    longer = [each for each in offered if _is_divided(each, cell_seconds)]
    days = [each for each in longer if each <= _DAY_SECONDS]
    return sorted({cell_seconds, max(longer, default=cell_seconds), max(days, default=cell_seconds)}, reverse=True)


def _is_divided(cell_seconds: int, period_seconds: int) -> bool:
    """Return whether whole candles of a period make up a cell; no month because its length varies."""
    return period_seconds < cell_seconds <= WEEK_SECONDS and not cell_seconds % period_seconds


def tallies(cell: Candle | None, finer: Aggregate | None, periods: int, volume_tolerance: float) -> bool:
    """Return whether the finer candles are all trades of a cell; flat candles without volume may be absent.

    Args:
        finer: None without finer candles.
        periods: Number of finer candles of a cell without holes. Where one may be missing, rounding must be less than
            the smallest volume.
    """
    if not agrees(cell, finer, volume_tolerance):
        return False
    if cell is None or finer is None or finer.candles == periods:
        return True
    return volume_tolerance * cell.volume < finer.smallest_volume


def agrees(cell: Candle | None, finer: Aggregate | None, volume_tolerance: float) -> bool:
    """Return whether the finer candles add up to a cell; one with a volume within the tolerance may be missing.

    Args:
        cell: None if the exchange lacks the candle because there were no trades.
        finer: None without finer candles.
        volume_tolerance: Relative difference of volumes that rounding explains.
    """
    if cell is None or finer is None:
        return finer is None and (cell is None or not cell.volume)
    if finer[:4] != (cell.open, cell.high, cell.low, cell.close):
        return False
    return abs(finer.volume - cell.volume) <= volume_tolerance * cell.volume
