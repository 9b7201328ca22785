"""Tags of the snapshots that notifications have named: they stay readable until the tag ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate, TableUpdate

from dexorder_common.lake.commit import commit_updates

TAG_PREFIX = "notified-"
_MS_NS = 1_000_000


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
                "max-ref-age-ms": max(1, end_ns // _MS_NS - made_ms[snapshot_id]),  # Iceberg counts from its commit on
            }
        )
        for snapshot_id, end_ns in until_ns.items()
    ]
    updates += [RemoveSnapshotRefUpdate.model_validate({"ref-name": f"{TAG_PREFIX}{each}"}) for each in removed]
    commit_updates(table, updates)
