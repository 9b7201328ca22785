"""Files of pages as Spark's workers write them, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import CommitLost, commit_files
from dexorder_common.lake.commit_state import state_of
from dexorder_common.model.page import PageHeaders
from dexorder_spark.pipeline import upsert
from dexorder_spark.pipeline.files import FileLayout, FileWriter
from dexorder_spark.pipeline.ranges import KeyRange
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable, ensure_tables
from tests.fakes.pages import page

Load = Callable[[], Table]
_no_spark: Any = None


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


def load_new(folder: Path, name: str) -> Load:
    """Create the tables in a folder; return a function that loads one of them."""
    catalog = CatalogSettings.local(folder).load()
    ensure_tables(catalog)
    return lambda: catalog.load_table(name)


def commit_as_driver(
    load: Load,
    table: PageTable,
    records: Sequence[tuple[PageHeaders, bytes]],
    ranges: Sequence[KeyRange],
    between: Callable[[], object] = lambda: None,
) -> tuple[upsert.Path, int]:
    """Commit a batch as a driver does, without Spark; return the way, and how often another writer was faster.

    Args:
        between: Runs once between the first look at the table and the commit.
    """
    target, lost = load(), 0
    files = [file for record in records for file in files_of_records(table, target, [record])]
    between()
    while True:
        state = state_of(target.metadata).after("s", {0: len(records)})
        try:
            way, _ = upsert.write(_no_spark, table, target, files, ranges, state.encode(), always=True)
        except CommitLost:
            target, lost = load(), lost + 1
            continue
        return way, lost
