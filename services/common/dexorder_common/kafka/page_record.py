"""Values of the records on topic ``dexorder.ohlc``: a DataResponse for each page and each final.

``dexorder_common/model/page.py`` has their headers. docs/protocol.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_PAGE_CANDLES, Candle
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2

_VARINT_BYTES = 9
_NINE_BYTE_TIMES_NS = range(1 << 56, 1 << 63)
"""Open times with a varint of nine bytes: since April 1972."""
_COUNT_BYTES = 5
_COUNTS = range(1 << 35)
_VALUES = ("open", "high", "low", "close", "volume", "quote_volume")
_fields = ohlcv_pb2.OHLCV.DESCRIPTOR.fields_by_name


def page_value(request_id: str, candles: Sequence[Candle]) -> bytes:
    """Return the DataResponse of a page: status OK and its candles, at most ``MAX_PAGE_CANDLES``."""
    if len(candles) > MAX_PAGE_CANDLES:
        raise InvalidRequest(f"page has {len(candles)} candles; at most {MAX_PAGE_CANDLES} are allowed")
    return pb.DataResponse(
        request_id=request_id,
        status=pb.DataResponse.OK,
        ohlc_data=encode_candles(candles),
        total_records=len(candles),
    ).SerializeToString(deterministic=True)


def final_value(
    request_id: str,
    status: pb.DataResponse.ResponseStatus.ValueType,
    total_records: int,
    error_message: str | None = None,
) -> bytes:
    """Return the DataResponse that ends a dispatch."""
    return pb.DataResponse(
        request_id=request_id, status=status, error_message=error_message, total_records=total_records
    ).SerializeToString(deterministic=True)


def parse_response(value: bytes) -> pb.DataResponse:
    """Parse the value of a page of candles or of a final record; InvalidRequest if it is not a DataResponse."""
    try:
        return pb.DataResponse.FromString(value)
    except DecodeError as error:
        raise InvalidRequest(f"the value of {len(value)} bytes is not a DataResponse: {error}") from error


def encode_candle(candle: Candle) -> bytes:
    """Return one element of ohlc_data."""
    return ohlcv_pb2.OHLCV(
        open_time_ns=candle.open_ns,
        open=candle.open,
        high=candle.high,
        low=candle.low,
        close=candle.close,
        volume=candle.volume,
        quote_volume=candle.quote_volume,
        trade_count=candle.trade_count,
    ).SerializeToString(deterministic=True)


def encode_candles(candles: Sequence[Candle]) -> list[bytes]:
    """Return the elements of ohlc_data.

    If all have the same optional values, which is nearly always so, they are encoded by columns in a tenth of the time.
    These messages contain zeros, which ``encode_candle`` omits, and padded counts; both parse to the same message.
    """
    if not candles:
        return []
    columns = list(zip(*candles, strict=True))
    opens_ns, *numbers, quotes, counts = columns
    without_quotes, without_counts = quotes.count(None), counts.count(None)
    if (
        not {without_quotes, without_counts} <= {0, len(candles)}
        or not (min(opens_ns) in _NINE_BYTE_TIMES_NS and max(opens_ns) in _NINE_BYTE_TIMES_NS)
        or not (without_counts or (min(counts) in _COUNTS and max(counts) in _COUNTS))
    ):
        return [encode_candle(c) for c in candles]
    values = _VALUES[: 5 if without_quotes else 6]
    varints = {"open_time_ns": _VARINT_BYTES} | ({} if without_counts else {"trade_count": _COUNT_BYTES})
    parts = [(name, "u1", size) for name, size in varints.items()] + [(name, "<f8", 1) for name in values]
    layout = np.dtype([part for name, kind, size in parts for part in ((f"{name}_tag", "u1"), (name, kind, (size,)))])
    rows = np.zeros(len(candles), layout)
    for name, _, _ in parts:
        rows[f"{name}_tag"] = _fields[name].number << 3 | (0 if name in varints else 1)
    for name, column in zip(values, (*numbers, quotes), strict=False):
        rows[name][:, 0] = column
    rows["open_time_ns"] = _varints(opens_ns, _VARINT_BYTES)
    if "trade_count" in varints:
        rows["trade_count"] = _varints(counts, _COUNT_BYTES)
    data, size = rows.tobytes(), layout.itemsize
    return [data[start : start + size] for start in range(0, len(data), size)]


def _varints(numbers: Sequence[int | None], size: int) -> Any:
    """Return numbers as varints of a fixed number of bytes, as rows."""
    shifts = np.arange(0, 7 * size, 7, dtype=np.uint64)
    column: Any = np.array(numbers, np.uint64)
    encoded = (column[:, None] >> shifts) & 0x7F | 0x80
    encoded[:, -1] &= 0x7F
    return encoded
