"""Offsets of a source: the next one to read in each partition, so that ``[start, end)`` is a batch. Pure.

Spark's checkpoint has them as JSON objects, ``{"0": 17}``; gRPC metadata as ``0:17,1:20``. The end of a query's first
batch also has the query's start, ``{"0": 17, "from": {"0": 3}}``: Spark does not keep that start, so without it a first
batch that is repeated after a crash would start wherever ``startingOffsets`` is by then. If the log went
back, so that a batch does not start where the one before ends, its start is ``"restart"``. The id of the topic is
``"topic"``, and ``"epochs"`` are the epochs of the partitions' leaders when the batch was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.source.options import Position

Offsets = Mapping[int, int]
_RECORDS_OF_UNKNOWN_SIZE = 1_000
_FROM, _RESTART, _TOPIC, _EPOCHS = "from", "restart", "topic", "epochs"


@dataclass(frozen=True)
class SourceState:
    """Answer of PendingFn for each partition: first offset, next offset, and the committed one if there is one.

    Attributes:
        topic_id: Another one than before means another log; empty if the source does not tell it.
        record_bytes: Size of its latest records on average; 0 if the source does not tell it.
        epochs: Epoch of the leaders at the ends, where the source tells it. If it changes, records may have been lost.
        committed_epochs: Epochs in the commits.
    """

    starts: Offsets
    ends: Offsets
    committed: Offsets
    topic_id: str = ""
    record_bytes: int = 0
    epochs: Offsets = field(default_factory=dict)
    committed_epochs: Offsets = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition; compaction may have removed some from the log.

    Attributes:
        epoch: Epoch of the leaders when the log had these offsets; -1 if it is unknown.
    """

    partition: int
    start: int
    end: int
    epoch: int = -1


def parse_pairs(text: str) -> dict[int, int]:
    """Parse ``0:17,1:20``, or an empty text without offsets; InvalidRequest for another form."""
    try:
        return {int(p): int(o) for p, o in (pair.split(":") for pair in text.split(",") if pair)}
    except ValueError:
        raise InvalidRequest(f"offsets {text!r} are not of the form 0:17,1:20") from None


def to_json(
    offsets: Offsets,
    start: Offsets | None = None,
    *,
    restart: Offsets | None = None,
    topic_id: str = "",
    epochs: Offsets | None = None,
) -> dict[str, Any]:
    """Return the offsets as Spark writes them to its checkpoint; sorted, so that equal offsets are equal texts.

    Args:
        start: Start of the query, if the offsets are the end of its first batch.
        restart: Start of the batch, if it is not the end of the one before.
    """
    found: dict[str, Any] = {str(partition): offsets[partition] for partition in sorted(offsets)}
    if start is not None:
        found[_FROM] = to_json(start)
    if restart is not None:
        found[_RESTART] = to_json(restart)
    if epochs:
        found[_EPOCHS] = to_json(epochs)
    return found | {_TOPIC: topic_id} if topic_id else found


def from_json(offsets: Mapping[str, Any]) -> dict[int, int]:
    """Invert ``to_json``: return only the offsets."""
    return {int(partition): int(offset) for partition, offset in offsets.items() if partition.isdigit()}


def start_json(start: Offsets) -> dict[str, Any]:
    """Return the start of a query as Spark asks for it, again after a crash in the first batch."""
    return {_FROM: to_json(start)}


def bounds(start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[dict[int, int], dict[int, int]]:
    """Return start and end of a batch; the first batch of a query, and one that restarts, has its start in ``end``."""
    if start.keys() == {_FROM}:
        start = end.get(_FROM, start[_FROM])
    elif start != end:
        start = end.get(_RESTART, start)
    return from_json(start), from_json(end)


def epochs_of(offsets: Mapping[str, Any]) -> dict[int, int]:
    """Return the epochs in offsets as ``to_json`` has them."""
    return from_json(offsets.get(_EPOCHS, {}))


def lost_logs(last: Mapping[str, Any], state: SourceState) -> dict[int, str]:
    """Return the partitions of which the source has another log than the one read up to ``last``, each with the reason.

    A topic is deleted as a whole: unless it has the same id as before, one partition that went back stands for all.
    """
    known, offsets = last.get(_TOPIC, ""), from_json(last)
    if known and state.topic_id and known != state.topic_id:
        return dict.fromkeys(offsets, f"its topic has id {state.topic_id} instead of {known}")
    found = {
        partition: f"partition {partition} ends at offset {end}, before offset {offset}, up to which it was read"
        for partition, offset in sorted(offsets.items())
        if offset > (end := state.ends.get(partition, 0))
    }
    is_same = known and known == state.topic_id
    return found if is_same or not found else dict.fromkeys(offsets, next(iter(found.values())))


def to_compare(offsets: Offsets, epochs: Offsets, state: SourceState) -> list[OffsetRange]:
    """Return an empty range at each offset of a partition with other leaders since the log reached it.

    These leaders may have lacked records. The source reports it when such a range is read.
    """
    others = ((p, o) for p, o in sorted(offsets.items()) if p in epochs and epochs[p] != state.epochs.get(p, epochs[p]))
    return [OffsetRange(partition, offset, offset, epochs[partition]) for partition, offset in others]


def initial_epochs(state: SourceState, starting: Position) -> dict[int, int]:
    """Return the epochs of the offsets at which a new query starts."""
    return {**state.epochs, **(state.committed_epochs if starting == "committed" else {})}


def initial(state: SourceState, starting: Position) -> dict[int, int]:
    """Return the offsets at which a new query starts, at or above the log's start.

    Raises:
        InvalidRequest: A given offset is after the log's end, or a partition lacks one.
    """
    if starting == "earliest":
        return dict(state.starts)
    if starting == "latest":
        return dict(state.ends)
    if starting == "committed":
        return {p: max(first, state.committed.get(p, first)) for p, first in state.starts.items()}
    for partition, end in state.ends.items():
        if partition not in starting:
            raise InvalidRequest(f"startingOffsets lacks partition {partition}")
        if starting[partition] > end:
            raise InvalidRequest(
                f"startingOffsets {starting[partition]} of partition {partition} is after its end {end}"
            )
    return {p: max(first, starting[p]) for p, first in state.starts.items()}


def begun_anew(kept: Offsets, state: SourceState, topic_id: str = "") -> set[int]:
    """Return the partitions of ``lost_logs`` that a reader, which has kept these offsets, reads from their start."""
    return {*lost_logs(to_json(kept, topic_id=topic_id), state)}


def resume(kept: Offsets, state: SourceState) -> dict[int, int]:
    """Return where a reader continues: at the offset that it has kept, else at the committed one, else at the start."""
    return {p: max(first, kept.get(p, state.committed.get(p, first))) for p, first in state.starts.items()}


def cap(start: Offsets, ends: Offsets, limit: int | None) -> dict[int, int]:
    """Return the end of the next batch: at most ``limit`` records after ``start``, shared evenly; None takes all.

    A partition with fewer records leaves its share to the others. No end is before its start.
    """
    new = {p: ends.get(p, 0) for p in {*start, *ends}}
    lags = sorted((max(0, end - start.get(p, 0)), p) for p, end in new.items())
    left, planned = limit, {}
    for index, (lag, partition) in enumerate(lags):
        take = lag if left is None else min(lag, -(-left // (len(lags) - index)))
        left = left if left is None else left - take
        planned[partition] = start.get(partition, 0) + take
    return planned


def batch_limit(max_records: int | None, max_bytes: int, record_bytes: int) -> int:
    """Return the largest number of records in a batch; 0 ``record_bytes`` means that their size is unknown."""
    fitting = max(1, max_bytes // record_bytes) if record_bytes else _RECORDS_OF_UNKNOWN_SIZE
    return fitting if max_records is None else min(max_records, fitting) if record_bytes else max_records


def plan(start: Offsets, end: Offsets, min_ranges: int = 1, epochs: Offsets | None = None) -> list[OffsetRange]:
    """Return the ranges of ``[start, end)``; a partition new in ``end`` starts at 0.

    There is one range for each partition with records. Where these are fewer than ``min_ranges``, they are cut in
    proportion to their length. InvalidRequest if an end is before its start.
    """
    ranges = []
    for partition in sorted(end):
        first, last = start.get(partition, 0), end[partition]
        if last < first:
            raise InvalidRequest(f"end {last} of partition {partition} is before start {first}")
        if first < last:
            ranges.append(OffsetRange(partition, first, last, (epochs or {}).get(partition, -1)))
    total = sum(each.end - each.start for each in ranges)
    if len(ranges) >= min_ranges:
        return ranges
    return [part for each in ranges for part in _cut(each, -(-(each.end - each.start) * min_ranges // total))]


def _cut(whole: OffsetRange, parts: int) -> Iterator[OffsetRange]:
    size = whole.end - whole.start
    parts = min(max(parts, 1), size)
    ends = [whole.start + size * number // parts for number in range(parts + 1)]
    return (replace(whole, start=first, end=last) for first, last in pairwise(ends))


def share(ranges: Sequence[OffsetRange], shares: int) -> list[list[OffsetRange]]:
    """Cut the ranges, which are not empty, into at most as many shares, of equal size except for one record."""
    total = sum(each.end - each.start for each in ranges)
    found: list[list[OffsetRange]] = [[] for _ in range(shares)]
    seen = 0
    for each in ranges:
        start = each.start
        while start < each.end:
            number = seen * shares // total
            size = min(each.end - start, -(-(number + 1) * total // shares) - seen)
            found[number].append(replace(each, start=start, end=start + size))
            start += size
            seen += size
    return [part for part in found if part]


def to_ack(end: Offsets, state: SourceState) -> dict[int, int]:
    """Return the last processed offset of each partition in which ``end`` is after the committed offset."""
    return {
        partition: offset - 1
        for partition, offset in sorted(end.items())
        if offset > max(state.committed.get(partition, 0), state.starts.get(partition, 0))
        and offset <= state.ends.get(partition, 0)
    }
