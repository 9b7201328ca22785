"""Declaration of a table that pages fill, and the list of all tables that the driver writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyiceberg.catalog import Catalog

from services.common.lake.tables import COVERAGE, DEAD_LETTERS, OHLC, IcebergTable
from services.common.model.page import PageHeaders
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb

Decode: TypeAlias = Callable[[PageHeaders, pb.DataResponse], pa.RecordBatch]

TABLES = (OHLC, COVERAGE, DEAD_LETTERS)


def ensure_tables(catalog: Catalog) -> None:
    """Create the tables that do not exist; leave the others unchanged."""
    for table in TABLES:
        table.load_or_create(catalog)


@dataclass(frozen=True)
class PageTable:
    """A table whose rows arrive in pages: everything the pipeline must know about it.

    Attributes:
        iceberg: Schema, key, version columns and partitioning. The key consists of ``series_columns``, ``time_column``
            and, where several rows may have one time, further columns.
        series_columns: Key columns with one value in a whole page. They have the names of fields of PageHeaders.
        time_column: Key column whose values lie in the page's span.
        decode: Returns the rows of a page in the columns of ``iceberg.arrow``, in the order of the key. Raises
            InvalidRequest, with the reason, for a page that must be refused. Runs in Spark's workers, so it must be a
            function of a module.
    """

    iceberg: IcebergTable
    series_columns: tuple[str, ...]
    time_column: str
    decode: Decode

    def __post_init__(self) -> None:
        if not {*self.series_columns, self.time_column} <= set(self.key) or not self.version:
            raise ValueError(f"{self.name} needs its series and time columns in the key, and version columns")

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
        """Integer columns that decide between two rows with one key: the larger values are kept; null counts as 0."""
        return self.iceberg.version

    @property
    def version_columns(self) -> tuple[str, ...]:
        """Columns that identify a copy of a row."""
        return (*self.key, *self.version)

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        return list(self.iceberg.arrow.names)

    def arrow_of(self, columns: tuple[str, ...]) -> pa.Schema:
        """Return the Arrow schema of some columns."""
        return pa.schema([self.iceberg.arrow.field(name) for name in columns])
