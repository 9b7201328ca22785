"""Columns on their way through the pipeline: raw records, decoded rows, and the same in Spark's words.

A decoded row is a control row or a file of candles: ``page`` and ``final`` carry ``control``; ``refused`` carries
``raw`` with the payload, for the dead letters, and ``control`` as far as known; ``file`` carries what the table must be
told of the file.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark.source.records import RAW

MICROS = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def schema(*fields: pa.Field[Any]) -> pa.Schema:
    """A schema of fields of any types (a plain list of them has no common type for the checker)."""
    return pa.schema(list(fields))


def time_text(time_ns: int, separator: str = "T") -> str:
    """ISO text with zone, to the microsecond, as Iceberg's and Spark's literals take it."""
    return (_EPOCH + timedelta(microseconds=time_ns // 1_000)).isoformat(separator)


CANDLE = schema(
    pa.field("ticker", pa.string()),
    pa.field("period_seconds", pa.int32()),
    pa.field("open_time", MICROS),
    *(pa.field(name, pa.float64()) for name in ("open", "high", "low", "close", "volume", "quote_volume")),
    pa.field("trades", pa.int64()),
    pa.field("fetched_at", MICROS),
)
"""A row of trading.ohlc."""
CANDLE_DDL = (
    "ticker string, period_seconds int, open_time timestamp, open double, high double, low double, close double, "
    "volume double, quote_volume double, trades bigint, fetched_at timestamp"
)
KEY = ("ticker", "period_seconds", "open_time")

CONTROL = pa.struct(
    [
        pa.field("job_id", pa.string()),
        pa.field("ticker", pa.string()),
        pa.field("period_seconds", pa.int32()),
        pa.field("start_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("fetched_ns", pa.int64()),
        pa.field("empty", pa.list_(pa.int64())),
        pa.field("rows", pa.int32()),
        pa.field("status", pa.int32()),
        pa.field("error_message", pa.string()),
        pa.field("total_records", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
"""What the headers say and how the record fared; ``empty`` is start, end, start, end, ... in nanoseconds."""
DECODED = schema(
    pa.field("kind", pa.string()),
    pa.field("control", CONTROL),
    pa.field("raw", pa.struct(list(RAW))),
    pa.field("file", pa.binary()),
)
_CONTROL_DDL = (
    "struct<job_id:string, ticker:string, period_seconds:int, start_ns:bigint, end_ns:bigint, fetched_ns:bigint, "
    "`empty`:array<bigint>, `rows`:int, status:int, error_message:string, total_records:bigint, reason:string>"
)
_RAW_STRUCT_DDL = (
    "struct<payload:binary, key:string, headers:map<string,string>, event_time:timestamp, `partition`:int, "
    "`offset`:bigint>"
)
DECODED_DDL = f"kind string, control {_CONTROL_DDL}, raw {_RAW_STRUCT_DDL}, file binary"

PAGE_KIND, FINAL_KIND, REFUSED_KIND, FILE_KIND = "page", "final", "refused", "file"
