"""Records of a source without replay, between their read and their ack. Pure.

    state      meaning                                    event    next state
    open       read since the last offered batch          offer    offered
    offered    part of batch n, whose end Spark knows     commit   to ack
    to ack     in Spark's commit log, not acked yet       settle   forgotten

A stream's offset says nothing about the source: it numbers a batch of one planner, ``{"run": .., "batch": n}``. Batches
of another run are in no process's memory any more. Only committed records are acked, so the source sends the others
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from dexorder_common.model.errors import InvalidRequest

RecordId: TypeAlias = tuple[int, bytes]
"""Partition and offset. They identify a record at its source, and an ack names them."""

_MAX_PART_BYTES = 4 * 1024 * 1024
"""A part is sent inside its task, which a cluster limits to 128 MiB (spark.rpc.message.maxSize)."""
_MIN_PART_BYTES = 256 * 1024
_PARTS = 8


@dataclass(frozen=True)
class BatchOffset:
    """Everything up to and including a batch of a run; batch 0 is before the first."""

    run: str
    batch: int

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark writes it to its checkpoint; equal offsets are equal texts."""
        return {"run": self.run, "batch": self.batch}

    @staticmethod
    def from_json(offset: Mapping[str, Any]) -> BatchOffset:
        """Invert ``to_json``; InvalidRequest for an offset of another form."""
        run, batch = offset.get("run"), offset.get("batch")
        if not isinstance(run, str) or not isinstance(batch, int):
            raise InvalidRequest(f"offset {dict(offset)} is not an offset of a source without replay")
        return BatchOffset(run, batch)


def is_batch_offset(offset: Mapping[str, Any]) -> bool:
    """Return whether an offset of a checkpoint is from a source without replay, not one number per partition."""
    return "run" in offset


@dataclass
class _Batch:
    rows: list[pa.RecordBatch] = field(default_factory=list)
    ids: list[RecordId] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    total_bytes: int = 0


class InFlight:
    """Records in one planner's memory.

    Attributes:
        end: End of the last offered batch; before the first one, the end of the checkpoint.
        to_ack: Ids of committed records by batch, oldest first. No other record may ever be acked.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.end = BatchOffset(run, 0)
        self.to_ack: dict[int, list[RecordId]] = {}
        self._open = _Batch()
        self._offered: dict[int, _Batch] = {}
        self._ids: set[RecordId] = set()

    @property
    def open_records(self) -> int:
        """Number of records in the next batch."""
        return len(self._open.ids)

    @property
    def records(self) -> int:
        """Number of records in any state."""
        return len(self._ids)

    @property
    def open_bytes(self) -> int:
        """Size of the next batch."""
        return self._open.total_bytes

    def resume(self, end: BatchOffset) -> None:
        """Continue after a checkpoint, so that "nothing new" has the checkpoint's offset."""
        if self.end == BatchOffset(self.run, 0):
            self.end = end

    def fresh(self, ids: Sequence[RecordId]) -> list[int]:
        """Return the indexes of the records that are not in memory yet.

        A source sends unacked records again on a new stream. The ack of the first copy acks every copy.
        """
        new: dict[RecordId, int] = {}
        for index, one in enumerate(ids):
            if one not in self._ids:
                new.setdefault(one, index)
        return list(new.values())

    def add(self, rows: pa.RecordBatch, ids: Sequence[RecordId], sizes: Sequence[int]) -> None:
        """Add records to the open batch: their rows, ids and sizes in bytes, in the same order."""
        self._open.rows.append(rows)
        self._open.ids += ids
        self._open.sizes += sizes
        self._open.total_bytes += sum(sizes)
        self._ids.update(ids)

    def offer(self) -> BatchOffset:
        """Close the open batch and return its end; return the last end if there are no open records."""
        if self._open.ids:
            number = self.end.batch + 1 if self.end.run == self.run else 1
            self._offered[number] = self._open
            self._open = _Batch()
            self.end = BatchOffset(self.run, number)
        return self.end

    def parts(self, start: BatchOffset, end: BatchOffset) -> list[pa.Table]:
        """Return the records after ``start`` up to ``end`` in reading order, cut for tasks; none for another run.

        InvalidRequest if a batch of this run is not in memory: it is committed already or was never offered.
        """
        if end.run != self.run:
            return []
        numbers = range(start.batch + 1 if start.run == self.run else 1, end.batch + 1)
        missing = [number for number in numbers if number not in self._offered]
        if missing:
            raise InvalidRequest(f"batches {missing} of run {self.run} are not in memory")
        batches = [self._offered[number] for number in numbers]
        if not batches:
            return []
        rows = pa.Table.from_batches([part for batch in batches for part in batch.rows])
        sizes = [size for batch in batches for size in batch.sizes]
        return [rows.slice(first, last - first) for first, last in cut(sizes)]

    def commit(self, end: BatchOffset) -> None:
        """Drop the rows of every batch up to ``end``, which is in Spark's commit log; their ids are to be acked."""
        if end.run != self.run:
            return
        for number in [number for number in self._offered if number <= end.batch]:
            self.to_ack[number] = self._offered.pop(number).ids

    def settle(self, batch: int) -> None:
        """Forget a batch whose records are acked."""
        self._ids.difference_update(self.to_ack.pop(batch))


def cut(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return ranges ``[first, last)`` that cover records of these sizes, one range per task.

    There are about eight, so that tasks run in parallel, of 256 KiB to 4 MiB each. A larger record is a range alone.
    """
    limit = min(max(sum(sizes) // _PARTS, _MIN_PART_BYTES), _MAX_PART_BYTES)
    ranges: list[tuple[int, int]] = []
    first = taken = 0
    for index, size in enumerate(sizes):
        if index > first and taken + size > limit:
            ranges.append((first, index))
            first, taken = index, 0
        taken += size
    return [*ranges, (first, len(sizes))] if sizes else []


def records_to_request(limit: int, left_bytes: int, record_bytes: float) -> int:
    """Return the number of records to request: ``limit``, or as many as are expected to fit into ``left_bytes``.

    It is at least 1. ``record_bytes`` is the mean size of a record, 0 while it is unknown.
    """
    return limit if record_bytes <= 0 else max(1, min(limit, int(left_bytes / record_bytes)))
