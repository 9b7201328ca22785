"""Reads of ``trading.ticks`` and ``trading.tickers`` at a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from dexorder_common.lake.market_rows import last_snapshots, sort_trades
from dexorder_common.lake.tables import (
    MICROSECONDS,
    TICKERS,
    TICKS,
    IcebergTable,
    received_in,
    rows_in,
)
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import NotFound
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.reading.table_reader import accessible
from dexorder_relay.reading.time_counts import TimeCounts


@dataclass(frozen=True)
class MarketRows:
    """Rows of one of the two tables at one snapshot; none if the table has no snapshot. Blocking.

    Each method raises Unavailable if the table's files can't be read.
    """

    declared: IcebergTable
    table: Table
    snapshot_id: int | None

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table's columns."""
        return self.table.schema().as_arrow()

    def count_trades(self, ticker: str, span: TimeRange) -> TimeCounts:
        """Count the trades of an instrument in ``span`` by time."""
        counts = TimeCounts()
        for batch in self._batches(rows_in(Series(ticker, dataset=TRADES), span), "time"):
            counts.add(pc.cast(pc.cast(batch.column("time"), MICROSECONDS), pa.int64()).to_numpy())
        return counts

    def trades(self, ticker: str, span: TimeRange) -> pa.Table:
        """Return the trades of an instrument in ``span`` by time and id. Holds all of them in memory."""
        return sort_trades(self._table(self._batches(rows_in(Series(ticker, dataset=TRADES), span))))

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
    """Opens the two tables. Blocking.

    Its methods raise NotFound if the table does not exist yet, and Unavailable if the catalog can't be read.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def trades(self, snapshot_id: int | None) -> MarketRows:
        """Return ``trading.ticks`` at a snapshot, or at the current one if it is no longer kept."""
        return self._at(TICKS, snapshot_id)

    def tickers(self, snapshot_id: int | None) -> MarketRows:
        """Return ``trading.tickers``, likewise."""
        return self._at(TICKERS, snapshot_id)

    def _at(self, declared: IcebergTable, snapshot_id: int | None) -> MarketRows:
        with accessible(declared):
            table = declared.load(self._catalog)
            if table is None:
                raise NotFound(f"the catalog does not contain the table {declared.name} yet")
            if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is not None:
                return MarketRows(declared, table, snapshot_id)
            current = table.current_snapshot()
            return MarketRows(declared, table, None if current is None else current.snapshot_id)
