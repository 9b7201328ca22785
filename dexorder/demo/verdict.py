"""Results of the callers, compared with the exchange's candles."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from dexorder.cli.terminal.output import plain_table
from dexorder.demo.exchange import DemoComparison, FaultCounts
from dexorder.errors import SuiteFailed


@dataclass(frozen=True)
class Column:
    """One way to fetch the range: its name, its outcome as the caller sees it, and the comparison."""

    name: str
    told: str
    compared: DemoComparison


def verdict_table(columns: list[Column], candles: int) -> Table:
    """Return the table of the three ways.

    Args:
        candles: Number of candles that the exchange has in the range.
    """
    found = [column.compared for column in columns]
    rows = [
        ("the caller is told", *(column.told for column in columns)),
        (f"of {candles:,} candles lost", *(f"{each.lost:,}" for each in found)),
        ("twice", *(f"{each.duplicate:,}" for each in found)),
        ("wrong, null or of no candle", *(f"{each.different + each.unknown:,}" for each in found)),
    ]
    return plain_table(("", *(column.name for column in columns)), rows)


def check(faults: FaultCounts, ours: DemoComparison) -> None:
    """SuiteFailed if there were no faults, or if our rows are not the exchange's candles."""
    if not faults.total:
        raise SuiteFailed("no response was corrupted, so nothing was demonstrated")
    if not ours.equal:
        raise SuiteFailed(f"the rows differ from the exchange's candles: {ours.line()}")
