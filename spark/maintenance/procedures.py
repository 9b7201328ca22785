"""Iceberg's procedures for the steps of ``spark/maintenance/policy.py``, and the look that they are planned from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.common.lake.catalog import CatalogSettings
from spark.maintenance.coverage_merge import Merged, merge_coverage
from spark.maintenance.policy import (
    Compact,
    Expire,
    MergeCoverage,
    MergeManifests,
    PartitionState,
    PartitionValue,
    Policy,
    Step,
    TableState,
    predicate,
)
from spark.pipeline.columns import time_text

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@dataclass(frozen=True)
class StepResult:
    """What a step came to.

    Attributes:
        changed: Files or snapshots it took in; 0 says that another one would find nothing either.
        rewritten: Data files whose rows are in others now.
        expired: Snapshots that are gone.
        removed: Files removed from the storage.
        lines: What merging the ledger's lines came to.
    """

    changed: int
    rewritten: int = 0
    expired: int = 0
    removed: int = 0
    lines: Merged | None = None


def look(session: SparkSession, catalog: CatalogSettings, name: str, policy: Policy) -> TableState:
    """A table as it is now; reads metadata only."""
    table = catalog.load().load_table(name)
    schema = table.schema()
    fields = [(f.name, schema.find_column_name(f.source_id) or "", str(f.transform)) for f in table.spec().fields]
    names = [f"partition.`{field}`" for field, _, _ in fields]
    small = f"content = 0 AND file_size_in_bytes < {policy.small_file_bytes}"
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
        f"SELECT {', '.join(columns)} FROM `{catalog.name}`.{name}.files"  # noqa: S608 - names of ours
        + (f" GROUP BY {', '.join(names)}" if names else "")
    ).collect()
    parts = tuple(
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
    times = sorted(s.timestamp_ms * 1_000_000 for s in table.metadata.snapshots)
    return TableState(name, parts, manifests, tuple(times))


def run(session: SparkSession, catalog: CatalogSettings, name: str, step: Step, policy: Policy) -> StepResult:
    """One step, committed when it returns."""
    match step:
        case Compact():
            (row,) = call(session, catalog, "rewrite_data_files", name, *_compaction(step, policy, catalog.name))
            rewritten = row.rewritten_data_files_count
            return StepResult(rewritten + row.removed_delete_files_count, rewritten=rewritten)
        case MergeManifests():
            (row,) = call(session, catalog, "rewrite_manifests", name)
            return StepResult(row.rewritten_manifests_count)
        case MergeCoverage():
            lines = merge_coverage(catalog.load(), step)
            return StepResult(lines.before - lines.after, lines=lines)
        case Expire():
            older = f"older_than => TIMESTAMP '{time_text(step.before_ns, ' ')}'"
            before = _snapshots(catalog, name)
            (row,) = call(session, catalog, "expire_snapshots", name, older, "retain_last => 1")
            expired = before - _snapshots(catalog, name)
            return StepResult(expired, expired=expired, removed=sum(row))


def remove_orphans(session: SparkSession, catalog: CatalogSettings, name: str, before_ns: int) -> int:
    """Remove files from before then that no snapshot refers to; commits nothing. Returns how many."""
    older = f"older_than => TIMESTAMP '{time_text(before_ns, ' ')}'"
    return len(call(session, catalog, "remove_orphan_files", name, older, "prefix_listing => true"))


def call(session: SparkSession, catalog: CatalogSettings, procedure: str, name: str, *arguments: str) -> list[Row]:
    """A procedure's answer for one table."""
    text = ", ".join((f"table => '`{catalog.name}`.{name}'", *arguments))
    return session.sql(f"CALL `{catalog.name}`.system.{procedure}({text})").collect()


def _snapshots(catalog: CatalogSettings, name: str) -> int:
    return len(catalog.load().load_table(name).metadata.snapshots)


def _compaction(step: Compact, policy: Policy, catalog_name: str) -> Iterator[str]:
    options: dict[str, Any] = {
        "min-input-files": 2,
        "min-file-size-bytes": policy.small_file_bytes,
        "target-file-size-bytes": policy.target_file_bytes,
        "max-file-group-size-bytes": policy.step_bytes,
        "max-files-to-rewrite": step.most_files,
    }
    if step.deletes:
        options |= {"delete-file-threshold": 1, "remove-dangling-deletes": "true"}
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    yield f"options => map({pairs})"
    if where := predicate(step.cuts, catalog_name).replace("'", "''"):
        yield f"strategy => 'sort', where => '{where}'"
