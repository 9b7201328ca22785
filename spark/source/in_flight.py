"""Records of a source without replay, between their read and their ack. Pure.

    read ─▶ open ──offer──▶ offered ──commit──▶ owed ──settle──▶ forgotten
            what came       batch n, told       in Spark's       acked at
            since then      to Spark            commit log       the source

An offset of such a stream says nothing of the source's own: it is a batch of one planner, ``{"run": .., "batch": n}``.
Batches of another run are in nobody's memory any more. None of their records was acked unless it was committed, so
those that matter come again from the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from services.common.model.errors import InvalidRequest
from spark.pipeline.columns import RECORD

RecordId: TypeAlias = tuple[int, bytes]
"""Partition and offset: what a record is to its source, and what an ack names."""

_MOST_PART_BYTES = 4 * 1024 * 1024
"""A part travels inside its task, for which a cluster takes 128 MiB (spark.rpc.message.maxSize)."""
_LEAST_PART_BYTES = 256 * 1024
_PARTS = 8


@dataclass(frozen=True)
class BatchOffset:
    """Everything up to and with a batch of a run; batch 0 is before the first."""

    run: str
    batch: int

    def to_json(self) -> dict[str, Any]:
        """What Spark writes into its checkpoint; equal marks are equal texts."""
        return {"run": self.run, "batch": self.batch}

    @staticmethod
    def from_json(offset: Mapping[str, Any]) -> BatchOffset:
        """The inverse of ``to_json``.

        Raises:
            InvalidRequest: The offset is not of this form.
        """
        run, batch = offset.get("run"), offset.get("batch")
        if not isinstance(run, str) or not isinstance(batch, int):
            raise InvalidRequest(f"offset {dict(offset)} is not of a source without replay")
        return BatchOffset(run, batch)


def is_batch_offset(offset: Mapping[str, Any]) -> bool:
    """Whether an offset of a checkpoint is of a source without replay; else it is one number a partition."""
    return "run" in offset


@dataclass
class _Batch:
    rows: list[pa.RecordBatch] = field(default_factory=list)
    ids: list[RecordId] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    total_bytes: int = 0


class InFlight:
    """What one planner keeps in memory.

    Attributes:
        end: The last offer, or where the checkpoint ended as long as there was none.
        owed: Ids to ack, by batch, oldest first: they are committed, and nothing else may ever be acked.
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
        """How many records the next offer has."""
        return len(self._open.ids)

    @property
    def records(self) -> int:
        """How many records are not settled."""
        return len(self._ids)

    @property
    def open_bytes(self) -> int:
        """How large they are."""
        return self._open.total_bytes

    def resume(self, end: BatchOffset) -> None:
        """Go on behind a checkpoint, so that nothing new is the same offset as before."""
        if self.end == BatchOffset(self.run, 0):
            self.end = end

    def fresh(self, ids: Sequence[RecordId]) -> list[int]:
        """Which of these records are not held: a source repeats the unacked on a new stream, and one copy is enough.

        The ack of the first copy settles them all.
        """
        seen: set[RecordId] = set()
        new = []
        for index, one in enumerate(ids):
            if one not in self._ids and one not in seen:
                seen.add(one)
                new.append(index)
        return new

    def add(self, rows: pa.RecordBatch, ids: Sequence[RecordId], sizes: Sequence[int]) -> None:
        """Hold records: their rows, their ids and their bytes, in one order."""
        self._open.rows.append(rows)
        self._open.ids += ids
        self._open.sizes += sizes
        self._open.total_bytes += sum(sizes)
        self._ids.update(ids)

    def offer(self) -> BatchOffset:
        """The end of a batch with all that is open, or the last offer if nothing is."""
        if self._open.ids:
            number = self.end.batch + 1 if self.end.run == self.run else 1
            self._offered[number] = self._open
            self._open = _Batch()
            self.end = BatchOffset(self.run, number)
        return self.end

    def parts(self, start: BatchOffset, end: BatchOffset) -> list[pa.Table]:
        """The records behind ``start`` up to ``end``, in reading order, cut for tasks; none of another run.

        Raises:
            InvalidRequest: A batch of this run is not held: it was committed before, or never offered.
        """
        if end.run != self.run:
            return []
        numbers = range(start.batch + 1 if start.run == self.run else 1, end.batch + 1)
        missing = [number for number in numbers if number not in self._offered]
        if missing:
            raise InvalidRequest(f"batches {missing} of run {self.run} are not in memory")
        batches = [self._offered[number] for number in numbers]
        rows = pa.Table.from_batches([part for batch in batches for part in batch.rows], schema=RECORD)
        sizes = [size for batch in batches for size in batch.sizes]
        return [rows.slice(first, last - first) for first, last in cut(sizes)]

    def commit(self, end: BatchOffset) -> None:
        """Everything up to ``end`` is in Spark's commit log: let its rows go, owe its acks."""
        if end.run != self.run:
            return
        for number in [number for number in self._offered if number <= end.batch]:
            self.to_ack[number] = self._offered.pop(number).ids

    def settle(self, batch: int) -> None:
        """Forget a batch whose acks are done."""
        self._ids.difference_update(self.to_ack.pop(batch))


def cut(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges ``[first, last)`` that cover records of these sizes, one range a task.

    About eight, so that tasks work side by side, but none of them tiny and none over 4 MiB, unless it is one record.
    """
    limit = min(max(sum(sizes) // _PARTS, _LEAST_PART_BYTES), _MOST_PART_BYTES)
    ranges: list[tuple[int, int]] = []
    first = taken = 0
    for index, size in enumerate(sizes):
        if index > first and taken + size > limit:
            ranges.append((first, index))
            first, taken = index, 0
        taken += size
    return [*ranges, (first, len(sizes))] if sizes else []


def records_to_request(most: int, left_bytes: int, record_bytes: float) -> int:
    """How many records to ask for: ``most``, or as many as fit into ``left_bytes`` by what records came to so far.

    Args:
        most: 1 or more.
        left_bytes: What is left of the batch.
        record_bytes: Mean size of a record, 0 while unknown.
    """
    return most if record_bytes <= 0 else max(1, min(most, int(left_bytes / record_bytes)))
