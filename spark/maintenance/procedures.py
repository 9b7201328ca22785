"""Execution of maintenance steps, mostly by Iceberg's procedures, and inspection of the tables for their plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog

from services.common.lake.catalog import CatalogSettings
from services.common.lake.claims import collected_mark, needed_snapshots
from services.common.lake.coverage import CoverageRow, Retraction, decode_coverage, decode_retraction, encode_coverage
from services.common.lake.tables import COVERAGE, MICROSECONDS, RETRACTIONS, present_columns
from services.common.model.errors import InvalidRequest
from services.common.model.times import iso_microseconds
from spark.config import MaintenanceSettings
from spark.maintenance.coverage_rows import MERGED_PREFIX, merge_rows
from spark.maintenance.policy import (
    Compact,
    Expire,
    MergeCoverage,
    MergeManifests,
    PartitionState,
    PartitionValue,
    Step,
    TableState,
    predicate,
)

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@dataclass(frozen=True)
class Merged:
    """Outcome of a step.

    Attributes:
        before: Rows in the table before the step.
        after: Rows after it; as many as before if a merge was not worth it.
        left: Of these, the rows that are old enough to be merged. Another step is useless until there are more.
    """

    before: int
    after: int
    left: int


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step.

    Attributes:
        changed: Files, snapshots or rows that it replaced; 0 means that a repetition would find none either.
        rewritten: Data files whose rows are in other files now.
        removed: Files removed from the storage.
    """

    changed: int
    rewritten: int = 0
    expired: int = 0
    removed: int = 0
    merged: Merged | None = None


def inspect(session: SparkSession, catalog: CatalogSettings, name: str, settings: MaintenanceSettings) -> TableState:
    """Return a table's present state; reads metadata only."""
    tables = catalog.load()
    table, needed = tables.load_table(name), needed_snapshots(tables)
    schema = table.schema()
    fields = [(f.name, schema.find_column_name(f.source_id) or "", str(f.transform)) for f in table.spec().fields]
    names = [f"partition.`{field}`" for field, _, _ in fields]
    small = f"content = 0 AND file_size_in_bytes < {settings.small_file_bytes}"
    columns = (
        "count_if(content = 0) AS data_files",
        "coalesce(sum(if(content = 0, file_size_in_bytes, 0)), 0) AS data_bytes",
        f"count_if({small}) AS small_files",
        f"coalesce(sum(if({small}, file_size_in_bytes, 0)), 0) AS small_bytes",
        "count_if(content <> 0) AS delete_files",
        "coalesce(sum(if(content = 0, record_count, 0)), 0) AS data_rows",
        *names,
    )
    rows = session.sql(
        f"SELECT {', '.join(columns)} FROM `{catalog.name}`.{name}.files"  # noqa: S608 - our own names
        + (f" GROUP BY {', '.join(names)}" if names else "")
    ).collect()
    partitions = tuple(
        PartitionState(
            tuple(PartitionValue(column, transform, row[field]) for field, column, transform in fields),
            row.data_files,
            row.data_bytes,
            row.small_files,
            row.small_bytes,
            row.delete_files,
            row.data_rows,
        )
        for row in rows
    )
    snapshot = table.current_snapshot()
    manifests = len(snapshot.manifests(table.io)) if snapshot else 0
    times = {each.snapshot_id: each.timestamp_ms * 1_000_000 for each in table.metadata.snapshots}
    needed_ns = min((time_ns for snapshot_id, time_ns in times.items() if snapshot_id in needed), default=None)
    return TableState(name, partitions, manifests, tuple(sorted(times.values())), needed_ns)


def run(
    session: SparkSession, catalog: CatalogSettings, name: str, step: Step, settings: MaintenanceSettings
) -> StepResult:
    """Run one step; it is committed when this returns."""
    match step:
        case Compact():
            (row,) = call(session, catalog, "rewrite_data_files", name, *_compaction(step, settings, catalog.name))
            rewritten = row.rewritten_data_files_count
            return StepResult(rewritten + row.removed_delete_files_count, rewritten=rewritten)
        case MergeManifests():
            (row,) = call(session, catalog, "rewrite_manifests", name)
            return StepResult(row.rewritten_manifests_count)
        case MergeCoverage():
            merged = merge_coverage(catalog.load(), step)
            return StepResult(merged.before - merged.after, merged=merged)
        case Expire():
            older = f"older_than => TIMESTAMP '{iso_microseconds(step.before_ns, ' ')}'"
            before = _snapshots(catalog, name)
            (row,) = call(session, catalog, "expire_snapshots", name, older, "retain_last => 1")
            expired = before - _snapshots(catalog, name)
            return StepResult(expired, expired=expired, removed=sum(row))


def remove_orphans(session: SparkSession, catalog: CatalogSettings, name: str, before_ns: int) -> int:
    """Remove files from before ``before_ns`` that no snapshot references; commits nothing. Return their number."""
    older = f"older_than => TIMESTAMP '{iso_microseconds(before_ns, ' ')}'"
    return len(call(session, catalog, "remove_orphan_files", name, older, "prefix_listing => true"))


def call(session: SparkSession, catalog: CatalogSettings, procedure: str, name: str, *arguments: str) -> list[Row]:
    """Run a procedure on a table and return its result."""
    text = ", ".join((f"table => '`{catalog.name}`.{name}'", *arguments))
    return session.sql(f"CALL `{catalog.name}`.system.{procedure}({text})").collect()


def _snapshots(catalog: CatalogSettings, name: str) -> int:
    return len(catalog.load().load_table(name).metadata.snapshots)


def _compaction(step: Compact, settings: MaintenanceSettings, catalog_name: str) -> Iterator[str]:
    options: dict[str, Any] = {
        "min-input-files": 2,
        "min-file-size-bytes": settings.small_file_bytes,
        "target-file-size-bytes": settings.target_file_bytes,
        "max-file-group-size-bytes": settings.step_bytes,
        "max-files-to-rewrite": step.max_files,
    }
    if step.deletes:
        options |= {"delete-file-threshold": 1, "remove-dangling-deletes": "true"}
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    yield f"options => map({pairs})"
    if where := predicate(step.values, catalog_name).replace("'", "''"):
        yield f"strategy => 'sort', where => '{where}'"


def merge_coverage(catalog: Catalog, step: MergeCoverage) -> Merged:
    """Merge the coverage rows that are old enough, if this removes enough of them (rules: ``coverage_rows``).

    One commit removes the old rows and adds the merged ones. It rewrites the other rows unchanged, so that the table is
    one file again.
    """
    table = catalog.load_table(COVERAGE.name)
    found = table.scan().to_arrow()
    old = _committed_before(found, step.before_ns)
    picked = dict(_decode(_pick(old, step.max_rows)))
    merged = Counter(merge_rows(picked.values(), _retractions(catalog)))
    removed = []
    for number, row in picked.items():
        if merged[row]:
            merged[row] -= 1  # unchanged
        else:
            removed.append(number)
    new = list(merged.elements())
    saved = len(removed) - len(new)
    if saved < step.min_rows:
        return Merged(len(found), len(found), len(old))
    kept = found.filter(pc.invert(pc.is_in(pa.array(range(len(found))), value_set=pa.array(removed))))
    added = pa.Table.from_pylist([encode_coverage(row) for row in new], schema=found.schema)
    together = pa.concat_tables([kept, added])
    # The commit fails if the table has changed since it was read.
    ordered = together.sort_by([(name, "ascending") for name in ("ticker", "period_seconds", "start_time")])
    table.overwrite(ordered, snapshot_properties=collected_mark(table))
    return Merged(len(found), len(found) - saved, len(old) - saved)


def _committed_before(found: pa.Table, before_ns: int) -> pa.Table:
    """Return the rows committed before this time, with their position in the table as column ``row``."""
    numbered = found.append_column("row", pa.array(range(len(found))))
    return numbered.filter(pc.less(found.column("committed_at"), pa.scalar(before_ns // 1_000, MICROSECONDS)))


def _pick(rows: pa.Table, limit: int) -> pa.Table:
    """Return about ``limit`` rows, all rows of a ticker or none; first the tickers with most rows never merged."""
    if len(rows) <= limit:
        return rows
    single = pc.invert(pc.starts_with(rows.column("evidence"), MERGED_PREFIX))
    tickers = rows.append_column("single", single).group_by("ticker").aggregate([("single", "sum"), ([], "count_all")])
    tickers = tickers.sort_by([("single_sum", "descending"), ("ticker", "ascending")])
    count = tickers.column("count_all")
    rows_before = pc.subtract(pc.cumulative_sum(count), count)
    picked = tickers.filter(pc.less(rows_before, pa.scalar(limit))).column("ticker")
    return rows.filter(pc.is_in(rows.column("ticker"), picked))


def _decode(found: pa.Table) -> Iterator[tuple[int, CoverageRow]]:
    """Yield position and row; skip rows that are malformed, which therefore stay as they are."""
    for number, row in zip(found.column("row").to_numpy(), COVERAGE.rows(found), strict=True):
        with suppress(InvalidRequest):
            yield int(number), decode_coverage(row)


def _retractions(catalog: Catalog) -> list[Retraction]:
    table = RETRACTIONS.load(catalog)
    if table is None:  # the relay creates it with the first retraction
        return []
    columns = present_columns(table, RETRACTIONS.key)
    return [decode_retraction(row) for row in RETRACTIONS.rows(table.scan(selected_fields=columns).to_arrow())]
