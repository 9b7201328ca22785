"""Rules of maintenance: which partitions to compact, when to merge manifests, what expires. Pure.

Every step is bounded, as a batch that arrives during a step waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from services.common.lake.tables import COVERAGE, DEAD_LETTERS
from services.common.model.times import SECOND_NS, from_datetime, iso_microseconds

if TYPE_CHECKING:
    from spark.config import MaintenanceSettings

_HOUR_NS = 3_600 * SECOND_NS
_MIN_EXPIRED = 50
"""Snapshots that make an expiry due: it reads the table's metadata, which is not worth it for a few."""
_MAX_REPEATS = 20
"""Steps of one kind for a partition in one run; the next run continues."""
_INTERNAL_TABLES = (COVERAGE.name, DEAD_LETTERS.name)


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
        snapshot_times_ns: Ascending. The last one is current and never expires.
        needed_ns: Time of the oldest snapshot with something that no later one has; None if there is none.
    """

    name: str
    partitions: tuple[PartitionState, ...]
    manifests: int
    snapshot_times_ns: tuple[int, ...]
    needed_ns: int | None = None

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


@dataclass(frozen=True)
class Expire:
    """Expire snapshots from before ``before_ns``, and remove their files."""

    before_ns: int
    snapshots: int


Step: TypeAlias = Compact | MergeManifests | Expire


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
    before_ns = expire_before(state, settings, now_ns=now_ns)
    old = sum(time_ns < before_ns for time_ns in state.snapshot_times_ns[:-1])
    if old >= (1 if eager else _MIN_EXPIRED):
        steps.append(Expire(before_ns, old))
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


def expire_before(state: TableState, settings: MaintenanceSettings, *, now_ns: int) -> int:
    """Return the time before which snapshots expire.

    Notifications name snapshots of the tables that pages fill, so these are kept longest. Above ``max_snapshots`` the
    oldest expire earlier, as every commit rewrites the list. None expires within an hour: it may be in use. One that
    has the pipeline's state, or claims that are not collected, stays as well (``services/common/lake/claims.py``).
    """
    times = state.snapshot_times_ns
    keep_ns = round(settings.snapshot_days * 24 * _HOUR_NS)
    if state.name in _INTERNAL_TABLES:
        keep_ns = min(keep_ns, _HOUR_NS)
    before_ns = now_ns - keep_ns
    if len(times) > settings.max_snapshots:
        before_ns = max(before_ns, min(times[-settings.max_snapshots], now_ns - _HOUR_NS))
    return min(before_ns, before_ns if state.needed_ns is None else state.needed_ns)


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
