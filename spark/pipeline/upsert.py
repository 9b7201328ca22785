"""Upsert of a batch's rows: of two rows with one key, the one with the larger version is kept.

Most batches contain only new rows, so the driver first reads the table in the batch's key ranges. If no row is present,
the batch's files are appended as they are. If all rows are present, as in a replay, nothing is committed. Else a MERGE,
merge-on-read, is run, with the ranges as literals in ON: without them Iceberg reads the whole table. Each way is
idempotent, as a row with the same or a larger version is left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.storagelevel import StorageLevel

from services.common.model.time_range import TimeRange, merge
from services.common.model.times import iso_microseconds
from spark.pipeline.files import Layout, append, frame, read_columns, remove
from spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SCAN_RANGES = 32
"""Largest number of ranges in a filter or an ON; more are covered by fewer, wider ones."""
_MAX_PROBED_BYTES = 64 * 1024 * 1024
_ex: Any = expressions  # its constructors take a column's name and a value, which their annotations do not allow
Value: TypeAlias = str | int


class Presence(Enum):
    """Share of a batch's rows that the table has."""

    NOTHING = auto()
    SOMETHING = auto()
    """Some rows, or all but some in an older version, or more than is worth reading."""
    ALL = auto()
    """All rows, none in an older version."""


@dataclass(frozen=True, order=True)
class KeyRange:
    """Rows of one series in a range of time; ``series`` has the values of the table's series columns."""

    series: tuple[Value, ...]
    span: TimeRange


@dataclass(frozen=True, order=True)
class ScanRange:
    """Rows of some series in a range of time. The series differ only in the first series column."""

    first_values: tuple[Value, ...]
    other_values: tuple[Value, ...]
    span: TimeRange


def scan_ranges(pages: Iterable[KeyRange], limit: int = MAX_SCAN_RANGES) -> list[ScanRange]:
    """Return ranges that contain every key of the pages.

    They are exact if there are at most ``limit``; else one range per series; else one for all series that differ only
    in the first series column.
    """
    spans: dict[tuple[tuple[Value, ...], tuple[Value, ...]], list[TimeRange]] = {}
    for page in pages:
        spans.setdefault((page.series[:1], page.series[1:]), []).append(page.span)
    merged = {key: merge(parts) for key, parts in spans.items()}
    if sum(map(len, merged.values())) > limit:
        merged = {key: [_hull(parts)] for key, parts in merged.items()}
    if len(merged) > limit:
        groups = {others: [key for key in merged if key[1] == others] for _, others in merged}
        merged = {
            (tuple(sorted(key[0][0] for key in keys)), others): [_hull(merged[key][0] for key in keys)]
            for others, keys in groups.items()
        }
    return sorted(ScanRange(*key, span) for key, parts in merged.items() for span in parts)


def _hull(spans: Iterable[TimeRange]) -> TimeRange:
    parts = list(spans)
    return TimeRange(min(p.start_ns for p in parts), max(p.end_ns for p in parts))


def overlap(pages: Sequence[KeyRange]) -> bool:
    """Return whether two pages may contain the same key; if not, the batch needs no deduplication."""
    ordered = sorted(pages)
    return any(a.series == b.series and b.span.start_ns < a.span.end_ns for a, b in pairwise(ordered))


def row_filter(table: PageTable, ranges: Sequence[ScanRange]) -> BooleanExpression:
    """Return the ranges, at least one, as a pyiceberg expression."""
    first, *others = table.series_columns
    either: BooleanExpression = reduce(
        _ex.Or,
        [
            _ex.And(
                _ex.In(first, set(each.first_values)),
                _ex.GreaterThanOrEqual(table.time_column, iso_microseconds(each.span.start_ns)),
                _ex.LessThan(table.time_column, iso_microseconds(each.span.end_ns)),
                *map(_ex.EqualTo, others, each.other_values),
            )
            for each in ranges
        ],
    )
    return either


def merge_condition(table: PageTable, ranges: Sequence[ScanRange]) -> str:
    """Return the ON of the MERGE: target ``t`` and source ``s`` have the same key, which is in the ranges."""
    same = " AND ".join(f"t.{column} = s.{column}" for column in table.key)
    inside = " OR ".join(f"({' AND '.join(_conditions(table, each))})" for each in ranges)
    return f"{same} AND ({inside})"


def _conditions(table: PageTable, scan: ScanRange) -> list[str]:
    first, *others = table.series_columns
    return [
        f"t.{first} IN ({', '.join(map(_literal, scan.first_values))})",
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
    # Columns by name: SET * and INSERT * would differ for a table that has got a further column.
    columns = table.columns
    updates = ", ".join(f"t.{name} = s.{name}" for name in columns if name not in table.key)
    return (
        f"MERGE INTO {target} t USING {source} s ON {merge_condition(table, ranges)} "  # noqa: S608 - values are quoted
        f"WHEN MATCHED AND {_version(table, 's')} > {_version(table, 't')} THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def _version(table: PageTable, side: str) -> str:
    return f"struct({', '.join(f'coalesce({side}.{name}, 0)' for name in table.version)})"


def compare(table: PageTable, staged: pa.Table, found: pa.Table) -> Presence:
    """Return the share of ``staged`` that ``found`` has; both have the version columns, and no duplicate keys."""
    found = found.select(table.version_columns).cast(table.arrow_of(table.version_columns))
    both = staged.join(found, list(table.key), join_type="inner", right_suffix="_found")
    if not both.num_rows:
        return Presence.NOTHING
    newer = pc.any(_newer(both, table.version)).as_py()
    return Presence.SOMETHING if newer or both.num_rows < staged.num_rows else Presence.ALL


def _newer(both: pa.Table, version: tuple[str, ...]) -> Any:
    """Return for each row whether its version columns are larger than those ending in ``_found``, in their order."""
    name, *rest = version
    columns: tuple[Any, Any] = both.column(name), both.column(f"{name}_found")
    staged, found = (pc.fill_null(column, 0) for column in columns)
    newer = pc.greater(staged, found)
    return pc.or_(newer, pc.and_(pc.equal(staged, found), _newer(both, tuple(rest)))) if rest else newer


def presence_of(
    table: PageTable, target: Table, ranges: Sequence[ScanRange], staged: Callable[[], pa.Table]
) -> Presence:
    """Return the share of staged rows that the table has.

    Files whose bounds exclude every range are not opened. The bounds of a file that several jobs share include keys
    that the file does not have, so a few small files are read: that is cheaper than a MERGE without new rows.

    Args:
        ranges: They contain every staged key.
        staged: Returns the version columns of the rows, which have no duplicate keys.
    """
    scan = target.scan(row_filter=row_filter(table, ranges), selected_fields=table.version_columns)
    tasks = list(scan.plan_files())
    if not tasks:
        return Presence.NOTHING
    if sum(task.file.file_size_in_bytes for task in tasks) > _MAX_PROBED_BYTES:
        return Presence.SOMETHING
    found = scan.to_arrow()
    return compare(table, staged(), found) if found.num_rows else Presence.NOTHING


def write(
    session: SparkSession,
    catalog_name: str,
    table: PageTable,
    target: Table,
    files: Sequence[DataFile],
    pages: Sequence[KeyRange],
) -> Literal["append", "merge", "none"]:
    """Commit a batch's staged rows; return how.

    Args:
        target: The table, just loaded.
        files: Files that the workers wrote; they are removed unless they are appended.
        pages: Ranges that contain every key, at least one.
    """
    layout = Layout.of(table, target)
    ranges = scan_ranges(pages)
    duplicates = overlap(pages)
    presence = Presence.SOMETHING
    if not duplicates:
        presence = presence_of(table, target, ranges, lambda: read_columns(layout, files, table.version_columns))
    if presence is Presence.NOTHING:
        append(target, files)
        return "append"
    if presence is Presence.SOMETHING:
        rows = frame(session, layout, files)
        rows = latest(table, rows) if duplicates else rows
        rows = rows.persist(StorageLevel.MEMORY_AND_DISK)  # MERGE reads it twice
        try:
            rows.createOrReplaceTempView("dexorder_batch")
            session.sql(merge_statement(table, f"`{catalog_name}`.{table.name}", "dexorder_batch", ranges))
        finally:
            rows.unpersist()
    remove(layout.io, files)
    return "none" if presence is Presence.ALL else "merge"


def latest(table: PageTable, rows: DataFrame) -> DataFrame:
    """Return one row per key, the one with the largest version."""
    from pyspark.sql import functions as f

    others = [name for name in table.columns if name not in table.key]
    # The other values break a tie, so that a replay of the batch picks the same row.
    best = f.max(f.struct(*table.version, *(name for name in others if name not in table.version))).alias("best")
    grouped = rows.groupBy(*table.key).agg(best)
    return grouped.select(*table.key, *(f.col(f"best.{name}").alias(name) for name in others))
