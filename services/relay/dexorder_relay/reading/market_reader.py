"""Reads of the tables of all datasets at a snapshot. ``table_reader.py`` reads candles faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.market_rows import in_order, last_snapshots
from dexorder_common.lake.tables import IcebergTable, received_in, rows_in, table_of
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.errors import NotFound
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import RangeSet, TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.reading.table_reader import Reading, accessible
from dexorder_relay.state.compare import CoverageComparison, Times

MAX_BUCKETS = 100_000
FIRST_WIDTH_US = 1_000_000
Integers: TypeAlias = NDArray[np.int64]


class TimeCounts:
    """Counts of rows in buckets of one width, at most ``MAX_BUCKETS``.

    The width is a second at first, and doubles whenever there would be more: 1.6 MB however many rows there are.
    """

    def __init__(self) -> None:
        self.total = 0
        self._width_us = FIRST_WIDTH_US
        self._buckets: Integers = np.empty(0, np.int64)
        self._counts: Integers = np.empty(0, np.int64)

    def add(self, times_us: Integers) -> None:
        """Count rows, in any order, by their times in microseconds since the epoch."""
        self.total += len(times_us)
        found, counts = np.unique(times_us // self._width_us, return_counts=True)
        self._join(np.concatenate([self._buckets, found]), np.concatenate([self._counts, counts]))
        while len(self._buckets) > MAX_BUCKETS:
            self._width_us *= 2
            self._join(self._buckets // 2, self._counts)

    def windows(self, limit: int) -> list[TimeRange]:
        """Return ranges, ascending, that contain all rows, each with at most ``limit`` of them.

        A bucket with more rows is a range of its own. Time between two ranges has no rows.
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

    def _join(self, buckets: Integers, counts: Integers) -> None:
        self._buckets, places = np.unique(buckets, return_inverse=True)
        self._counts = np.zeros(len(self._buckets), np.int64)
        np.add.at(self._counts, places, counts)


@dataclass(frozen=True)
class MarketRows:
    """Rows of a dataset's table at one snapshot; none if the table has no snapshot. Blocking.

    Each method raises Unavailable if the table's files can't be read.
    """

    declared: IcebergTable
    table: Table
    snapshot_id: int | None

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table's columns."""
        return self.table.schema().as_arrow()

    def times(self, series: Series, span: TimeRange) -> Iterator[Times]:
        """Yield the times of a series' rows in ``span``, in microseconds and in any order."""
        column = series.dataset.time_column
        for batch in self._batches(rows_in(series, span), column):
            yield pc.cast(pc.cast(batch.column(column), MICROSECONDS), pa.int64()).to_numpy()

    def count(self, series: Series, span: TimeRange) -> TimeCounts:
        """Count the rows of a series in ``span`` by time."""
        counts = TimeCounts()
        for times in self.times(series, span):
            counts.add(times)
        return counts

    def rows(self, series: Series, span: TimeRange) -> pa.Table:
        """Return the rows of a series in ``span``, ascending. Holds all of them in memory."""
        return in_order(self._table(self._batches(rows_in(series, span))), series.dataset)

    def last_snapshots(self, venue: str, span: TimeRange) -> pa.Table:
        """Return the last snapshot of each market that was received in ``span``, by ticker, in memory of one each."""
        last = self._table(())
        for batch in self._batches(received_in(span)):
            last = last_snapshots(pa.concat_tables([last, self._table([batch])]), venue)
        return last

    def _table(self, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch] | tuple[()]) -> pa.Table:
        """Return batches as one table with the schema; a reader's batches may have other forms of text."""
        found = [batch.cast(self.schema) for batch in batches]
        return pa.Table.from_batches(found, self.schema)

    def _batches(self, wanted: BooleanExpression, *columns: str) -> Iterator[pa.RecordBatch]:
        if self.snapshot_id is None:
            return
        with accessible(self.declared):
            scan = self.table.scan(wanted, selected_fields=columns or ("*",), snapshot_id=self.snapshot_id)
            yield from scan.to_arrow_batch_reader()


class MarketReader:
    """Opens the tables of all datasets. Blocking. Its methods raise Unavailable if the catalog can't be read."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def compare_times(self, series: Series, span: TimeRange, covered: list[TimeRange]) -> Reading:
        """Count the rows of a dataset without periods, of which coverage says only where they are complete."""
        found, snapshot_id, missing = CoverageComparison(), None, RangeSet(covered).holes(span)
        try:
            rows = self.at(series.dataset, None)
        except NotFound:
            return Reading(span, missing, found, snapshot_id)
        times = np.concatenate([np.empty(0, np.int64), *rows.times(series, span)]) * 1_000
        distinct, counts = np.unique(times, return_counts=True)
        found.rows, found.surplus_rows = len(times), len(times) - len(distinct)
        found.duplicates = [TimeRange(time_ns, time_ns + 1) for time_ns in distinct[counts > 1].tolist()]
        return Reading(span, missing, found, rows.snapshot_id)

    def at(self, dataset: Dataset, snapshot_id: int | None) -> MarketRows:
        """Return the table of a dataset at a snapshot, or at the current one if it is no longer kept.

        NotFound if the table does not exist yet.
        """
        declared = table_of(dataset)
        with accessible(declared):
            table = declared.load(self._catalog)
            if table is None:
                raise NotFound(f"the catalog does not contain the table {declared.name} yet")
            if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is not None:
                return MarketRows(declared, table, snapshot_id)
            current = table.current_snapshot()
            return MarketRows(declared, table, None if current is None else current.snapshot_id)
