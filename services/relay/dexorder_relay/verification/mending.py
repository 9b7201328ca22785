"""Removal of rows that the table must not have: duplicates, rows off the grid, rows in verified-empty ranges.

Of duplicates the row with the largest version stays, as in every batch of the pipeline. A period is unsure if several
copies have that version and differ in their values. Rows of unsure periods and of verified-empty ranges are removed
once the caller has retracted these ranges. Rows that a page adds after the retraction stay. The caller has the ranges
fetched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dexorder_common.lake.commit import CommitLost
from dexorder_common.lake.rewrite import read_rows, replace_rows
from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import split_by_periods
from dexorder_common.model.time_range import RangeSet, TimeRange
from dexorder_relay.reading.rows import RETRY_SECONDS, accessible
from dexorder_relay.reading.series_times import open_times
from dexorder_relay.state.compare import WINDOW_PERIODS, Times, on_grid, runs

log = structlog.get_logger(__name__)
ATTEMPTS = 10
Copy = tuple[int, ...]
"""Open time and version columns of a row."""
_VALUES = ("open", "high", "low", "close", "volume", "quote_volume", "trades")


class Choice(NamedTuple):
    """Rows of a window, sorted out.

    Attributes:
        kept: Rows that stay, or replace all rows of the window.
        removed: Number of the others.
        unsure: Periods with different copies of the largest version. The copies stay unless they are condemned.
        condemned: Rows in ``void`` and in unsure periods.
    """

    kept: pa.Table
    removed: int
    unsure: list[TimeRange]
    condemned: frozenset[Copy]


def choose(
    found: pa.Table, void: Iterable[TimeRange], period_seconds: int, condemned: frozenset[Copy] = frozenset()
) -> Choice:
    """Sort out the rows of a window. Pure.

    Args:
        found: All columns of all rows of a series in the window, in any order.
        void: Ranges that are verified empty, or retracted because they are unsure.
        condemned: Rows in ``void`` that are removed.
    """
    opens = open_times(found)
    versions = [_integers(found, name) for name in OHLC.version]
    order = np.lexsort((*(-each for each in reversed(versions)), opens))
    opens, versions = opens[order], [each[order] for each in versions]
    first, known = np.diff(opens, prepend=-1) != 0, on_grid(opens, period_seconds)
    best = np.flatnonzero(first)[np.cumsum(first) - 1]  # for each row, the copy of the largest version
    latest = np.logical_and.reduce([each == each[best] for each in versions])
    unsure = np.unique(opens[known & latest & ~_equal(found.take(order), best)])
    doubted, inside = np.isin(opens, unsure), _inside(opens, void)
    copies = {
        int(row): (int(opens[row]), *(int(each[row]) for each in versions)) for row in np.flatnonzero(inside | doubted)
    }
    keep = known & (first | doubted)
    keep[[row for row, copy in copies.items() if inside[row] and copy in condemned]] = False
    removed = int(len(opens) - keep.sum())
    return Choice(found.take(order[keep]), removed, runs(unsure, period_seconds), frozenset(copies.values()))


def _equal(found: pa.Table, other: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each row whether its candle equals the candle of another row; nulls are equal."""
    columns = [found[name].cast(pa.float64()).to_numpy() for name in _VALUES]
    parts = [(each == each[other]) | (np.isnan(each) & np.isnan(each[other])) for each in columns]
    equal: NDArray[np.bool_] = np.logical_and.reduce(parts)
    return equal


def _inside(times: Times, ranges: Iterable[TimeRange]) -> NDArray[np.bool_]:
    inside = np.zeros(len(times), np.bool_)
    for each in ranges:
        inside |= (times >= each.start_ns) & (times < each.end_ns)
    return inside


def _integers(found: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a version column; a table of an older release may lack it."""
    if name not in found.column_names:
        return np.zeros(len(found), np.int64)
    column: Any = found[name].cast(pa.int64())
    numbers: NDArray[np.int64] = pc.fill_null(column, 0).to_numpy()
    return numbers


class Look(NamedTuple):
    """Wrong rows of a series before anything is changed.

    Attributes:
        windows: Ranges that contain every wrong row; each is mended by its own commit.
        unsure: Periods that must be fetched again because their copies differ.
        condemned: Rows of these periods, and rows in verified-empty ranges.
    """

    series: Series
    windows: list[TimeRange]
    unsure: list[TimeRange]
    condemned: frozenset[Copy]


class TableMender:
    """Looks for wrong rows and removes them. Blocking."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def look(self, series: Series, wrong: Sequence[TimeRange], void: Sequence[TimeRange]) -> Look:
        """Return what ``mend`` will do; Unavailable if the table cannot be read.

        Args:
            wrong: Periods with wrong rows, in time order.
            void: Those of them that are verified empty.
        """
        windows, unsure, condemned = _windows(wrong, series.period_seconds), list[TimeRange](), frozenset[Copy]()
        for window in windows:
            choice = choose(self._rows(series, window)[1], void, series.period_seconds)
            unsure += choice.unsure
            condemned |= choice.condemned
        return Look(series, windows, unsure, condemned)

    def mend(self, look: Look, void: Sequence[TimeRange], reason: str) -> int:
        """Remove the wrong rows; return their number.

        Args:
            void: Retracted ranges, in which all rows that ``look`` saw are removed.
            reason: Goes into the summary of each snapshot.

        Raises:
            Unavailable: The table cannot be read or written now. Windows before the failure are mended.
        """
        attempts = Retrying(
            retry=retry_if_exception_type(CommitLost),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(0.05, max=0.5),
            reraise=True,
        )
        try:
            return sum(attempts(self._mend, look, window, void, reason) for window in look.windows)
        except CommitLost:
            raise Unavailable(
                f"{OHLC.name} can't be changed: other writers committed first, {ATTEMPTS} times in a row; verify again",
                retry_seconds=RETRY_SECONDS,
            ) from None

    def _mend(self, look: Look, window: TimeRange, void: Sequence[TimeRange], reason: str) -> int:
        table, found = self._rows(look.series, window)
        choice = choose(found, void, look.series.period_seconds, look.condemned)
        if choice.removed:
            with accessible(OHLC, "changed"):
                where = rows_in(look.series, window)
                replace_rows(table, where, choice.kept, {"dexorder.repair": reason})
            log.warning("wrong rows removed", **look.series.encode(), rows=choice.removed, range=str(window))
        return choice.removed

    def _rows(self, series: Series, window: TimeRange) -> tuple[Any, pa.Table]:
        """Return the table as it is now, and the rows of a series."""
        with accessible(OHLC):
            table = self._catalog.load_table(OHLC.name)
            return table, read_rows(table, rows_in(series, window))


def _windows(wrong: Sequence[TimeRange], period_seconds: int) -> list[TimeRange]:
    """Return small ranges of at most ``WINDOW_PERIODS`` periods that contain every wrong period."""
    if not wrong:
        return []
    ranges, hull = RangeSet(wrong), TimeRange(wrong[0].start_ns, wrong[-1].end_ns)
    parts = [ranges.within(each) for each in split_by_periods(hull, period_seconds, WINDOW_PERIODS)]
    return [TimeRange(each[0].start_ns, each[-1].end_ns) for each in parts if each]
