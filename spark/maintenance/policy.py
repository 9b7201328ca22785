"""What a table needs: which partitions to compact, when to merge manifests and lines, which snapshots may go. Pure.

Every step is bounded, since a batch that comes meanwhile waits for it. Snapshots go by age, but never one that is
younger than the last batch in Spark's commit log: what may be replayed finds the table it left. For the same
reason no younger line of the ledger is merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from services.common.lake.catalog import COVERAGE_TABLE, OHLC_TABLE
from spark.pipeline.columns import time_text

_HOUR_NS = 3_600 * 1_000_000_000
_MOST_REPEATS = 20
"""Steps of a kind for one partition in one run; the next run goes on."""


@dataclass(frozen=True)
class Policy:
    """When care is due, and how much of it at once; see ``spark/config.py`` for units and defaults."""

    small_files: int = 16
    small_file_bytes: int = 16 * 1024 * 1024
    target_file_bytes: int = 128 * 1024 * 1024
    delete_files: int = 8
    step_bytes: int = 256 * 1024 * 1024
    manifests: int = 64
    snapshot_ns: int = 7 * 24 * _HOUR_NS
    max_snapshots: int = 1_000

    min_expired: int = 50
    """Snapshots that make an expiry due: it reads the table's metadata, which is not worth it for a few."""

    coverage_rows: int = 500
    coverage_grace_ns: int = _HOUR_NS // 6
    step_rows: int = 50_000
    """About the most lines of the ledger that are compared at once."""

    def eager(self) -> Policy:
        """The same for someone who asked for it: whatever can be made less is due."""
        lines = min(self.coverage_rows, 1)
        return replace(self, small_files=2, delete_files=1, manifests=2, min_expired=1, coverage_rows=lines)


@dataclass(frozen=True)
class PartitionValue:
    """A partition field's value as Iceberg stores it: months since 1970 for ``month``, a number for ``bucket[4]``."""

    column: str
    transform: str
    value: object


@dataclass(frozen=True)
class PartitionState:
    """The files of one partition."""

    cuts: tuple[PartitionValue, ...]
    data_files: int
    data_bytes: int
    small_files: int
    small_bytes: int
    delete_files: int = 0
    rows: int = 0
    """In the data files; deleted ones count."""


@dataclass(frozen=True)
class TableState:
    """A table as it is now. ``snapshot_times_ns`` ascend; the last one is current and never goes."""

    name: str
    parts: tuple[PartitionState, ...]
    manifests: int
    snapshot_times_ns: tuple[int, ...]
    merged_rows: int = 0
    """Lines of the ledger that the last merging has left, so that only further ones make the next one due."""

    @property
    def data_files(self) -> int:
        """In all partitions."""
        return sum(part.data_files for part in self.parts)

    @property
    def delete_files(self) -> int:
        """In all partitions."""
        return sum(part.delete_files for part in self.parts)

    @property
    def rows(self) -> int:
        """In all partitions."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class Compact:
    """Write at most ``most_files`` of a partition's small or partly deleted files anew, ``repeats`` times."""

    cuts: tuple[PartitionValue, ...]
    most_files: int
    repeats: int
    deletes: int
    """Delete files that are applied and dropped; 0 leaves them."""
    saved_files: int
    """Data files fewer afterwards, about."""


@dataclass(frozen=True)
class MergeManifests:
    """Few manifests instead of many."""


@dataclass(frozen=True)
class MergeCoverage:
    """Merge lines of the ledger that were committed before ``before_ns``, if at least ``least`` go, ``repeats`` times.

    Each time about ``most`` are compared.
    """

    before_ns: int
    min_rows: int
    max_rows: int
    repeats: int


@dataclass(frozen=True)
class Expire:
    """Forget snapshots from before ``before_ns``, and their files."""

    before_ns: int
    snapshots: int


Step: TypeAlias = Compact | MergeManifests | MergeCoverage | Expire


def plan(state: TableState, policy: Policy, *, now_ns: int, settled_ns: int) -> list[Step]:
    """The steps that are due, in order.

    Args:
        settled_ns: When the last batch in Spark's commit log began, or a later moment at which none was open.
    """
    steps: list[Step] = [step for part in state.parts if (step := _compact(part, policy))]
    if state.manifests >= policy.manifests:
        steps.append(MergeManifests())
    further = state.rows - state.merged_rows if state.name == COVERAGE_TABLE else 0
    if 0 < policy.coverage_rows <= further:
        repeats = min(-(-state.rows // policy.step_rows), _MOST_REPEATS)
        before_ns = min(now_ns - policy.coverage_grace_ns, settled_ns)
        steps.append(MergeCoverage(before_ns, policy.coverage_rows, policy.step_rows, repeats))
    before_ns = expire_before(state, policy, now_ns=now_ns, settled_ns=settled_ns)
    old = sum(time_ns < before_ns for time_ns in state.snapshot_times_ns[:-1])
    if old >= policy.min_expired:
        steps.append(Expire(before_ns, old))
    return steps


def _compact(part: PartitionState, policy: Policy) -> Compact | None:
    deletes_due = part.delete_files >= policy.delete_files
    if part.small_files < policy.small_files and not deletes_due:
        return None
    # A file that is large enough is only written anew for its deletes.
    files = part.data_files if deletes_due else part.small_files
    size = part.data_bytes if deletes_due else part.small_bytes
    max_rows = max(2, policy.step_bytes * files // max(size, 1))
    after = max(1, -(-part.small_bytes // policy.target_file_bytes)) if part.small_files else 0
    return Compact(
        part.cuts,
        min(max_rows, max(files, 2)),
        min(-(-files // max_rows), _MOST_REPEATS),
        part.delete_files if deletes_due else 0,
        max(0, part.small_files - after),
    )


def expire_before(state: TableState, policy: Policy, *, now_ns: int, settled_ns: int) -> int:
    """Snapshots from before this moment may go.

    Notifications name snapshots of the candles, so these are kept longest; beyond ``most_snapshots`` the oldest go
    sooner, since every commit writes the list anew. None goes within an hour: someone may be reading it.
    """
    times = state.snapshot_times_ns
    keep_ns = policy.snapshot_ns if state.name == OHLC_TABLE else min(policy.snapshot_ns, _HOUR_NS)
    before_ns = now_ns - keep_ns
    if len(times) > policy.max_snapshots:
        before_ns = max(before_ns, min(times[-policy.max_snapshots], now_ns - _HOUR_NS))
    return min(before_ns, settled_ns)


def predicate(cuts: Sequence[PartitionValue], catalog: str) -> str:
    """SQL that holds for a partition's rows; a transform it has no words for is left out, which selects more."""
    return " AND ".join(text for cut in cuts if (text := _condition(cut, catalog)))


def _condition(cut: PartitionValue, catalog: str) -> str:
    if cut.value is None:
        return f"{cut.column} IS NULL"
    if cut.transform == "month" and isinstance(cut.value, int):
        first, last = (_month_text(cut.value + n) for n in (0, 1))
        return f"{cut.column} >= TIMESTAMP '{first}' AND {cut.column} < TIMESTAMP '{last}'"
    if cut.transform.startswith("bucket["):
        return f"`{catalog}`.system.bucket({cut.transform[7:-1]}, {cut.column}) = {cut.value}"
    return ""


def _month_text(months: int) -> str:
    start = datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=UTC)
    return time_text(round(start.timestamp()) * 1_000_000_000, " ")
