"""Reads of the Iceberg tables: claims of coverage, rows of a range at a snapshot, and what coverage claims of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import And, EqualTo, GreaterThan, GreaterThanOrEqual, LessThan
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.types import LongType

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.commit_state import state_of
from dexorder_common.lake.coverage import CLAIM_COLUMNS, Claim, CoverageRow, decode_claim, decode_coverage
from dexorder_common.lake.tables import COVERAGE, OHLC, IcebergTable, present_columns, rows_in
from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import floor_to_grid, next_open, split_by_periods
from dexorder_common.model.time_range import RangeSet, TimeRange
from dexorder_common.model.times import iso_microseconds
from dexorder_relay.state.compare import WINDOW_PERIODS, CoverageComparison, Times, compare

KEY = OHLC.key
READING_THREADS = 4
CANDLE_COLUMNS = ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades")
RETRY_SECONDS = 5.0
"""Time after which a caller may ask again for a table that can't be read."""
_NONE = np.empty(0, np.int64)


@contextmanager
def accessible(table: IcebergTable, action: str = "read") -> Iterator[None]:
    """Turn any foreign error of the block, which uses a table, into Unavailable with table, cause and next step."""
    try:
        yield
    except SuiteError:
        raise
    except Exception as error:  # catalog, object store and file system raise errors of their own
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise Unavailable(
            f"{table.name} can't be {action}: {cause}; check that catalog and warehouse can be reached and that no "
            "file of the table was deleted, then try again",
            retry_seconds=RETRY_SECONDS,
        ) from error


@dataclass(frozen=True)
class RowSummary:
    """Number of rows and open times of the first and the last one; 0 without rows."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0


@dataclass(frozen=True)
class CandleRows:
    """Rows of ``trading.ohlc`` at one snapshot; none if the table has no snapshot. Blocking.

    Each method raises Unavailable if the table's files can't be read.
    """

    table: Table | None
    snapshot_id: int | None

    def times(self, series: Series, span: TimeRange) -> Times:
        """Return the open times of the rows in ``span``, nanoseconds, in any order."""
        if self.table is None or self.snapshot_id is None:
            return _NONE
        with accessible(OHLC):
            scan = self.table.scan(rows_in(series, span), selected_fields=KEY, snapshot_id=self.snapshot_id)
            files = list(scan.plan_files())
            if any(file.delete_files for file in files):  # a row in them was replaced
                return np.concatenate([_NONE, *map(_open_times, scan.to_arrow_batch_reader())])
            # pyiceberg's own reader spends three times as long, most of it between the files
            with ThreadPoolExecutor(READING_THREADS) as pool:
                keys = pool.map(partial(_read_keys, self.table.io), (file.file.file_path for file in files))
                return np.concatenate([_NONE, *(_open_times_in(rows, series, span) for rows in keys)])

    def extent(self, series: Series, span: TimeRange) -> tuple[int, int] | None:
        """Return open times of the first and the last row in ``span``; None without rows."""
        opens = map(_open_times, self._batches(series, span, ("open_time",)))
        ends = [(int(times.min()), int(times.max())) for times in opens if len(times)]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def summary(self, series: Series, span: TimeRange) -> RowSummary:
        """Return the number of the rows in ``span`` and their ends."""
        found = RowSummary()
        for batch in self._batches(series, span, ("open_time",)):
            if len(times := _open_times(batch)):
                first_ns = min(int(times.min()), found.first_ns) if found.count else int(times.min())
                found = RowSummary(found.count + len(times), first_ns, max(int(times.max()), found.last_ns))
        return found

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table's columns; that of the declaration if there is no table."""
        return OHLC.arrow if self.table is None else self.table.schema().as_arrow()

    def whole(self, series: Series, span: TimeRange) -> pa.Table:
        """Return the rows that open in ``span`` with all columns, ascending. Holds all of them in memory."""
        batches = list(self._batches(series, span, ("*",)))
        return pa.Table.from_batches(batches, None if batches else self.schema).sort_by("open_time")

    def candles(self, series: Series, span: TimeRange) -> pa.Table:
        """Return the rows that open in ``span``, ascending; columns ``CANDLE_COLUMNS``. Holds all of them in memory."""
        batches = list(self._batches(series, span, CANDLE_COLUMNS))
        if not batches:
            return pa.table({name: pa.array([], pa.int64()) for name in CANDLE_COLUMNS})
        return pa.Table.from_batches(batches).sort_by("open_time")

    def _batches(self, series: Series, span: TimeRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        if self.table is None or self.snapshot_id is None:
            return
        with accessible(OHLC):
            scan = self.table.scan(rows_in(series, span), selected_fields=columns, snapshot_id=self.snapshot_id)
            yield from scan.to_arrow_batch_reader()


class TableReader:
    """Reads ``trading.ohlc`` and ``trading.coverage``. A table that does not exist is read as empty. Blocking.

    Each method raises Unavailable if the catalog or the table's files can't be read.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

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

    def current(self) -> CandleRows:
        """Return the rows that every reader of the table gets now."""
        with accessible(OHLC):
            table = OHLC.load(self._catalog)
        current = table.current_snapshot() if table else None
        return CandleRows(table, current.snapshot_id if current else None)

    def at(self, snapshot_id: int | None) -> CandleRows:
        """Return the rows at a snapshot, or at the current one if it is no longer kept."""
        rows = self.current()
        kept = snapshot_id is not None and rows.table is not None and rows.table.snapshot_by_id(snapshot_id)
        return CandleRows(rows.table, snapshot_id) if kept else rows


def _read_keys(io: FileIO, path: str) -> pa.Table:
    with io.new_input(path).open() as file:
        return pq.ParquetFile(cast(pa.NativeFile, file)).read(columns=list(KEY), use_threads=False)


def _open_times_in(rows: pa.Table, series: Series, span: TimeRange) -> Times:
    """Return the open times of those rows of a file that belong to a series and open in ``span``."""
    of_series = (pc.field("ticker") == series.ticker) & (pc.field("period_seconds") == series.period_seconds)
    times = _open_times(rows.filter(of_series))
    return times[(times >= span.start_ns) & (times < span.end_ns)]


def _open_times(batch: pa.RecordBatch | pa.Table) -> Times:
    return pc.cast(pc.cast(batch.column("open_time"), MICROSECONDS), pa.int64()).to_numpy() * 1_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Table and coverage compared, window by window.

    Attributes:
        span: The range that was compared. With a limit it ends after the last candle within the limit.
        missing: Ranges in it that coverage does not claim.
        snapshot_id: Snapshot of the table; None if the table has none.
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
    """Compare rows with what coverage claims in ``span``, as far as the ``limit``-th row. Blocking.

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
