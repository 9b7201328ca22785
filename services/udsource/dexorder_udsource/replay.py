"""Replays: the metadata of their calls, the check of a range, and the commits that follow from acks. Pure.

ReadFn   x-partition, x-start, x-end   read [x-start, x-end) of the partition, the same records each time
          x-epoch                      refuse the range if the log up to x-end is not the one that had this epoch
         (answer) the last eot has msg ``range complete``; then the stream ends with OK
AckFn    x-replay: 1                   an acked offset n commits n + 1 to the replay group
          x-group                      the replay group of this name; PendingFn takes it, too
any       x-topic                      another topic than the one of plain reads; PendingFn's answer repeats it
PendingFn (answer) x-starts, x-ends, x-committed   ``0:17,1:20``, partition:offset
          (answer) x-epochs               ``0:3,1:4``, partition:epoch of the leaders at the log's end
          (answer) x-committed-epochs     the epochs at the commits
          (answer) x-topic-id             another one than before means another log
          (answer) x-record-bytes         average size of the latest records
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dexorder_common.model.errors import Conflict, InvalidRequest

PARTITION, START, END, EPOCH = "x-partition", "x-start", "x-end", "x-epoch"
REPLAY = "x-replay"
GROUP = "x-group"
TOPIC = "x-topic"
STARTS, ENDS, COMMITTED, TOPIC_ID = "x-starts", "x-ends", "x-committed", "x-topic-id"
EPOCHS, COMMITTED_EPOCHS = "x-epochs", "x-committed-epochs"
RECORD_BYTES = "x-record-bytes"
COMPLETE = "range complete"
"""``msg`` of the eot after which the server ends the stream; a request sent after it is not read."""
MAX_OFFSET = 2**63 - 1

_NAME = re.compile(r"[A-Za-z0-9._-]{0,200}")
Metadata = Iterable[tuple[str, str | bytes]]


class OffsetsGone(Conflict):
    """Requested records are no longer in the topic, or no longer at this offset."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Range ``[start, end)`` of offsets of one partition.

    Attributes:
        epoch: Epoch of the partition's leaders when the log reached up to ``end``; -1 if the caller does not know it.
    """

    partition: int
    start: int
    end: int
    epoch: int = -1

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}) of partition {self.partition}"


def is_range(metadata: Metadata) -> bool:
    """Return whether a ReadFn call requests a range; otherwise it is a plain read."""
    return any(name in (PARTITION, START, END) for name, _ in metadata)


def parse_range(metadata: Metadata) -> ReplayRange:
    """Return the range that a ReadFn call requests.

    Raises:
        InvalidRequest: One of the first three values is missing, one is not a whole number, or the range is reversed.
    """
    given = dict(metadata)
    values = {}
    for name in (PARTITION, START, END, EPOCH):
        if name in given:
            values[name] = parse_number(f"metadata {name}", given[name])
        elif name != EPOCH:
            raise InvalidRequest(f"metadata {name} is missing; a replay needs {PARTITION}, {START} and {END}")
    partition, start, end = (values[name] for name in (PARTITION, START, END))
    if end < start:
        raise InvalidRequest(f"metadata {END} {end} is before {START} {start}")
    return ReplayRange(partition, start, end, values.get(EPOCH, -1))


def is_replay(metadata: Metadata | None) -> bool:
    """Return whether an AckFn, PendingFn or PartitionsFn call is about replays.

    Raises:
        InvalidRequest: ``x-replay`` has another value than 1.
    """
    values = [value for name, value in metadata or () if name == REPLAY]
    if any(value != "1" for value in values):
        raise InvalidRequest(f"metadata {REPLAY} {values[-1]!r} is not 1")
    return bool(values)


def group_of(metadata: Metadata | None) -> str:
    """Return the name of the caller's replay group; empty for the unnamed one.

    Raises:
        InvalidRequest: It is not a name.
    """
    name = dict(metadata or ()).get(GROUP, "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"metadata {GROUP} {name!r} is not up to 200 letters, digits, dots, dashes and underscores"
        )
    return name


def topic_of(metadata: Metadata | None) -> str:
    """Return the topic that a call names; empty if it names none."""
    return str(dict(metadata or ()).get(TOPIC, ""))


def parse_number(name: str, value: str | bytes) -> int:
    """Return a non-negative decimal number below 2**63.

    Raises:
        InvalidRequest: It is something else. The message names it and its value.
    """
    if not value.isascii() or not value.isdigit() or len(value) > 19 or int(value) > MAX_OFFSET:
        raise InvalidRequest(f"{name} {value!r} is not a decimal number below 2**63")
    return int(value)


def format_offsets(offsets: Mapping[int, int]) -> str:
    """Return ``0:17,1:20``, ascending by partition."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def check_range(span: ReplayRange, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Check that the topic holds a range.

    Raises:
        InvalidRequest: The partition does not exist, or the log ends before the range does.
        OffsetsGone: The log starts after the range does.
    """
    if span.partition not in ends:
        raise InvalidRequest(
            f"metadata {PARTITION} {span.partition} does not exist; the topic has 0 to {len(ends) - 1}"
        )
    if span.end > ends[span.partition]:
        raise InvalidRequest(
            f"metadata {END} {span.end} is beyond the end {ends[span.partition]} of partition {span.partition}"
        )
    # an empty range cannot lack records
    if span.start < starts[span.partition] and span.start < span.end:
        raise OffsetsGone(
            f"offset {span.start} of partition {span.partition} is gone; the log starts at {starts[span.partition]}"
        )


def replay_commits(
    acks: Sequence[tuple[int, int]], committed: Mapping[int, int], starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, int]:
    """Return the position to commit of each partition for acked (partition, offset) pairs; only positions that advance.

    Every offset in [committed, log end) counts as issued: any replica serves any range, and none remembers its ranges.

    Raises:
        InvalidRequest: An offset is at or beyond the log's end, or the partition does not exist.
    """
    moves: dict[int, int] = {}
    for partition, offset in acks:
        if partition not in ends:
            raise InvalidRequest(f"ack of partition {partition}, which the topic does not have")
        if offset >= ends[partition]:
            raise InvalidRequest(
                f"ack of offset {offset} of partition {partition}, which ends at {ends[partition]}: never issued"
            )
        if offset >= committed.get(partition, starts.get(partition, 0)):
            moves[partition] = max(moves.get(partition, 0), offset + 1)
    return moves
