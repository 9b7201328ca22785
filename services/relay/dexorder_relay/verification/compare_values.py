"""Comparison of rows with the exchange's coarser candles, their cells. Pure.

``dexorder_common/model/checksum.py`` has the rule by which rows and a cell agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dexorder_common.model.checksum import Aggregate, tallies
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import ceil_to_grid, count_periods, floor_to_grid, split_by_periods
from dexorder_common.model.time_range import TimeRange, joined
from dexorder_common.model.values import ValueDifference
from dexorder_relay.reading.series_times import open_times

_VALUES = ("open", "high", "low", "close", "volume")


def whole_cells(spans: Iterable[TimeRange], cell_seconds: int, *, settled_ns: int) -> list[TimeRange]:
    """Return the parts of ranges that whole cells make up, as far as cells that closed by ``settled_ns``."""
    parts = []
    for span in spans:
        start_ns = ceil_to_grid(span.start_ns, cell_seconds)
        end_ns = floor_to_grid(max(0, min(span.end_ns, settled_ns)), cell_seconds)
        if start_ns < end_ns:
            parts.append(TimeRange(start_ns, end_ns))
    return parts


def fetch_ranges(cells: Iterable[TimeRange], cell_seconds: int, call_candles: int, most: int) -> list[TimeRange]:
    """Return at most ``most`` ranges that hold the cells; ranges that one call reaches are joined.

    Args:
        cells: Ranges of whole cells, in time order.
    """

    def join(one: TimeRange, two: TimeRange) -> TimeRange | None:
        gap = count_periods(TimeRange(one.end_ns, two.start_ns), cell_seconds)
        return TimeRange(one.start_ns, two.end_ns) if gap < call_candles else None

    return joined(cells, join)[:most]


def compare_values(
    rows: pa.Table,
    cells: pa.Table,
    spans: Iterable[TimeRange],
    cell_seconds: int,
    volume_tolerance: float,
    *,
    cell_periods: int = 0,
) -> Iterator[ValueDifference]:
    """Yield the cells that the rows do not add up to, in time order.

    Args:
        rows: The finer candles by open time; columns open_time and values.
        cells: The coarser ones by open time; an absent cell is one without trades.
        spans: Ranges of whole cells that are compared, in time order.
        volume_tolerance: Relative difference of volumes that rounding explains.
        cell_periods: Rows of a cell without absences; if it is given, no row of another cell may be so small that
            rounding explains its absence.
    """
    compared = [cell for span in spans for cell in split_by_periods(span, cell_seconds, 1)]
    known = dict(_candles(cells))
    for cell, finer in zip(compared, _aggregates(rows, compared), strict=True):
        exchange = known.get(cell.start_ns)
        # a cell of no periods can't lack one
        if not tallies(exchange, finer, cell_periods or (finer.candles if finer else 0), volume_tolerance):
            table = Candle(cell.start_ns, *finer[:5]) if finer else None
            yield ValueDifference(cell, exchange, table)


def _aggregates(rows: pa.Table, cells: Sequence[TimeRange]) -> list[Aggregate | None]:
    """Return the rows in each cell as one candle; None for a cell without rows."""
    opens = open_times(rows)
    first = np.searchsorted(opens, [cell.start_ns for cell in cells])
    last = np.searchsorted(opens, [cell.end_ns for cell in cells])
    filled = np.flatnonzero(last > first)
    found: list[Aggregate | None] = [None] * len(cells)
    if not len(filled):
        return found
    first, last = first[filled], last[filled]
    # reduceat takes ascending bounds; rows between two cells are reduced too, and skipped
    bounds = np.stack([first, last], axis=1).ravel()
    values = {name: _numbers(rows, name) for name in _VALUES}
    volumes = values["volume"]
    columns = (
        values["open"][first],
        _reduce(np.maximum, values["high"], bounds),
        _reduce(np.minimum, values["low"], bounds),
        values["close"][last - 1],
        _reduce(np.add, volumes, bounds),
        last - first,
        _reduce(np.minimum, np.where(volumes > 0, volumes, np.inf), bounds),
    )
    for index, *cell in zip(filled.tolist(), *(column.tolist() for column in columns), strict=True):
        found[index] = Aggregate(*cell)
    return found


def _reduce(operation: Any, values: NDArray[np.float64], bounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the operation over each second range of bounds; the last bound may be the number of values."""
    reduced: NDArray[np.float64] = operation.reduceat(np.append(values, 0.0), bounds)[::2]
    return reduced


def _candles(rows: pa.Table) -> Iterator[tuple[int, Candle]]:
    columns = (_numbers(rows, name).tolist() for name in _VALUES)
    for open_ns, *values in zip(open_times(rows).tolist(), *columns, strict=True):
        yield open_ns, Candle(open_ns, *values)


def _numbers(rows: pa.Table, name: str) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = rows[name].cast(pa.float64()).to_numpy()
    return numbers
