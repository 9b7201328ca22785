"""Reads of the Iceberg tables: claims of coverage, rows of a range at a snapshot, and comparisons of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import And, EqualTo, GreaterThan, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.types import LongType

from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.commit_state import state_of
from dexorder_common.lake.coverage import CLAIM_COLUMNS, Claim, CoverageRow, decode_claim, decode_coverage
from dexorder_common.lake.tables import COVERAGE, OHLC, IcebergTable, present_columns, table_of
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.errors import NotFound
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import floor_to_grid, next_open, split_by_periods
from dexorder_common.model.time_range import RangeSet, TimeRange
from dexorder_common.model.times import iso_microseconds
from dexorder_relay.reading.rows import CandleRows, MarketRows, accessible
from dexorder_relay.reading.series_times import SeriesTimes
from dexorder_relay.state.compare import WINDOW_PERIODS, CoverageComparison, compare


class TableReader:
    """Reads the tables of all datasets. A table of candles or claims that does not exist is read as empty. Blocking.

    Each method raises Unavailable if the catalog or the table's files can't be read.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._series_times = SeriesTimes()
        self._newest = NewestLoad(lambda: OHLC.load(catalog))

    def coverage(self, since_ns: int = 0) -> Iterator[Claim]:
        """Yield the claims of the coverage table that were committed since a time, and those not collected yet."""
        made: Any = GreaterThanOrEqual  # its annotations do not cover (column, value)
        with accessible(COVERAGE):
            for rows in read_coverage(self._catalog, made("committed_at", iso_microseconds(since_ns)), CLAIM_COLUMNS):
                yield from map(decode_claim, COVERAGE.rows(rows))

    def last_dispatch(self) -> int:
        """Return the largest number of a dispatch that is committed; of a table without a state, one that has rows."""
        with accessible(OHLC):
            table = OHLC.load(self._catalog)
            if table is None or not present_columns(table, ["dispatch"]):
                return 0
            if committed := state_of(table.metadata).dispatch:
                return committed
            column = table.schema().find_field("dispatch").field_id
            bounds = ((task.file.upper_bounds or {}).get(column) for task in table.scan().plan_files())
            return max((int(from_bytes(LongType(), bound)) for bound in bounds if bound is not None), default=0)

    def pages(self, series: Series, span: TimeRange) -> list[CoverageRow]:
        """Return the rows of the coverage table that overlap ``span``, by start and time of fetching."""
        made: Any = (GreaterThan, LessThan, EqualTo)  # their annotations do not cover (column, value)
        greater, less, equal = made
        overlapping = And(
            equal("ticker", series.ticker),
            equal("period_seconds", series.period_seconds),
            greater("end_time", iso_microseconds(span.start_ns)),
            less("start_time", iso_microseconds(span.end_ns)),
        )
        with accessible(COVERAGE):
            found = [row for rows in read_coverage(self._catalog, overlapping) for row in COVERAGE.rows(rows)]
        rows = {decode_coverage(row) for row in found}  # a claim may be read twice
        return sorted(
            (row for row in rows if row.series == series and row.span.overlaps(span)),
            key=lambda row: (row.span, row.fetched_ns),
        )

    def newest_candles(self, asked_ns: int) -> CandleRows:
        """Return the candles at a snapshot that was current at a monotonic time, or after it."""
        with accessible(OHLC):
            table = self._newest.table(asked_ns)
        current = table.current_snapshot() if table is not None else None
        return CandleRows(table, current.snapshot_id if current else None, series_times=self._series_times)

    def candles(self, snapshot_id: int | None = None, *, anew: bool = False) -> CandleRows:
        """Return the candles at a snapshot, or at the current one if it is no longer kept.

        Args:
            anew: Read each file again, even if it was read seconds ago.
        """
        return CandleRows(*self._open(OHLC, snapshot_id), series_times=SeriesTimes() if anew else self._series_times)

    def market(self, dataset: Dataset, snapshot_id: int | None = None) -> MarketRows:
        """Return the rows of another dataset in the same way; NotFound if its table does not exist yet."""
        declared = table_of(dataset)
        table, snapshot_id = self._open(declared, snapshot_id)
        if table is None:
            raise NotFound(f"the catalog does not contain the table {declared.name} yet")
        return MarketRows(table, snapshot_id, declared)

    def _open(self, declared: IcebergTable, snapshot_id: int | None) -> tuple[Table | None, int | None]:
        with accessible(declared):
            table = declared.load(self._catalog)
            if table is None:
                return None, None
            if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is not None:
                return table, snapshot_id
            current = table.current_snapshot()
            return table, current.snapshot_id if current else None

    def compare_times(self, series: Series, span: TimeRange, covered: list[TimeRange]) -> Reading:
        """Count the rows of a dataset without periods, of which coverage says only where they are complete."""
        found, missing = CoverageComparison(), RangeSet(covered).holes(span)
        try:
            rows = self.market(series.dataset)
        except NotFound:
            return Reading(span, missing, found, None)
        times = np.concatenate([np.empty(0, np.int64), *rows.times(series, span)]) * 1_000
        distinct, counts = np.unique(times, return_counts=True)
        found.rows, found.surplus_rows = len(times), len(times) - len(distinct)
        found.duplicates = [TimeRange(time_ns, time_ns + 1) for time_ns in distinct[counts > 1].tolist()]
        return Reading(span, missing, found, rows.snapshot_id)


class NewestLoad:
    """The last load of a table, or its failure, for all who asked before it began: hundreds of requests end at once."""

    def __init__(self, load: Callable[[], Table | None], clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._load = load
        self._clock_ns = clock_ns
        self._lock = Lock()
        self._began_ns = -1
        self._loaded: Table | Exception | None = None

    def table(self, asked_ns: int) -> Table | None:
        """Return the table from a load that began after a monotonic time. Blocking; raises the error of that load."""
        with self._lock:
            if self._began_ns <= asked_ns:
                began_ns = self._clock_ns()
                try:
                    self._loaded = self._load()
                except Exception as error:
                    self._loaded = error
                self._began_ns = began_ns
            loaded = self._loaded
        if isinstance(loaded, Exception):
            raise loaded.with_traceback(None)
        return loaded


class Reading(NamedTuple):
    """Table and coverage compared, window by window.

    Attributes:
        span: The range that was compared. With a limit it ends after the last candle within the limit.
        missing: Ranges in it that coverage does not claim.
        snapshot_id: Snapshot of the table; None for a table without snapshots.
    """

    span: TimeRange
    missing: list[TimeRange]
    found: CoverageComparison
    snapshot_id: int | None


def compare_rows(
    rows: CandleRows,
    series: Series,
    span: TimeRange,
    covered: list[TimeRange],
    empty: list[TimeRange],
    limit: int | None,
) -> Reading:
    """Compare rows with the claims of coverage in ``span``, up to the ``limit``-th row. Blocking.

    Raises:
        Unavailable: The table cannot be read.
    """
    found, period = CoverageComparison(), series.period_seconds
    claimed, void = RangeSet(covered), RangeSet(empty)
    for window in split_by_periods(span, period, WINDOW_PERIODS):
        times, part, left = rows.times(series, window), window, None if limit is None else limit - found.rows
        if left is not None and len(times) >= left:
            last_ns = int(np.partition(times, left - 1)[left - 1])
            part = TimeRange(window.start_ns, next_open(floor_to_grid(last_ns, period), period))
            span = TimeRange(span.start_ns, part.end_ns)
            times = times[times < part.end_ns]
        found.add(compare(times, claimed.within(part), void.within(part), period))
        if span.end_ns == part.end_ns:
            break
    return Reading(span, claimed.holes(span), found, rows.snapshot_id)
