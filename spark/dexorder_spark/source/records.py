"""Columns of the source's records, and their conversion from source.v1 to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from dexorder_protos.source.v1 import source_pb2 as pb

Result: TypeAlias = pb.ReadResponse.Result

_MICROSECONDS = pa.timestamp("us", tz="UTC")
_MAX_NUMBER = 2**63 - 1
_RAW: list[pa.Field[Any]] = [
    pa.field("payload", pa.binary()),
    pa.field("key", pa.string()),
    pa.field("headers", pa.map_(pa.string(), pa.string())),
    pa.field("event_time", _MICROSECONDS),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
]

RAW = pa.schema(_RAW)
"""Columns of a record that the pipeline reads. The producer or the broker sets ``event_time``."""
RAW_DDL = (
    "payload binary, key string, headers map<string,string>, event_time timestamp, `partition` int, `offset` bigint"
)
RECORD = pa.schema([*_RAW, pa.field("keys", pa.list_(pa.string())), pa.field("offset_bytes", pa.binary())])
"""Columns of a record of any source: ``RAW``, all keys, and the offset as the source sent it."""
RECORD_DDL = f"{RAW_DDL}, keys array<string>, offset_bytes binary"


def to_batch(results: Sequence[Result]) -> pa.RecordBatch:
    """Return records in the columns of ``RECORD``.

    Fields that the source leaves out are null: key, event time. ``offset`` is null unless it is a decimal number below
    2**63; ``offset_bytes`` is always set.
    """
    return pa.record_batch(
        [
            pa.array([r.payload for r in results], pa.binary()),
            pa.array([r.keys[0] if r.keys else None for r in results], pa.string()),
            pa.array([list(r.headers.items()) for r in results], RECORD.field("headers").type),
            pa.array([_microseconds(r) for r in results], pa.int64()).cast(_MICROSECONDS),
            pa.array([r.offset.partition_id for r in results], pa.int32()),
            pa.array([number_of(r.offset.offset) for r in results], pa.int64()),
            pa.array([list(r.keys) for r in results], RECORD.field("keys").type),
            pa.array([r.offset.offset for r in results], pa.binary()),
        ],
        schema=RECORD,
    )


def number_of(offset: bytes) -> int | None:
    """Return the number that the offset's bytes are in decimal digits; None for other bytes."""
    if not offset.isdigit() or len(offset) > 19:
        return None
    number = int(offset)
    return number if number <= _MAX_NUMBER else None


def _microseconds(result: Result) -> int | None:
    return result.event_time.ToMicroseconds() if result.HasField("event_time") else None
