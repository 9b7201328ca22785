"""Declaration of a table that pages fill, and the list of all tables that the driver writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.catalog import Catalog

from dexorder_common.lake.tables import COVERAGE, DEAD_LETTERS, MARKET_TABLES, IcebergTable
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.dispatch_id import new_dispatch_id
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Kind, PageHeaders

Decode: TypeAlias = Callable[[PageHeaders, bytes], pa.RecordBatch]
DecodeJoined: TypeAlias = Callable[[Sequence[PageHeaders], Sequence[bytes]], tuple[pa.RecordBatch, Any]]
Check: TypeAlias = Callable[[PageHeaders], None]
Sample: TypeAlias = Callable[[], tuple[PageHeaders, bytes]]

SAMPLE_TICKER = "SAMPLE/PAGE.NONE"
SAMPLE_DISPATCH = new_dispatch_id(1, "0" * 16)
TABLES = (*MARKET_TABLES, COVERAGE, DEAD_LETTERS)


def ensure_tables(catalog: Catalog) -> None:
    """Create the tables that do not exist; leave the others unchanged."""
    for table in TABLES:
        table.load_or_create(catalog)


@dataclass(frozen=True)
class PageTable:
    """A table whose rows arrive in pages: everything the pipeline must know about it.

    A page is one record of its topic. The three functions run in Spark's workers too, so they must be picklable.

    Attributes:
        iceberg: Schema, key, version columns, partitioning and order of the rows in files.
        dataset: Has the topic, the columns of the series, and the column with the time of a row. Rows with one key
            differ in the time by ``tolerance_ns`` at most, so the table is searched for the rows of a page in the
            page's range of time.
        check: Raises InvalidRequest for headers that cannot belong to a record of this table, including final records.
        decode: Returns the rows of a page in the columns of ``iceberg.arrow``, in the order of ``order_columns``,
            without duplicates. Raises InvalidRequest, with the reason, for a page that must be refused.
        decode_joined: Returns the rows of many pages, page after page, and the number of rows of each; InvalidRequest
            if ``decode`` refuses or reduces one of them. None for a topic without joined records.
        sample: Returns a good page of a series that is never requested, to test the parts that every page needs.
        kind: Kind of its pages.
        has_finals: Whether dispatches end with a final record.
        joins_pages: Whether adjacent pages of a dispatch are reported as one.
        pages_per_task: Fewer pages are decoded sooner than another task would start, and it would write a file more.
    """

    iceberg: IcebergTable
    dataset: Dataset
    check: Check
    decode: Decode
    sample: Sample
    kind: Kind = Kind.PAGE
    tolerance_ns: int = 0
    has_finals: bool = True
    joins_pages: bool = False
    pages_per_task: int = 8
    decode_joined: DecodeJoined | None = None

    def __post_init__(self) -> None:
        if not {*self.series_columns} <= {*self.key}:
            raise ValueError(f"{self.name} needs its series columns in the key")
        if self.time_column not in self.key and not self.tolerance_ns:
            raise ValueError(f"{self.name} needs its time column in the key, or a tolerance")

    @property
    def topic(self) -> str:
        """Kafka topic of its records."""
        return self.dataset.topic

    @property
    def series_columns(self) -> tuple[str, ...]:
        """Key columns with one value in a whole page. They have the names of fields of PageHeaders."""
        return self.dataset.series_columns

    @property
    def time_column(self) -> str:
        """Column with the time of a row."""
        return self.dataset.time_column

    def series_of(self, headers: PageHeaders) -> Series:
        """Return the series of a record of its topic."""
        return Series(headers.ticker, headers.period_seconds, self.dataset)

    @property
    def name(self) -> str:
        """Name with the namespace."""
        return self.iceberg.name

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a row."""
        return self.iceberg.key

    @property
    def version(self) -> tuple[str, ...]:
        """Integer columns that decide between two rows with one key: the larger values are kept; null counts as 0.

        Without any, rows with one key are copies, of which the first is kept.
        """
        return self.iceberg.version

    @property
    def version_columns(self) -> tuple[str, ...]:
        """Columns that identify a copy of a row."""
        return (*self.key, *self.version)

    @property
    def order_columns(self) -> tuple[str, ...]:
        """Columns by which rows are sorted in a file and in a page."""
        return self.iceberg.order_columns

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        return list(self.iceberg.arrow.names)

    def arrow_of(self, columns: tuple[str, ...]) -> pa.Schema:
        """Return the Arrow schema of some columns."""
        return pa.schema([self.iceberg.arrow.field(name) for name in columns])
