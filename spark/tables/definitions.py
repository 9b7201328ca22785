"""The Iceberg tables and how they are laid out; made by the pipeline at start where they are absent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, MonthTransform
from pyiceberg.types import (
    BinaryType,
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

from services.common.lake.catalog import COVERAGE_TABLE, DEAD_LETTER_TABLE, NAMESPACE, OHLC_TABLE

_COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
_MERGE_ON_READ = {f"write.{action}.mode": "merge-on-read" for action in ("delete", "update", "merge")}
# Batches are small and come from few tasks: a shuffle before the write costs more than the files it saves.
_NO_SHUFFLE = {f"write.{action}distribution-mode": "none" for action in ("", "delete.", "update.", "merge.")}


def _required(number: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    return NestedField(number, name, kind, required=True, doc=doc)


def _optional(number: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    return NestedField(number, name, kind, required=False, doc=doc)


_OHLC = Schema(
    _required(1, "ticker", StringType(), "market, for example BTC/USDT.BINANCE"),
    _required(2, "period_seconds", IntegerType(), "candle period in seconds"),
    _required(3, "open_time", TimestamptzType(), "first moment of the candle, on the period's grid"),
    _required(4, "open", DoubleType()),
    _required(5, "high", DoubleType()),
    _required(6, "low", DoubleType()),
    _required(7, "close", DoubleType()),
    _required(8, "volume", DoubleType(), "in units of the base currency"),
    _optional(9, "quote_volume", DoubleType(), "in units of the quote currency, where the exchange gives it"),
    _optional(10, "trades", LongType(), "number of trades, where the exchange gives it"),
    _required(11, "fetched_at", TimestamptzType(), "when the exchange answered; of two copies the later one stays"),
    identifier_field_ids=[1, 2, 3],
)
_COVERAGE = Schema(
    _required(1, "ticker", StringType()),
    _required(2, "period_seconds", IntegerType()),
    _required(3, "start_time", TimestamptzType(), "first moment that is settled"),
    _required(4, "end_time", TimestamptzType(), "first moment after it"),
    _required(5, "rows", LongType(), "candles inside"),
    _required(
        6,
        "empty",
        ListType(
            11,
            StructType(
                _required(12, "start_time", TimestamptzType()),
                _required(13, "end_time", TimestamptzType()),
            ),
            element_required=True,
        ),
        "ranges verified to hold no candle",
    ),
    _required(7, "evidence", StringType(), "how the range came to be settled: page"),
    _required(8, "fetched_at", TimestamptzType()),
    _required(9, "committed_at", TimestamptzType(), "when this row was written, after the candles"),
)
_DEAD_LETTERS = Schema(
    _required(1, "source", StringType(), "address of the source.v1 server"),
    _required(2, "partition", IntegerType()),
    _required(3, "offset", LongType()),
    _required(4, "reason", StringType()),
    _optional(5, "key", StringType()),
    _required(6, "headers", MapType(11, StringType(), 12, StringType(), value_required=True)),
    _optional(7, "payload", BinaryType()),
    _required(8, "seen_at", TimestamptzType()),
)


@dataclass(frozen=True)
class TableLayout:
    """What a table is made with."""

    name: str
    schema: Schema
    partitions: PartitionSpec
    order: SortOrder
    properties: dict[str, str]


TABLES = (
    TableLayout(
        OHLC_TABLE,
        _OHLC,
        PartitionSpec(
            PartitionField(3, 1000, MonthTransform(), "open_time_month"),
            PartitionField(1, 1001, BucketTransform(4), "ticker_bucket"),
        ),
        SortOrder(*(SortField(number, IdentityTransform()) for number in (1, 2, 3))),
        _COMMON | _MERGE_ON_READ | _NO_SHUFFLE,
    ),
    TableLayout(COVERAGE_TABLE, _COVERAGE, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, _COMMON),
    TableLayout(DEAD_LETTER_TABLE, _DEAD_LETTERS, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, _COMMON),
)


def ensure_tables(catalog: Catalog) -> None:
    """Make the namespace and every table that is absent; those there are left as they are."""
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(NAMESPACE)
    for layout in TABLES:
        if catalog.table_exists(layout.name):
            continue
        with suppress(TableAlreadyExistsError):  # another writer was quicker
            catalog.create_table(
                layout.name,
                layout.schema,
                partition_spec=layout.partitions,
                sort_order=layout.order,
                properties=layout.properties,
            )
