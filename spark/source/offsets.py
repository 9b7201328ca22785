"""Offsets of a source: per partition the next one to read, so that ``[start, end)`` is a batch. Pure.

Spark keeps them as JSON objects, ``{"0": 17}``; in metadata they travel as ``0:17,1:20``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.common.model.errors import InvalidRequest
from spark.source.options import Position

Offsets = Mapping[int, int]


@dataclass(frozen=True)
class SourceState:
    """What PendingFn says about each partition: first and next-to-come offset, and the committed one where there is."""

    starts: Offsets
    ends: Offsets
    committed: Offsets


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition; some may be missing in the log (compaction)."""

    partition: int
    start: int
    end: int


def parse_pairs(text: str) -> dict[int, int]:
    """Read ``0:17,1:20``; an empty text holds nothing.

    Raises:
        InvalidRequest: Another form.
    """
    try:
        return {int(p): int(o) for p, o in (pair.split(":") for pair in text.split(",") if pair)}
    except ValueError:
        raise InvalidRequest(f"offsets {text!r} are not of the form 0:17,1:20") from None


def to_json(offsets: Offsets) -> dict[str, int]:
    """What Spark writes into its checkpoint; sorted, so that equal offsets are equal texts."""
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def from_json(offsets: Mapping[str, int]) -> dict[int, int]:
    """The inverse of ``to_json``."""
    return {int(partition): int(offset) for partition, offset in offsets.items()}


def initial(state: SourceState, starting: Position) -> dict[int, int]:
    """Where a new query begins.

    Nothing below the log's start can be read any more, so no position is below it.

    Raises:
        InvalidRequest: A given offset is beyond the log's end, or a partition has none.
    """
    if starting == "earliest":
        return dict(state.starts)
    if starting == "latest":
        return dict(state.ends)
    if starting == "committed":
        return {p: max(first, state.committed.get(p, first)) for p, first in state.starts.items()}
    for partition, end in state.ends.items():
        if partition not in starting:
            raise InvalidRequest(f"startingOffsets has no offset for partition {partition}")
        if starting[partition] > end:
            raise InvalidRequest(f"startingOffsets {starting[partition]} of partition {partition} is beyond end {end}")
    return {p: max(first, starting[p]) for p, first in state.starts.items()}


def cap(start: Offsets, ends: Offsets, most: int | None) -> dict[int, int]:
    """The end of the next batch: at most ``most`` records after ``start``, shared evenly; None takes all.

    A partition with little left leaves its share to the others. No end is before its start, also when the log's end
    moved back: going on where we were shows the loss as a refused read, going back would hide it.
    """
    new = {p: ends.get(p, 0) for p in {*start, *ends}}
    lags = sorted((max(0, end - start.get(p, 0)), p) for p, end in new.items())
    left, planned = most, {}
    for index, (lag, partition) in enumerate(lags):
        take = lag if left is None else min(lag, -(-left // (len(lags) - index)))
        left = left if left is None else left - take
        planned[partition] = start.get(partition, 0) + take
    return planned


def plan(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """One range for each partition that has something in ``[start, end)``; a partition new in ``end`` begins at 0.

    Raises:
        InvalidRequest: An end is before its start.
    """
    ranges = []
    for partition in sorted(end):
        first, last = start.get(partition, 0), end[partition]
        if last < first:
            raise InvalidRequest(f"end {last} of partition {partition} is before start {first}")
        if first < last:
            ranges.append(OffsetRange(partition, first, last))
    return ranges


def to_ack(end: Offsets, state: SourceState) -> dict[int, int]:
    """The last settled offset of each partition on which ``end`` is ahead of the commit."""
    return {
        partition: offset - 1
        for partition, offset in sorted(end.items())
        if offset > max(state.committed.get(partition, 0), state.starts.get(partition, 0))
        and offset <= state.ends.get(partition, 0)
    }
