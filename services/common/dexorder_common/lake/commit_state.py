"""State that the commits of the pipeline carry in the snapshot summaries of a table. Pure.

Rows, the position in the source and the claims of coverage become visible with one snapshot. A compaction or another
writer makes snapshots without a state, so the state of a table is the state of the nearest ancestor that has one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

Offsets = Mapping[int, int]
"""Next offset to read, by partition."""

_OFFSETS, _RESUME, _TOPICS, _EPOCHS, _DISPATCH, _CLAIMS, _UDF_STATE, _UDF_SENT = (
    "dexorder.offsets",
    "dexorder.resume",
    "dexorder.topics",
    "dexorder.epochs",
    "dexorder.dispatch",
    "dexorder.claims",
    "dexorder.udf-state",
    "dexorder.udf-sent",
)


@dataclass(frozen=True)
class CommitState:
    """State after a commit.

    Attributes:
        offsets: By address of a source, the records with committed rows and claims.
        dispatch: Largest number of a dispatch with committed rows or claims.
        claims: Path of the file with the claims of this commit alone; empty if it made none.
        resume: By address of a source, the records that are reported too: the next run starts there, so that a batch is
            reported of which only the commit succeeded.
        topics: By address of a source, the id of the topic to which its offsets belong.
        epochs: By address of a source, the epochs of the partitions' leaders who had the records before its offsets.
        udf_state: Path of the file with the state of the UDF that fills the table; empty for other tables.
        udf_sent: Rows of that UDF, from the first one, that its topic and its user have got too.
    """

    offsets: Mapping[str, Offsets] = field(default_factory=dict)
    dispatch: int = 0
    claims: str = ""
    resume: Mapping[str, Offsets] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[str, Offsets] = field(default_factory=dict)
    udf_state: str = ""
    udf_sent: int = 0

    def encode(self) -> dict[str, str]:
        """Return the properties of a snapshot's summary."""
        found = {_OFFSETS: _encode(self.offsets), _RESUME: _encode(self.resume), _DISPATCH: str(self.dispatch)}
        if self.topics:
            found[_TOPICS] = json.dumps(self.topics, separators=(",", ":"), sort_keys=True)
        if any(self.epochs.values()):
            found[_EPOCHS] = _encode({source: epochs for source, epochs in self.epochs.items() if epochs})
        if self.udf_sent:
            found[_UDF_SENT] = str(self.udf_sent)
        files = {_CLAIMS: self.claims, _UDF_STATE: self.udf_state}
        return found | {name: path for name, path in files.items() if path}

    @classmethod
    def decode(cls, summary: Mapping[str, str]) -> Self | None:
        """Parse a snapshot's summary; return None without a state, or for one that is not ours."""
        try:
            offsets, resume = _decode(summary[_OFFSETS]), _decode(summary.get(_RESUME, "{}"))
            topics = {str(source): str(topic) for source, topic in json.loads(summary.get(_TOPICS, "{}")).items()}
            epochs = _decode(summary.get(_EPOCHS, "{}"))
            dispatch, claims, udf_state = int(summary[_DISPATCH]), summary.get(_CLAIMS, ""), summary.get(_UDF_STATE, "")
            udf_sent = int(summary.get(_UDF_SENT, "0"))
            return cls(offsets, dispatch, claims, resume, topics, epochs, udf_state, udf_sent)
        except (KeyError, ValueError, AttributeError, TypeError):
            return None

    def has(self, source: str, place: Sequence[int]) -> bool:
        """Return whether the record at this partition and offset is committed."""
        partition, offset, *_ = place
        return offset < self.offsets.get(source, {}).get(partition, 0)

    def after(
        self,
        source: str,
        ends: Offsets,
        *,
        resume: Offsets | None = None,
        dispatch: int = 0,
        claims: str = "",
        topic_id: str = "",
        epochs: Offsets | None = None,
        udf_state: str = "",
    ) -> Self:
        """Return the state after a commit of a batch of ``source``; no offset and no number moves back."""
        done = dict(self.offsets.get(source, {}))
        for partition, end in ends.items():
            done[partition] = max(end, done.get(partition, 0))
        starts = {**self.resume, source: dict(resume)} if resume is not None else self.resume
        topics = {**self.topics, source: topic_id} if topic_id else self.topics
        known = {p: epoch for p, epoch in self.epochs.get(source, {}).items() if p not in ends} | dict(epochs or {})
        leaders = {**self.epochs, source: known} if known or source in self.epochs else self.epochs
        offsets = {**self.offsets, source: done}
        return type(self)(
            offsets,
            max(dispatch, self.dispatch),
            claims,
            starts,
            topics,
            leaders,
            udf_state or self.udf_state,
            self.udf_sent,
        )

    def without(self, source: str, partitions: Collection[int]) -> Self:
        """Return the state without the offsets of partitions with a log that has started again."""
        kept, starts = (
            {**each, source: {p: offset for p, offset in each.get(source, {}).items() if p not in partitions}}
            for each in (self.offsets, self.resume)
        )
        return replace(self, offsets=kept, resume=starts)

    def position(self, source: str) -> dict[int, int]:
        """Return the offsets at which the next run starts, of the partitions that the table knows."""
        return {**self.offsets.get(source, {}), **self.resume.get(source, {})}


def _encode(offsets: Mapping[str, Offsets]) -> str:
    ordered = {source: {str(p): parts[p] for p in sorted(parts)} for source, parts in sorted(offsets.items())}
    return json.dumps(ordered, separators=(",", ":"))


def _decode(text: str) -> dict[str, Offsets]:
    return {
        str(source): {int(p): int(offset) for p, offset in parts.items()} for source, parts in json.loads(text).items()
    }


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
