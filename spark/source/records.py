"""Records of a source.v1 server as Arrow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from services.gen.source.v1 import source_pb2 as pb
from spark.pipeline.columns import MICROS, RECORD

Result: TypeAlias = pb.ReadResponse.Result

_LARGEST = 2**63 - 1


def to_batch(results: Sequence[Result]) -> pa.RecordBatch:
    """Records in the columns of ``spark.pipeline.columns.RECORD``.

    What a source leaves out is null: no key, no event time. So is the number of an offset that is no decimal number
    below 2**63; ``offset_bytes`` has every offset.
    """
    return pa.record_batch(
        [
            pa.array([r.payload for r in results], pa.binary()),
            pa.array([r.keys[0] if r.keys else None for r in results], pa.string()),
            pa.array([list(r.headers.items()) for r in results], RECORD.field("headers").type),
            pa.array([_micros(r) for r in results], pa.int64()).cast(MICROS),
            pa.array([r.offset.partition_id for r in results], pa.int32()),
            pa.array([number_of(r.offset.offset) for r in results], pa.int64()),
            pa.array([list(r.keys) for r in results], RECORD.field("keys").type),
            pa.array([r.offset.offset for r in results], pa.binary()),
        ],
        schema=RECORD,
    )


def number_of(offset: bytes) -> int | None:
    """The offset's number, if its bytes are one in decimal digits."""
    if not offset.isdigit() or len(offset) > 19:
        return None
    number = int(offset)
    return number if number <= _LARGEST else None


def _micros(result: Result) -> int | None:
    return result.event_time.ToMicroseconds() if result.HasField("event_time") else None
