"""State that the commits of the pipeline carry in the snapshot summaries of a table. Pure.

Rows, the position in the source and the claims of coverage become visible with one snapshot. A compaction or another
writer makes snapshots without a state, so the state of a table is that of the nearest ancestor that has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

Offsets = Mapping[int, int]
"""Next offset to read, by partition."""

_OFFSETS, _DISPATCH, _CLAIMS = "dexorder.offsets", "dexorder.dispatch", "dexorder.claims"


@dataclass(frozen=True)
class CommitState:
    """State after a commit.

    Attributes:
        offsets: By address of a source, the records whose rows and claims are committed.
        dispatch: Largest number of a dispatch with committed rows or claims.
        claims: Path of the file with the claims of this commit alone; empty if it made none.
    """

    offsets: Mapping[str, Offsets] = field(default_factory=dict)
    dispatch: int = 0
    claims: str = ""

    def encode(self) -> dict[str, str]:
        """Return the properties of a snapshot's summary."""
        offsets = {source: {str(p): parts[p] for p in sorted(parts)} for source, parts in sorted(self.offsets.items())}
        found = {_OFFSETS: json.dumps(offsets, separators=(",", ":")), _DISPATCH: str(self.dispatch)}
        return found | {_CLAIMS: self.claims} if self.claims else found

    @classmethod
    def decode(cls, summary: Mapping[str, str]) -> Self | None:
        """Parse a snapshot's summary; return None if it has no state, or one that is not ours."""
        try:
            offsets = {
                str(source): {int(partition): int(offset) for partition, offset in parts.items()}
                for source, parts in json.loads(summary[_OFFSETS]).items()
            }
            return cls(offsets, int(summary[_DISPATCH]), summary.get(_CLAIMS, ""))
        except (KeyError, ValueError, AttributeError, TypeError):
            return None

    def includes(self, source: str, ends: Offsets) -> bool:
        """Return whether everything before ``ends`` is committed."""
        done = self.offsets.get(source, {})
        return all(done.get(partition, 0) >= end for partition, end in ends.items())

    def after(self, source: str, ends: Offsets, *, dispatch: int = 0, claims: str = "") -> Self:
        """Return the state after a commit of a batch of ``source``; no offset and no number moves back."""
        done = dict(self.offsets.get(source, {}))
        for partition, end in ends.items():
            done[partition] = max(end, done.get(partition, 0))
        return type(self)({**self.offsets, source: done}, max(dispatch, self.dispatch), claims)


def state_of(metadata: TableMetadata) -> CommitState:
    """Return the state of the current snapshot; an empty one if no ancestor has one."""
    states = (CommitState.decode(summary_of(snapshot)) for snapshot in ancestors(metadata))
    return next(filter(None, states), CommitState())


def ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the current snapshot and those before it, newest first, as far as they are kept."""
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return
    yield snapshot
    kept = {each.snapshot_id: each for each in metadata.snapshots}
    while snapshot.parent_snapshot_id is not None and (parent := kept.get(snapshot.parent_snapshot_id)) is not None:
        yield parent
        snapshot = parent


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the properties of a snapshot's summary."""
    return snapshot.summary.additional_properties if snapshot.summary else {}
