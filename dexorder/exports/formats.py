"""The formats by their names, and the rows that each accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dexorder.errors import RequestRefused
from dexorder.exports import freqtrade, hftbacktest, nautilus
from dexorder.rows.table import Rows
from dexorder_common.model.datasets import CANDLES, TRADES, Dataset
from dexorder_common.model.instrument import Series


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        write: Writes the rows of a series below a folder; returns the file.
        folder: Meaning of the folder to the program, for the help.
    """

    write: Callable[[Rows, Series, Path], Path]
    datasets: tuple[Dataset, ...]
    folder: str


FORMATS = {
    "freqtrade": Format(freqtrade.write, (CANDLES, TRADES), "user_data/data/<exchange>"),
    "nautilus": Format(nautilus.write, (CANDLES, TRADES), "the folder of a ParquetDataCatalog"),
    "hftbacktest": Format(hftbacktest.write, (TRADES,), "any folder"),
}


def export_format(name: str, series: Series) -> Format:
    """Return a format; RequestRefused if the name is unknown, or the format does not accept such rows."""
    if name not in FORMATS:
        raise RequestRefused(f"--to {name!r} is not one of {', '.join(FORMATS)}")
    found = FORMATS[name]
    if series.dataset not in found.datasets:
        takes = " and ".join(each.name for each in found.datasets)
        raise RequestRefused(f"{name} takes {takes}, not {series.dataset.name}")
    return found
