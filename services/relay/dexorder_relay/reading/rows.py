"""Rows of a table at one snapshot: candles, and the datasets without periods. Blocking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from dexorder_common.lake.market_rows import in_order, last_snapshots
from dexorder_common.lake.tables import OHLC, IcebergTable, received_in, rows_in
from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.reading.series_times import NO_TIMES, SeriesTimes, open_times, times_us
from dexorder_relay.state.compare import Times

CANDLE_COLUMNS = ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades")
RETRY_SECONDS = 5.0
"""Time after which a caller may ask again for a table that can't be read."""
MAX_BUCKETS = 100_000
FIRST_WIDTH_US = 1_000_000


@contextmanager
def accessible(table: IcebergTable, action: str = "read") -> Iterator[None]:
    """Turn any foreign error of the block, which uses a table, into Unavailable with table, cause and next step."""
    try:
        yield
    except SuiteError:
        raise
    except Exception as error:  # catalog, object store and file system raise different errors
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise Unavailable(
            f"{table.name} can't be {action}: {cause}; check that catalog and warehouse can be reached and that no "
            "file of the table was deleted, then try again",
            retry_seconds=RETRY_SECONDS,
        ) from error


@dataclass(frozen=True)
class SnapshotRows:
    """Rows of a table at one snapshot; empty without a table or snapshot.

    Each method raises Unavailable if the table's files can't be read.
    """

    table: Table | None
    snapshot_id: int | None
    declared: IcebergTable = OHLC

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table's columns; the declared one if the table does not exist."""
        return self.declared.arrow if self.table is None else self.table.schema().as_arrow()

    def _batches(self, wanted: BooleanExpression, *columns: str) -> Iterator[pa.RecordBatch]:
        if self.table is None or self.snapshot_id is None:
            return
        with accessible(self.declared):
            scan = self.table.scan(wanted, selected_fields=columns or ("*",), snapshot_id=self.snapshot_id)
            yield from scan.to_arrow_batch_reader()

    def _whole(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Return batches as one table with the schema; a reader's batches may have other forms of text."""
        return pa.Table.from_batches([batch.cast(self.schema) for batch in batches], self.schema)


class RowSummary(NamedTuple):
    """Number of rows and open times of the first and the last one; 0 without rows."""

    rows: int = 0
    first_ns: int = 0
    last_ns: int = 0


@dataclass(frozen=True)
class CandleRows(SnapshotRows):
    """Rows of ``trading.ohlc``."""

    series_times: SeriesTimes = field(default_factory=SeriesTimes)

    def times(self, series: Series, span: TimeRange) -> Times:
        """Return the open times of the rows in ``span``, nanoseconds, in any order."""
        if self.table is None or self.snapshot_id is None:
            return NO_TIMES
        with accessible(OHLC):
            found = self.series_times.read(self.table, self.snapshot_id, series, span)
            if found is not None:
                return found
            scan = self.table.scan(rows_in(series, span), selected_fields=OHLC.key, snapshot_id=self.snapshot_id)
            return np.concatenate([NO_TIMES, *map(open_times, scan.to_arrow_batch_reader())])

    def summary(self, series: Series, span: TimeRange) -> RowSummary:
        """Return the number of the rows in ``span`` and their ends."""
        found = RowSummary()
        for batch in self._batches(rows_in(series, span), "open_time"):
            if len(times := open_times(batch)):
                first_ns = min(int(times.min()), found.first_ns) if found.rows else int(times.min())
                found = RowSummary(found.rows + len(times), first_ns, max(int(times.max()), found.last_ns))
        return found

    def whole(self, series: Series, span: TimeRange) -> pa.Table:
        """Return the rows that open in ``span`` with all columns, ascending. Holds all of them in memory."""
        return self._whole(self._batches(rows_in(series, span))).sort_by("open_time")

    def candles(self, series: Series, span: TimeRange) -> pa.Table:
        """Return the rows that open in ``span``, ascending; columns ``CANDLE_COLUMNS``. Holds all of them in memory."""
        batches = list(self._batches(rows_in(series, span), *CANDLE_COLUMNS))
        found = pa.Table.from_batches(batches, None if batches else self.schema)
        return found.select(CANDLE_COLUMNS).sort_by("open_time")


class TimeCounts:
    """Counts of rows in buckets of one width, at most ``MAX_BUCKETS``.

    The width is a second at first, and doubles whenever there would be more: 1.6 MB however many rows there are.
    """

    def __init__(self) -> None:
        self.total = 0
        self._width_us = FIRST_WIDTH_US
        self._buckets: Times = np.empty(0, np.int64)
        self._counts: Times = np.empty(0, np.int64)

    def add(self, times_us: Times) -> None:
        """Count rows, in any order, by their times in microseconds since the epoch."""
        self.total += len(times_us)
        found, counts = np.unique(times_us // self._width_us, return_counts=True)
        self._join(np.concatenate([self._buckets, found]), np.concatenate([self._counts, counts]))
        while len(self._buckets) > MAX_BUCKETS:
            self._width_us *= 2
            self._join(self._buckets // 2, self._counts)

    def windows(self, limit: int) -> list[TimeRange]:
        """Return ranges, ascending, that contain all rows, each with at most ``limit`` of them.

        A bucket with more rows is a range by itself. No row lies between two ranges.
        """
        ranges, size, first = list[tuple[int, int]](), 0, 0
        buckets, counts = self._buckets.tolist(), self._counts.tolist()
        for index, count in enumerate(counts):
            if size and size + count > limit:
                ranges.append((buckets[first], buckets[index - 1] + 1))
                size, first = 0, index
            size += count
        if size:
            ranges.append((buckets[first], buckets[-1] + 1))
        width_ns = self._width_us * 1_000
        return [TimeRange(start * width_ns, min(end * width_ns, MAX_TIME_NS)) for start, end in ranges]

    def _join(self, buckets: Times, counts: Times) -> None:
        self._buckets, places = np.unique(buckets, return_inverse=True)
        self._counts = np.zeros(len(self._buckets), np.int64)
        np.add.at(self._counts, places, counts)


class MarketRows(SnapshotRows):
    """Rows of a dataset's table."""

    def times(self, series: Series, span: TimeRange) -> Iterator[Times]:
        """Yield the times of a series' rows in ``span``, in microseconds and in any order."""
        column = series.dataset.time_column
        for batch in self._batches(rows_in(series, span), column):
            yield times_us(batch, column)

    def count(self, series: Series, span: TimeRange) -> TimeCounts:
        """Count the rows of a series in ``span`` by time."""
        counts = TimeCounts()
        for times in self.times(series, span):
            counts.add(times)
        return counts

    def rows(self, series: Series, span: TimeRange) -> pa.Table:
        """Return the rows of a series in ``span``, ascending. Holds all of them in memory."""
        return in_order(self._whole(self._batches(rows_in(series, span))), series.dataset)

    def last_snapshots(self, venue: str, span: TimeRange) -> pa.Table:
        """Return the last snapshot of each market that was received in ``span``, by ticker, in memory of one each."""
        last = self._whole(())
        for batch in self._batches(received_in(span)):
            last = last_snapshots(pa.concat_tables([last, self._whole([batch])]), venue)
        return last
