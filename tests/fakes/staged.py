"""Files of pages as Spark's workers write them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from dexorder_common.lake.commit import commit_files
from dexorder_common.model.page import PageHeaders
from dexorder_spark.pipeline.files import FileLayout, FileWriter
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable
from tests.fakes.pages import page


def files_of_pages(
    target: Table, heads: Iterable[PageHeaders], *, price: float = 100.0, commit: bool = False
) -> list[DataFile]:
    """Write the candles of pages to files of the table; with ``commit`` make them part of it."""
    written = files_of_records(CANDLES, target, [(head, page(head, price)[0]) for head in heads])
    if commit:
        commit_files(target, added=written)
    return written


def files_of_records(table: PageTable, target: Table, records: Iterable[tuple[PageHeaders, bytes]]) -> list[DataFile]:
    """Write the rows of records, given by headers and value, to files of the table."""
    writer = FileWriter(FileLayout.of(table, target))
    for head, value in records:
        rows = table.decode(head, value)
        if rows.num_rows:
            writer.add(rows)
    writer.flush()
    return writer.written


def stored(table: Table) -> int:
    """Return the number of data files in the table's folder, committed or not."""
    return len(list((Path(table.location().removeprefix("file://")) / "data").rglob("*.parquet")))
