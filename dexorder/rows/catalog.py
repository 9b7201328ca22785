"""Rows read from the tables of a catalog. Blocking; the async client uses a thread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import ArrowException
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import DataScan, Table
from sqlalchemy.exc import SQLAlchemyError

from dexorder.errors import CatalogError
from dexorder.rows.answers import SQLITE, OnNote, answered_span, check_rows, note_expired, without_bookkeeping
from dexorder.rows.table import Rows
from dexorder.rows.udf_rows import typed
from dexorder_common.config import BadSettings, read_settings
from dexorder_common.lake import catalog as lake
from dexorder_common.lake.market_rows import in_order, last_snapshots
from dexorder_common.lake.tables import (
    OHLC,
    TICKERS,
    UDF_OUTPUTS,
    IcebergTable,
    received_in,
    rows_in,
    table_of,
    times_in,
    udf_table,
)
from dexorder_common.model.history import RequestRecord
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import next_open, split_by_periods
from dexorder_common.model.time_range import TimeRange

PIECE_PERIODS = 200_000
"""Periods read at a time when rows are streamed: about 20 MB of candles, and few scans."""


def catalog_properties(announced_name: str, announced: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the catalog's name and properties: those the relay announced, overridden by ``DEXORDER_CATALOG_<NAME>``.

    The relay does not announce secrets; they are set here. The URI of PostgreSQL names the installed driver.
    CatalogError names a variable that is invalid.
    """
    try:
        own = read_settings(lake.CatalogSettings)
    except BadSettings as error:
        raise CatalogError(str(error)) from None
    properties = own.over(announced)
    if "uri" in properties:
        properties["uri"] = lake.with_driver(properties["uri"])
    return own.name if "name" in own.model_fields_set else announced_name, properties


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog for reading.

    Raises:
        CatalogError: Its SQLite file is not on this machine (opening it would create an empty one), or the catalog
            can't be reached.
    """
    uri = properties.get("uri", "")
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        raise CatalogError(
            f"the catalog {uri} is not on this machine; set DEXORDER_CATALOG_URI to where it can be reached"
        )
    try:
        return lake.open_catalog(name, properties)
    except Exception as error:  # each kind of catalog has its own errors
        raise CatalogError(
            f"catalog {name} can't be opened: {(str(error) or type(error).__name__).splitlines()[0]}; if it needs a "
            "password or keys, set DEXORDER_CATALOG_PASSWORD or DEXORDER_CATALOG_PROPERTIES"
        ) from error


@dataclass(frozen=True)
class RequestedRows:
    """The table and snapshot with the rows of a request that has ended."""

    table: Table
    record: RequestRecord
    snapshot_id: int | None
    """The announced snapshot, or the current one if that has expired; None if the table has none."""
    expired: bool

    @property
    def span(self) -> TimeRange:
        """The range of the rows."""
        return answered_span(self.record)

    def rows(self) -> pa.Table:
        """Return all rows, ascending by ``open_time``; HistoryMismatch if they are not as many as announced."""
        rows = self._scan(self.span).to_arrow().sort_by("open_time")
        rows = rows if self.record.limit is None else rows.slice(0, self.record.limit)
        self._check(rows.num_rows, pc.count_distinct(rows["open_time"]).as_py())
        return rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of at most ``PIECE_PERIODS``; at least one batch, which may be empty.

        The rows are counted first, by reading one column, so that no row is returned if their number is wrong.
        """
        opens = self._scan(self.span, "open_time")
        count = self._distinct(opens) if self.expired else opens.count()  # the relay has verified the announced one
        left = count if self.record.limit is None else min(count, self.record.limit)
        self._check(left, left)
        for span in split_by_periods(self.span, self.record.period_seconds, PIECE_PERIODS):
            piece = self._scan(span).to_arrow().sort_by("open_time").slice(0, left).combine_chunks()
            if piece.num_rows:
                yield from piece.to_batches()
                left -= piece.num_rows
            if not left:
                break
        if not self.record.row_count:
            yield _no_rows(self.table)

    def note(self, on_note: OnNote) -> None:
        """Call ``on_note`` with a sentence if the announced snapshot has expired."""
        if self.expired:
            note_expired(self.record, self.snapshot_id, on_note)

    def _scan(self, span: TimeRange, *columns: str) -> DataScan:
        wanted = rows_in(self.record.request.series, span)
        return self.table.scan(wanted, selected_fields=columns or ("*",), snapshot_id=self.snapshot_id)

    def _distinct(self, opens: DataScan) -> int:
        times = opens.to_arrow()["open_time"].sort().slice(0, self.record.limit)
        distinct: int = pc.count_distinct(times).as_py()
        self._check(len(times), distinct)
        return distinct

    def _check(self, rows: int, distinct: int) -> None:
        check_rows(self.record, rows, distinct, self.snapshot_id, expired=self.expired)


@dataclass(frozen=True)
class StoredRows:
    """The rows of a series in a range that the table has now, whether or not a request covers them."""

    table: Table
    series: Series
    span: TimeRange
    """From the first row to the last one's end; empty if there is none."""
    row_count: int
    snapshot_id: int | None

    def batches(self) -> Iterator[Rows]:
        """Yield the rows, ascending by ``open_time``, in bounded memory; at least one batch, which may be empty."""
        if not self.row_count:
            yield Rows(_no_rows(self.table))
            return
        with readable():
            for span in split_by_periods(self.span, self.series.period_seconds, PIECE_PERIODS):
                wanted = rows_in(self.series, span)
                rows = self.table.scan(wanted, snapshot_id=self.snapshot_id).to_arrow().sort_by("open_time")
                yield from map(Rows, rows.combine_chunks().to_batches())


@dataclass(frozen=True)
class CatalogSource:
    """Source of rows: the tables of a catalog that this machine can reach. Its methods raise CatalogError."""

    name: str
    properties: Mapping[str, str]

    def find(self, record: RequestRecord) -> RequestedRows:
        """Load the table of a request that has ended, and choose the snapshot."""
        table = load_table(self.name, self.properties)
        if record.snapshot_id is None or table.snapshot_by_id(record.snapshot_id) is not None:
            return RequestedRows(table, record, record.snapshot_id, False)
        current = table.current_snapshot()
        return RequestedRows(table, record, None if current is None else current.snapshot_id, True)

    def table(self, record: RequestRecord, on_note: OnNote) -> Rows:
        """Return the rows of a request that has ended, ascending, with all columns of ``trading.ohlc``.

        ``on_note`` is called if the announced snapshot has expired and the current one was read.

        Raises:
            HistoryMismatch: The number of rows is not ``record.row_count``.
        """
        found = self.find(record)
        with readable():
            rows = found.rows()
        found.note(on_note)
        return Rows(rows)

    def batches(self, record: RequestRecord, on_note: OnNote) -> Iterator[Rows]:
        """Yield the same rows in the same order, in bounded memory; at least one batch, which may be empty."""
        found = self.find(record)
        with readable():
            for number, batch in enumerate(found.batches()):
                if not number:
                    found.note(on_note)
                yield Rows(batch)

    def stored(self, series: Series, span: TimeRange) -> StoredRows:
        """Count the rows of a series that open in a range, at the current snapshot."""
        table = load_table(self.name, self.properties)
        current = table.current_snapshot()
        snapshot_id = None if current is None else current.snapshot_id
        with readable():
            scan = table.scan(rows_in(series, span), selected_fields=("open_time",), snapshot_id=snapshot_id)
            opens = scan.to_arrow()["open_time"]
        found = TimeRange(span.start_ns, span.start_ns)
        if len(opens):
            ends_us: Any = pc.min_max(opens.cast(pa.int64())).as_py()
            found = TimeRange(ends_us["min"] * 1_000, next_open(ends_us["max"] * 1_000, series.period_seconds))
        return StoredRows(table, series, found, len(opens), snapshot_id)

    def snapshot_id(self, series: Series, span: TimeRange) -> int | None:
        """Return the current snapshot of the table of a series, independent of the range."""
        current = load_table(self.name, self.properties, table_of(series.dataset)).current_snapshot()
        return None if current is None else current.snapshot_id

    def at(self, series: Series, span: TimeRange, snapshot_id: int) -> Iterator[Rows] | None:
        """Return the rows of a series at a snapshot, ascending, in batches; None if the snapshot is not kept."""
        declared = table_of(series.dataset)
        table = load_table(self.name, self.properties, declared)
        return None if table.snapshot_by_id(snapshot_id) is None else _rows_at(table, series, span, snapshot_id)

    def points(self, series: Series, span: TimeRange) -> Rows:
        """Return the stored rows of a dataset without periods in a range, ascending."""
        found = self._scan(table_of(series.dataset), rows_in(series, span))
        return without_bookkeeping(Rows(in_order(found, series.dataset)))

    def udf_rows(self, name: str, span: TimeRange) -> Rows:
        """Return the rows of a UDF in a range of time, by sequence, with a column for each tag and field."""
        declared = udf_table(name)
        table = load_table(self.name, self.properties, declared)
        with readable(declared):
            found = table.scan(times_in(span)).to_arrow()
        return Rows(typed(found, json.loads(table.properties.get(UDF_OUTPUTS) or "{}")))

    def snapshots(self, venue: str, span: TimeRange) -> Rows:
        """Return the last snapshot of each market of an exchange that was received in a range, by ticker."""
        return without_bookkeeping(Rows(last_snapshots(self._scan(TICKERS, received_in(span)), venue)))

    def _scan(self, declared: IcebergTable, wanted: BooleanExpression) -> pa.Table:
        table = load_table(self.name, self.properties, declared)
        with readable(declared):
            return table.scan(wanted).to_arrow()


def _rows_at(table: Table, series: Series, span: TimeRange, snapshot_id: int) -> Iterator[Rows]:
    dataset = series.dataset
    parts = split_by_periods(span, series.period_seconds, PIECE_PERIODS) if dataset.has_periods else [span]
    with readable(table_of(dataset)):
        for part in parts:
            rows = table.scan(rows_in(series, part), snapshot_id=snapshot_id).to_arrow()
            yield Rows(in_order(rows, dataset))


def load_table(name: str, properties: Mapping[str, str], declared: IcebergTable = OHLC) -> Table:
    """Load a table, by default ``trading.ohlc``; CatalogError if the catalog or the table is missing or unavailable."""
    try:
        catalog: Any = open_catalog(name, properties)
        with closing(catalog) if hasattr(catalog, "close") else nullcontext():
            table = declared.load(catalog)
    except (OSError, SQLAlchemyError, RESTError) as error:
        raise CatalogError(
            f"{declared.name} in catalog {name} can't be read from here: {error}; check that catalog and warehouse can "
            "be reached and that no file of the table was deleted"
        ) from None
    if table is None:
        raise CatalogError(f"catalog {name} does not contain the table {declared.name}")
    return table


def _no_rows(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.schema().as_arrow())


@contextmanager
def readable(declared: IcebergTable = OHLC) -> Iterator[None]:
    """Raise CatalogError if the files of a table can't be read in the block."""
    try:
        yield
    except FileNotFoundError as error:
        raise CatalogError(
            f"a file of {declared.name} is gone: {error}; read again, in case its snapshot has just expired; if that "
            "does not help, the table is damaged: restore the file or a backup"
        ) from None
    except (OSError, ArrowException) as error:
        raise CatalogError(
            f"the files of {declared.name} can't be read from here: {error}; check the warehouse's address and keys "
            "(DEXORDER_CATALOG_PROPERTIES)"
        ) from None
