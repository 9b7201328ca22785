"""Execution of maintenance steps, mostly by Iceberg's procedures, and inspection of the tables for their plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate, TableUpdate

from dexorder_common.lake.claims import needed_snapshots
from dexorder_common.lake.commit import commit_updates
from dexorder_common.model.times import iso_microseconds
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.policy import (
    Compact,
    MergeManifests,
    PartitionState,
    PartitionValue,
    Step,
    TableState,
    predicate,
)
from dexorder_spark.maintenance.snapshots import ExpireSnapshots, SnapshotState, Tag
from dexorder_spark.runtime.java_commits import commit_by_java, expire_by_java

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

TAG_PREFIX = "notified-"
"""Start of the names of the tags of snapshots that notifications have named."""
_MS_NS = 1_000_000


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step.

    Attributes:
        changed: Files or snapshots that it replaced; 0 means that a repetition would find none either.
        rewritten: Data files with rows that are in other files now.
        removed: Files removed from the storage.
    """

    changed: int
    rewritten: int = 0
    expired: int = 0
    removed: int = 0


def inspect(
    session: SparkSession, catalog: Catalog, name: str, settings: MaintenanceSettings, named: Mapping[int, int] | None
) -> TableState:
    """Return a table's present state; reads metadata only."""
    table, needed = catalog.load_table(name), needed_snapshots(catalog)
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
    snapshots = snapshot_states(table)
    needed_ns = min((each.time_ns for each in snapshots if each.id in needed), default=None)
    return TableState(name, partitions, manifests, snapshots, needed_ns, named)


def snapshot_states(table: Table) -> tuple[SnapshotState, ...]:
    """Return the state of each snapshot, oldest first."""
    metadata, tagged = table.metadata, tags(table)
    pinned = {ref.snapshot_id for name, ref in metadata.refs.items() if not name.startswith(TAG_PREFIX)}
    return tuple(
        SnapshotState(
            each.snapshot_id,
            each.timestamp_ms * _MS_NS,
            is_append=each.summary is not None and each.summary.operation is Operation.APPEND,
            is_pinned=each.snapshot_id in pinned,
            tagged_until_ns=tagged.get(each.snapshot_id, 0),
        )
        for each in sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    )


def run(session: SparkSession, catalog: Catalog, name: str, step: Step, settings: MaintenanceSettings) -> StepResult:
    """Run one step; it is committed when this returns."""
    table = catalog.load_table(name)
    match step:
        case Compact():
            (row,) = commit_by_java(
                session,
                table,
                lambda of: call(session, of, "rewrite_data_files", name, *_compaction(step, settings, of)),
            )
            rewritten = row.rewritten_data_files_count
            return StepResult(rewritten + row.removed_delete_files_count, rewritten=rewritten)
        case MergeManifests():
            (row,) = commit_by_java(session, table, lambda of: call(session, of, "rewrite_manifests", name))
            return StepResult(row.rewritten_manifests_count)
        case Tag():
            set_tags(table, step.until_ns, step.removed)
            return StepResult(len(step.until_ns) + len(step.removed))
        case ExpireSnapshots():
            ids = f"snapshot_ids => array({', '.join(f'{each}L' for each in step.snapshot_ids)})"
            options = ("older_than => TIMESTAMP '1970-01-01'", ids)
            (row,) = expire_by_java(
                session,
                table,
                list(step.snapshot_ids),
                lambda of: call(session, of, "expire_snapshots", name, *options),
            )
            return StepResult(len(step.snapshot_ids), expired=len(step.snapshot_ids), removed=sum(row))


def remove_orphans(session: SparkSession, catalog: Catalog, name: str, before_ns: int) -> int:
    """Remove files from before ``before_ns`` that no snapshot references; commits nothing. Return their number."""
    older = f"older_than => TIMESTAMP '{iso_microseconds(before_ns, ' ')}'"
    return len(call(session, catalog.name, "remove_orphan_files", name, older, "prefix_listing => true"))


def call(session: SparkSession, catalog_name: str, procedure: str, name: str, *arguments: str) -> list[Row]:
    """Run a procedure on a table and return its result."""
    text = ", ".join((f"table => '`{catalog_name}`.{name}'", *arguments))
    return session.sql(f"CALL `{catalog_name}`.system.{procedure}({text})").collect()


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


def tags(table: Table) -> dict[int, int]:
    """Return, by snapshot, the time at which its tag ends."""
    ages = {
        ref.snapshot_id: ref.max_ref_age_ms for name, ref in table.metadata.refs.items() if name.startswith(TAG_PREFIX)
    }
    return {
        each.snapshot_id: (each.timestamp_ms + age_ms) * _MS_NS
        for each in table.metadata.snapshots
        if (age_ms := ages.get(each.snapshot_id)) is not None
    }


def set_tags(table: Table, until_ns: Mapping[int, int], removed: Iterable[int]) -> None:
    """Set the tags of snapshots, given with their ends, and remove others, in one commit."""
    made_ms = {each.snapshot_id: each.timestamp_ms for each in table.metadata.snapshots}
    updates: list[TableUpdate] = [
        SetSnapshotRefUpdate.model_validate(
            {
                "ref-name": f"{TAG_PREFIX}{snapshot_id}",
                "type": SnapshotRefType.TAG,
                "snapshot-id": snapshot_id,
                "max-ref-age-ms": max(1, end_ns // _MS_NS - made_ms[snapshot_id]),  # Iceberg counts from its commit
            }
        )
        for snapshot_id, end_ns in until_ns.items()
    ]
    updates += [RemoveSnapshotRefUpdate.model_validate({"ref-name": f"{TAG_PREFIX}{each}"}) for each in removed]
    commit_updates(table, updates)
