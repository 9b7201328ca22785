"""Rows read from a catalog that this machine can reach. Blocking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dexorder.rows.answers import OnNote, without_bookkeeping
from dexorder.rows.reading import StoredRows, find_stored, read_batches, read_rows
from dexorder.rows.reading_market import read_snapshots, read_trades
from dexorder.rows.table import Rows
from dexorder_common.model.history import RequestRecord
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange


@dataclass(frozen=True)
class CatalogSource:
    """Source of rows: the tables of a catalog."""

    name: str
    properties: Mapping[str, str]

    def table(self, record: RequestRecord, on_note: OnNote) -> Rows:
        """Return the rows of a request that has ended; see `read_rows`."""
        return Rows(read_rows(self.name, self.properties, record, on_note))

    def batches(self, record: RequestRecord, on_note: OnNote) -> Iterator[Rows]:
        """Yield the same rows in bounded memory; see `read_batches`."""
        return map(Rows, read_batches(self.name, self.properties, record, on_note))

    def stored(self, series: Series, span: TimeRange) -> StoredRows:
        """Count the rows that the table has now; see `find_stored`."""
        return find_stored(self.name, self.properties, series, span)

    def trades(self, ticker: str, span: TimeRange) -> Rows:
        """Return the stored trades of a market; see `read_trades`."""
        return without_bookkeeping(Rows(read_trades(self.name, self.properties, ticker, span)))

    def snapshots(self, venue: str, span: TimeRange) -> Rows:
        """Return the last snapshot of each market of an exchange; see `read_snapshots`."""
        return without_bookkeeping(Rows(read_snapshots(self.name, self.properties, venue, span)))
