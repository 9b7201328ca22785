"""Declarations of the suite's Iceberg tables.

Each table is one ``IcebergTable``: name, schema, key, version column, layout. Arrow schemas and Spark DDL are derived
from it. A new table is one more declaration, here or in its own file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from dexorder_common.lake.arrow_types import arrow_field, spark_ddl, with_integer_times
from dexorder_common.model import datasets
from dexorder_common.model.datasets import DATASETS, NAMESPACE, Dataset
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso_microseconds
from dexorder_common.model.udf import UDF_PREFIX

_COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Prices do not repeat: a dictionary of 2 MiB, the default, costs as much CPU as all the rest, and is larger.
    "write.parquet.dict-size-bytes": "65536",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
_MERGE_ON_READ = {f"write.{action}.mode": "merge-on-read" for action in ("delete", "update", "merge")}
# One instrument of many is read: row groups of other instruments are skipped by their bounds.
_SMALL_ROW_GROUPS = {"write.parquet.row-group-size-bytes": str(1024 * 1024), "write.parquet.row-group-limit": "65536"}
_OF_JAVA = ("write.parquet.row-group-size-bytes",)  # pyiceberg has another one, in rows
# Batches are small and come from few tasks: a shuffle before the write costs more than the files it saves.
_NO_SHUFFLE = {f"write.{action}distribution-mode": "none" for action in ("", "delete.", "update.", "merge.")}
IN_PLACE = _COMMON | _MERGE_ON_READ | _NO_SHUFFLE
"""Properties of a table of market data; its rows may be replaced."""


@dataclass(frozen=True)
class IcebergTable:
    """Declaration of a table.

    Attributes:
        name: With the namespace.
        key: Columns that identify a row.
        version: Integer columns, compared in order, null as 0: of two rows with one key, the one with the larger
            values is kept. Empty if rows with one key are copies, of which the first is kept.
        partitions: Used when the table is created; an existing table keeps its partitions, ``order`` and
            ``properties``. Of ``schema`` it gets the optional columns that it lacks.
    """

    name: str
    schema: Schema
    key: tuple[str, ...]
    version: tuple[str, ...] = ()
    partitions: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    order: SortOrder = UNSORTED_SORT_ORDER
    properties: dict[str, str] = field(default_factory=lambda: dict(_COMMON))

    @cached_property
    def arrow(self) -> pa.Schema:
        """Arrow schema of a row."""
        return pa.schema([arrow_field(each) for each in self.schema.fields])

    @property
    def order_columns(self) -> tuple[str, ...]:
        """Columns by which rows are sorted in files: ``order``, else the key."""
        ordered = (self.schema.find_column_name(each.source_id) or "" for each in self.order.fields)
        return tuple(ordered) or self.key

    @property
    def ddl(self) -> str:
        """Columns of a row as Spark DDL."""
        return spark_ddl(self.arrow)

    def rows(self, found: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
        """Return rows as dictionaries of the declared columns that ``found`` has; times are microseconds as int.

        Reading times as integers is several times faster than as datetimes.
        """
        columns = [with_integer_times(each) for each in self.arrow if each.name in found.schema.names]
        rows: list[dict[str, Any]] = found.select([c.name for c in columns]).cast(pa.schema(columns)).to_pylist()
        return rows

    def load(self, catalog: Catalog) -> Table | None:
        """Return the table, or None if it does not exist."""
        try:
            return catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def load_or_create(self, catalog: Catalog) -> Table:
        """Return the table with all optional columns; create it and its namespace if they do not exist."""
        table = self.load(catalog)
        if table is not None:
            return self._evolved(table)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog.create_table_if_not_exists(
            self.name,
            self.schema,
            partition_spec=self.partitions,
            sort_order=self.order,
            properties=dict(self.properties),  # pyiceberg removes the format version from it
        )

    def _evolved(self, table: Table) -> Table:
        """Add the columns and properties that an earlier release did not declare, and set the docs of today."""
        if new := {k: v for k, v in self.properties.items() if k not in table.properties and k != "format-version"}:
            with table.transaction() as change_of_properties:
                change_of_properties.set_properties(new)
        present = {each.name: each for each in table.schema().fields}
        missing = [each for each in self.schema.fields if each.name not in present and each.optional]
        if missing:
            with table.update_schema() as change:
                for each in missing:
                    change.add_column(each.name, each.field_type, each.doc)
                for each in self.schema.fields:
                    if each.name in present and each.doc != present[each.name].doc:
                        change.update_column(each.name, doc=each.doc)
        return table


def writable(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata without the properties for Iceberg's Java, of which pyiceberg's writer warns."""
    known = {key: value for key, value in metadata.properties.items() if key not in _OF_JAVA}
    return metadata.model_copy(update={"properties": known})


def present_columns(table: Table, names: Iterable[str]) -> tuple[str, ...]:
    """Return those columns that a table has; one of an earlier release may lack optional ones."""
    return tuple(name for name in names if name in table.schema().column_names)


def rows_in(series: Series, span: TimeRange) -> BooleanExpression:
    """Return a filter for the rows of a series with a time in ``span``."""
    made: Any = expressions  # its constructors' annotations do not cover (column, value)
    dataset = series.dataset
    values = (made.EqualTo(column, getattr(series, column)) for column in dataset.series_columns)
    rows: BooleanExpression = made.And(*values, *_within(dataset.time_column, span))
    return rows


def times_in(span: TimeRange) -> BooleanExpression:
    """Return a filter for the rows of a UDF with a time in ``span``."""
    made: Any = expressions
    rows: BooleanExpression = made.And(*_within("time", span))
    return rows


def received_in(span: TimeRange) -> BooleanExpression:
    """Return a filter for the rows of ``TICKERS`` that were received in ``span``."""
    made: Any = expressions
    rows: BooleanExpression = made.And(*_within("received_at", span))
    return rows


def _within(column: str, span: TimeRange) -> tuple[BooleanExpression, BooleanExpression]:
    made: Any = expressions
    first, end = iso_microseconds(span.start_ns), iso_microseconds(span.end_ns)
    return made.GreaterThanOrEqual(column, first), made.LessThan(column, end)


# Field ids are stored in existing tables: never change them.


def required(number: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    """Return a column that is never null."""
    return NestedField(number, name, kind, required=True, doc=doc)


def optional(number: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    """Return a column that may be null."""
    return NestedField(number, name, kind, required=False, doc=doc)


OHLC = IcebergTable(
    datasets.CANDLES.table,
    Schema(
        required(1, "ticker", StringType(), "market, for example BTC/USDT.BINANCE"),
        required(2, "period_seconds", IntegerType(), "candle period in seconds"),
        required(3, "open_time", TimestamptzType(), "first moment of the candle, on the period's grid"),
        required(4, "open", DoubleType()),
        required(5, "high", DoubleType()),
        required(6, "low", DoubleType()),
        required(7, "close", DoubleType()),
        required(8, "volume", DoubleType(), "in units of the base currency"),
        optional(9, "quote_volume", DoubleType(), "in units of the quote currency, where the exchange gives it"),
        optional(10, "trades", LongType(), "number of trades, where the exchange gives it"),
        required(11, "fetched_at", TimestamptzType(), "when the exchange answered, by the ingestor's clock"),
        optional(12, "dispatch", LongType(), "number of the dispatch that brought the row; the larger one stays"),
        optional(13, "page", IntegerType(), "number of the page in its dispatch; the larger one stays"),
        identifier_field_ids=[1, 2, 3],
    ),
    key=("ticker", "period_seconds", "open_time"),
    version=("dispatch", "page"),
    partitions=PartitionSpec(
        PartitionField(3, 1000, MonthTransform(), "open_time_month"),
        PartitionField(1, 1001, BucketTransform(4), "ticker_bucket"),
    ),
    order=SortOrder(*(SortField(number, IdentityTransform()) for number in (1, 2, 3))),
    properties=IN_PLACE,
)
"""Candles."""

TICKS = IcebergTable(
    datasets.TRADES.table,
    Schema(
        required(1, "ticker", StringType(), "market, for example BTC/USDT.BINANCE"),
        required(2, "trade_id", StringType(), "the exchange's id of the trade, unique within a ticker"),
        required(3, "time", TimestamptzType(), "when it was traded, by the exchange's clock"),
        required(4, "price", DoubleType(), "in units of the quote currency"),
        required(5, "amount", DoubleType(), "in units of the base currency"),
        optional(6, "side", StringType(), "the taker's: buy or sell; null where the exchange does not say"),
        optional(7, "received_at", TimestamptzType(), "when the ingestor received it, by its own clock"),
        required(8, "dispatch", LongType(), "number of the dispatch that brought the row"),
        optional(9, "revision", LongType(), "when the exchange's correction was seen, in ns; null of the first values"),
        identifier_field_ids=[1, 2],
    ),
    key=("ticker", "trade_id"),
    version=("revision",),
    partitions=PartitionSpec(
        PartitionField(3, 1000, DayTransform(), "time_day"),
        PartitionField(1, 1001, BucketTransform(4), "ticker_bucket"),
    ),
    order=SortOrder(*(SortField(number, IdentityTransform()) for number in (1, 3, 2))),
    properties=IN_PLACE | _SMALL_ROW_GROUPS,
)
"""Trades."""

TICKERS = IcebergTable(
    datasets.TICKERS.table,
    Schema(
        required(1, "ticker", StringType(), "market, for example BTC/USDT.BINANCE"),
        required(2, "time", TimestamptzType(), "moment of the snapshot, by the exchange's clock where it gives one"),
        optional(3, "last", DoubleType(), "price of the last trade"),
        optional(4, "bid", DoubleType(), "best bid"),
        optional(5, "ask", DoubleType(), "best ask"),
        optional(6, "bid_size", DoubleType(), "amount at the best bid, in units of the base currency"),
        optional(7, "ask_size", DoubleType(), "amount at the best ask, in units of the base currency"),
        optional(8, "open", DoubleType(), "price 24 hours before"),
        optional(9, "high", DoubleType(), "highest price of the last 24 hours"),
        optional(10, "low", DoubleType(), "lowest price of the last 24 hours"),
        optional(11, "base_volume", DoubleType(), "amount of the last 24 hours in units of the base currency"),
        optional(12, "quote_volume", DoubleType(), "amount of the last 24 hours in units of the quote currency"),
        optional(13, "received_at", TimestamptzType(), "when the ingestor received it, by its own clock"),
        required(14, "dispatch", LongType(), "number of the dispatch that brought the row; the larger one stays"),
        required(15, "page", IntegerType(), "number of the record in its dispatch; the larger one stays"),
        identifier_field_ids=[1, 2],
    ),
    key=("ticker", "time"),
    version=("dispatch", "page"),
    partitions=PartitionSpec(PartitionField(2, 1000, DayTransform(), "time_day")),
    order=SortOrder(*(SortField(number, IdentityTransform()) for number in (2, 1))),
    properties=IN_PLACE,
)
"""Snapshots of the state of markets."""

FUNDING = IcebergTable(
    datasets.FUNDING.table,
    Schema(
        required(1, "ticker", StringType(), "market, for example BTC/USDT:USDT.BINANCE"),
        required(2, "funding_time", TimestamptzType(), "when it was paid, by the exchange's clock"),
        required(3, "rate", DoubleType(), "part of a position's value that longs paid to shorts"),
        optional(4, "mark_price", DoubleType(), "price at which positions were valued, where the exchange gives it"),
        optional(5, "interval_seconds", IntegerType(), "time since the payment before; null for the first one"),
        required(6, "fetched_at", TimestamptzType(), "when the exchange answered, by the ingestor's clock"),
        required(7, "dispatch", LongType(), "number of the dispatch that brought the row; the larger one stays"),
        required(8, "page", IntegerType(), "number of the page in its dispatch; the larger one stays"),
        identifier_field_ids=[1, 2],
    ),
    key=("ticker", "funding_time"),
    version=("dispatch", "page"),
    partitions=PartitionSpec(PartitionField(2, 1000, YearTransform(), "funding_time_year")),
    order=SortOrder(*(SortField(number, IdentityTransform()) for number in (1, 2))),
    properties=IN_PLACE,
)
"""Funding rates of perpetual futures."""

_DECLARED = {each.name: each for each in (OHLC, TICKS, TICKERS, FUNDING)}
MARKET_TABLES = tuple(_DECLARED[each.table] for each in DATASETS)
"""Tables of the datasets, in the order of the datasets."""


def table_of(dataset: Dataset) -> IcebergTable:
    """Return the declaration of a dataset's table."""
    return _DECLARED[dataset.table]


COVERAGE = IcebergTable(
    f"{NAMESPACE}.coverage",
    Schema(
        required(1, "ticker", StringType()),
        required(2, "period_seconds", IntegerType()),
        required(3, "start_time", TimestamptzType(), "first moment that is settled"),
        required(4, "end_time", TimestamptzType(), "first moment after it"),
        required(5, "rows", LongType(), "candles inside"),
        required(
            6,
            "empty",
            ListType(
                11,
                StructType(
                    required(12, "start_time", TimestamptzType()),
                    required(13, "end_time", TimestamptzType()),
                ),
                element_required=True,
            ),
            "ranges verified to hold no candle",
        ),
        required(7, "evidence", StringType(), "proofs of the range, as JSON; page if there are none"),
        required(8, "fetched_at", TimestamptzType()),
        required(9, "committed_at", TimestamptzType(), "when this row was written, after the candles"),
        optional(10, "dispatch", LongType(), "number of the dispatch that settled the range"),
        optional(14, "dataset", StringType(), "null for candles and, with period 0, trades"),
    ),
    key=("ticker", "period_seconds", "start_time", "end_time", "dispatch"),
)
"""Settled ranges. ``lake/coverage.py`` has the row."""

RETRACTIONS = IcebergTable(
    f"{NAMESPACE}.coverage_retractions",
    Schema(
        required(1, "ticker", StringType()),
        required(2, "period_seconds", IntegerType()),
        required(3, "start_time", TimestamptzType(), "first moment that is no longer settled"),
        required(4, "end_time", TimestamptzType(), "first moment after it"),
        required(5, "reason", StringType()),
        required(6, "retracted_at", TimestamptzType()),
        optional(7, "dispatch", LongType(), "pages of dispatches with a smaller number claim nothing inside"),
        optional(8, "dataset", StringType(), "null for candles and, with period 0, trades"),
    ),
    key=("ticker", "period_seconds", "start_time", "end_time", "dispatch", "retracted_at"),
)
"""Coverage that no longer holds. ``lake/coverage.py`` has the row. The relay creates it with the first retraction."""

DEAD_LETTERS = IcebergTable(
    f"{NAMESPACE}.dead_letters",
    Schema(
        required(1, "source", StringType(), "address of the source.v1 server"),
        required(2, "partition", IntegerType()),
        required(3, "offset", LongType()),
        required(4, "reason", StringType()),
        optional(5, "key", StringType()),
        required(6, "headers", MapType(11, StringType(), 12, StringType(), value_required=True)),
        optional(7, "payload", BinaryType()),
        required(8, "seen_at", TimestamptzType()),
    ),
    key=("source", "partition", "offset"),
)
"""Records that could not be used, unchanged."""


def _values(number: int, name: str, kind: IcebergType, doc: str) -> NestedField:
    value = MapType(number + 10, StringType(), number + 11, kind, value_required=True)
    return required(number, name, value, doc)


_UDF_SCHEMA = Schema(
    required(1, "sequence", LongType(), "number of the row in this table, from 0, in the order of the output"),
    required(2, "time", TimestamptzType(), "time of the point"),
    optional(3, "ticker", StringType(), "tag ticker, where the point has it"),
    optional(4, "period", StringType(), "tag period, where the point has it"),
    required(5, "name", StringType(), "name of the point or of its batch"),
    required(6, "group", StringType(), "group of the point: its dimensions, k=v,k2=v2"),
    optional(7, "batch_time", TimestamptzType(), "end of the batch in which the point came; null outside a batch"),
    _values(8, "tags", StringType(), "all tags"),
    _values(9, "doubles", DoubleType(), "fields that are double"),
    _values(10, "ints", LongType(), "fields that are integers"),
    _values(11, "strings", StringType(), "fields that are text"),
    _values(12, "bools", BooleanType(), "fields that are true or false"),
    identifier_field_ids=[1],
)


UDF_OUTPUTS = "dexorder.udf.outputs"
"""Property of a UDF's table: JSON with the map column, doubles for example, of each field that the UDF declares."""


def udf_table(name: str) -> IcebergTable:
    """Return the table with the output of a UDF. A map for each type has the fields, so the schema is fixed."""
    return IcebergTable(
        f"{NAMESPACE}.{UDF_PREFIX}{name}",
        _UDF_SCHEMA,
        key=("sequence",),
        partitions=PartitionSpec(PartitionField(2, 1000, MonthTransform(), "time_month")),
        order=SortOrder(*(SortField(number, IdentityTransform()) for number in (3, 4, 2, 1))),
        properties=_COMMON | _NO_SHUFFLE,
    )


def udf_tables(catalog: Catalog) -> list[IcebergTable]:
    """Return the tables of all UDFs that the catalog has, running or not."""
    try:
        found = sorted(str(name[-1]) for name in catalog.list_tables(NAMESPACE))
    except NoSuchNamespaceError:
        return []
    return [udf_table(name.removeprefix(UDF_PREFIX)) for name in found if name.startswith(UDF_PREFIX)]
