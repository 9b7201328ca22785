"""Upsert of a batch's rows: of two rows with one key, the one with the larger version is kept.

Most batches contain only new rows, so the driver first reads the table in the batch's key ranges (``presence``):

    found in the table                        what is committed
    no row of the ranges                      the workers' files, as they are
    every row of the batch, none older        no row
    some rows, in files of moderate size      the new rows, and those files without the rows that are replaced
    more than the driver should read          a MERGE by Spark

Each commit requires that the table has not changed since it was read, and each way is idempotent, because a row with
the same or a larger version is left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.storagelevel import StorageLevel

from dexorder_common.lake.commit import CommitLost, commit_files, remove_files
from dexorder_common.model.times import iso_microseconds
from dexorder_spark.pipeline.files import FileLayout, FileWriter, frame, read_columns
from dexorder_spark.pipeline.presence import MAX_READ_BYTES, FoundFile, RowChange, difference, find, read_rows, size_of
from dexorder_spark.pipeline.ranges import KeyRange, ScanRange, Value, overlap, scan_ranges
from dexorder_spark.runtime.java_commits import commit_by_java
from dexorder_spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property"
"""Prefix of Spark's settings that become properties of the snapshots of its session."""


class Path(StrEnum):
    """Way in which a batch was committed."""

    NONE = "none"
    """No row is new."""
    APPEND = "append"
    """The workers' files became part of the table."""
    REWRITE = "rewrite"
    """The files with replaced rows were written again without them, and the new rows to more files."""
    MERGE = "merge"


def merge_condition(table: PageTable, ranges: Sequence[ScanRange]) -> str:
    """Return the ON of the MERGE: target ``t`` and source ``s`` have the same key, which is in the ranges."""
    same = " AND ".join(f"t.{column} = s.{column}" for column in table.key)
    inside = " OR ".join(f"({' AND '.join(_conditions(table, each))})" for each in ranges)
    return f"{same} AND ({inside})"


def _conditions(table: PageTable, scan: ScanRange) -> list[str]:
    first, others = table.series_columns[:1], table.series_columns[1:]
    return [
        *(f"t.{name} IN ({', '.join(map(_literal, scan.first_values))})" for name in first),
        *(f"t.{column} = {_literal(value)}" for column, value in zip(others, scan.other_values, strict=True)),
        f"t.{table.time_column} >= TIMESTAMP '{iso_microseconds(scan.span.start_ns, ' ')}'",
        f"t.{table.time_column} < TIMESTAMP '{iso_microseconds(scan.span.end_ns, ' ')}'",
    ]


def _literal(value: Value) -> str:
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def merge_statement(table: PageTable, target: str, source: str, ranges: Sequence[ScanRange]) -> str:
    """Return the MERGE of a view into a table; both names as Spark resolves them."""
    # Columns by name: SET * and INSERT * would differ for a table that has got another column.
    columns = table.columns
    updates = ", ".join(f"t.{name} = s.{name}" for name in columns if name not in table.key)
    newer = f"{_version(table, 's')} > {_version(table, 't')}"
    update = f"WHEN MATCHED AND {newer} THEN UPDATE SET {updates} " if table.version else ""
    return (
        f"MERGE INTO {target} t USING {source} s ON {merge_condition(table, ranges)} {update}"  # noqa: S608 - quoted
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def _version(table: PageTable, side: str) -> str:
    return f"struct({', '.join(f'coalesce({side}.{name}, 0)' for name in table.version)})"


def write(
    session: SparkSession,
    table: PageTable,
    target: Table,
    files: Sequence[DataFile],
    pages: Sequence[KeyRange],
    state: Mapping[str, str],
    *,
    always: bool,
) -> tuple[Path, int | None]:
    """Commit a batch's rows and its state together; return the path, and the id of the new snapshot if there is one.

    Args:
        target: The table, just loaded: a commit succeeds only if it is still like that.
        files: Files that the workers wrote. They are removed unless they become part of the table.
        pages: Ranges that contain every key of the files.
        state: Properties of the snapshot's summary.
        always: Commit the state even if no row is new.

    Raises:
        CommitLost: Another writer was faster. The table is unchanged, and the files are still there.
    """
    layout = FileLayout.of(table, target)
    ranges = scan_ranges(pages)
    found = find(table, target, ranges) if ranges else []
    if found is None or size_of(each.task for each in found) > MAX_READ_BYTES:
        commit_by_java(session, target, lambda name: merge_with_spark(session, name, layout, files, ranges, state))
        remove_files(layout.io, files)
        return Path.MERGE, None
    if not (found or overlap(pages)):
        return Path.APPEND if files else Path.NONE, _commit(target, files, (), state, always=always)
    staged = read_columns(layout, files, table.version_columns)
    change = difference(table, staged, found)
    if len(change.new) == len(staged) and not change.replaced:
        return Path.APPEND, _commit(target, files, (), state, always=always)
    added, removed = rewrite(layout, target, files, change, found)
    try:
        snapshot_id = _commit(target, added, removed, state, always=always)
    except CommitLost:
        remove_files(layout.io, added)
        raise
    remove_files(layout.io, files)
    return Path.REWRITE if added else Path.NONE, snapshot_id


def _commit(
    target: Table, added: Sequence[DataFile], removed: Sequence[DataFile], state: Mapping[str, str], *, always: bool
) -> int | None:
    return commit_files(target, added=added, removed=removed, properties=state) if added or always else None


def rewrite(
    layout: FileLayout, target: Table, files: Sequence[DataFile], change: RowChange, found: Sequence[FoundFile]
) -> tuple[list[DataFile], list[DataFile]]:
    """Write the new rows of a batch, and the rest of each file that has replaced rows; return new and old files."""
    if not len(change.new):
        return [], []
    fresh = FileWriter(layout)
    fresh.add_all(read_columns(layout, files, layout.table.columns).take(change.new))
    names = target.schema().column_names
    rest = FileWriter(layout, names)  # with the columns that somebody has added to the table
    old = [found[number].task for number in change.replaced]
    try:
        for task, keys in zip(old, change.replaced.values(), strict=True):
            rest.add_all(_without(read_rows(target, task, names), keys, layout.table))
        fresh.flush()
        rest.flush()
    except BaseException:
        remove_files(layout.io, [*fresh.written, *rest.written])
        raise
    return [*fresh.written, *rest.written], [task.file for task in old]


def _without(rows: pa.Table, keys: pa.Table, table: PageTable) -> pa.Table:
    types = table.iceberg.arrow
    for number, name in enumerate(rows.column_names):
        if name in types.names:
            rows = rows.set_column(number, name, rows.column(name).cast(types.field(name).type))
    return rows.join(keys, list(table.key), join_type="left anti")


def merge_with_spark(
    session: SparkSession,
    catalog_name: str,
    layout: FileLayout,
    files: Sequence[DataFile],
    ranges: Sequence[ScanRange],
    state: Mapping[str, str],
) -> None:
    """Merge the files into the table of a catalog that Spark knows; Iceberg refuses if another writer interferes."""
    rows = latest(layout.table, frame(session, layout, files))
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)  # MERGE reads it twice
    properties = {f"{_SNAPSHOT_PROPERTY}.{key}": value for key, value in state.items()}
    try:
        rows.createOrReplaceTempView("dexorder_batch")
        for key, value in properties.items():
            session.conf.set(key, value)
        target = f"`{catalog_name}`.{layout.table.name}"
        session.sql(merge_statement(layout.table, target, "dexorder_batch", ranges))
    finally:
        for key in properties:
            session.conf.unset(key)
        rows.unpersist()


def latest(table: PageTable, rows: DataFrame) -> DataFrame:
    """Return one row per key, the one with the largest version."""
    from pyspark.sql import functions as f

    others = [name for name in table.columns if name not in table.key]
    # The other values break a tie, so that a replay of the batch picks the same row.
    best = f.max(f.struct(*table.version, *(name for name in others if name not in table.version))).alias("best")
    grouped = rows.groupBy(*table.key).agg(best)
    return grouped.select(*table.key, *(f.col(f"best.{name}").alias(name) for name in others))
