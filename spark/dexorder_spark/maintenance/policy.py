"""Rules of maintenance: which partitions to compact, when to merge manifests and to expire snapshots. Pure.

Every step is bounded because a batch that arrives during a step waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from dexorder_common.model.times import from_datetime, iso_microseconds
from dexorder_spark.maintenance.snapshots import ExpireSnapshots, SnapshotState, Tag, plan_expiry

if TYPE_CHECKING:
    from dexorder_spark.config import MaintenanceSettings

_MAX_REPEATS = 20
"""Steps of one kind for a partition in one run; the next run continues."""


@dataclass(frozen=True)
class PartitionValue:
    """A partition field's value as Iceberg stores it: months since 1970 for ``month``, a number for ``bucket[4]``."""

    column: str
    transform: str
    value: object


@dataclass(frozen=True)
class PartitionState:
    """Files of one partition. ``rows`` counts the rows of the data files, including deleted ones."""

    values: tuple[PartitionValue, ...]
    data_files: int
    data_bytes: int
    small_files: int
    small_bytes: int
    delete_files: int = 0
    rows: int = 0


@dataclass(frozen=True)
class TableState:
    """Present state of a table.

    Attributes:
        snapshots: Oldest first.
        needed_ns: Time of the oldest snapshot with an entry that no later one has; None without such a snapshot.
        named: By snapshot, the time of the last notification that named it; None if the relay did not answer.
    """

    name: str
    partitions: tuple[PartitionState, ...]
    manifests: int
    snapshots: tuple[SnapshotState, ...] = ()
    needed_ns: int | None = None
    named: Mapping[int, int] | None = field(default_factory=dict)

    @property
    def data_files(self) -> int:
        """Number in all partitions."""
        return sum(each.data_files for each in self.partitions)

    @property
    def delete_files(self) -> int:
        """Number in all partitions."""
        return sum(each.delete_files for each in self.partitions)

    @property
    def rows(self) -> int:
        """Number in all partitions."""
        return sum(each.rows for each in self.partitions)


@dataclass(frozen=True)
class Compact:
    """Rewrite at most ``max_files`` small or partly deleted files of a partition, ``repeats`` times.

    Attributes:
        deletes: Delete files that are applied and dropped; 0 leaves them.
        saved_files: Approximate number of data files by which the partition shrinks.
    """

    values: tuple[PartitionValue, ...]
    max_files: int
    repeats: int
    deletes: int
    saved_files: int


@dataclass(frozen=True)
class MergeManifests:
    """Replace many manifests by few."""


Step: TypeAlias = Compact | MergeManifests | Tag | ExpireSnapshots


def plan(state: TableState, settings: MaintenanceSettings, *, now_ns: int, eager: bool = False) -> list[Step]:
    """Return the steps that are due, in order.

    Args:
        eager: Everything that can be reduced is due, as for a run on request.
    """
    if eager:
        settings = settings.model_copy(update={"small_files": 2, "delete_files": 1, "manifests": 2})
    steps: list[Step] = [step for each in state.partitions if (step := _compact(each, settings))]
    if state.manifests >= settings.manifests:
        steps.append(MergeManifests())
    if state.named is not None:
        steps += plan_expiry(
            state.snapshots, state.named, settings, needed_ns=state.needed_ns, now_ns=now_ns, eager=eager
        )
    return steps


def _compact(partition: PartitionState, settings: MaintenanceSettings) -> Compact | None:
    deletes_due = partition.delete_files >= settings.delete_files
    if partition.small_files < settings.small_files and not deletes_due:
        return None
    # A file of sufficient size is rewritten only to apply its deletes.
    files = partition.data_files if deletes_due else partition.small_files
    size = partition.data_bytes if deletes_due else partition.small_bytes
    max_files = max(2, settings.step_bytes * files // max(size, 1))
    after = max(1, -(-partition.small_bytes // settings.target_file_bytes)) if partition.small_files else 0
    return Compact(
        partition.values,
        min(max_files, max(files, 2)),
        min(-(-files // max_files), _MAX_REPEATS),
        partition.delete_files if deletes_due else 0,
        max(0, partition.small_files - after),
    )


def predicate(values: Sequence[PartitionValue], catalog: str) -> str:
    """Return SQL that holds for a partition's rows; it leaves out transforms without an equivalent."""
    return " AND ".join(text for value in values if (text := _condition(value, catalog)))


def _condition(value: PartitionValue, catalog: str) -> str:
    if value.value is None:
        return f"{value.column} IS NULL"
    if value.transform == "month" and isinstance(value.value, int):
        first, last = (_month_text(value.value + n) for n in (0, 1))
        return f"{value.column} >= TIMESTAMP '{first}' AND {value.column} < TIMESTAMP '{last}'"
    if value.transform.startswith("bucket["):
        return f"`{catalog}`.system.bucket({value.transform[7:-1]}, {value.column}) = {value.value}"
    return ""


def _month_text(months: int) -> str:
    return iso_microseconds(from_datetime(datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=UTC)), " ")
