"""Values of the records on topic ``dexorder.ohlc``: a DataResponse for each page and each final.

``services/common/model/page.py`` has their headers. docs/protocol.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.common.model.errors import InvalidRequest
from services.common.model.page import MAX_PAGE_CANDLES, Candle
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.gen.dexorder.market.v1 import ohlcv_pb2

_VARINT_BYTES = 9
_NINE_BYTE_TIMES_NS = range(1 << 56, 1 << 63)
"""Open times whose varint has nine bytes: from April 1972 on."""
_VALUES = ("open", "high", "low", "close", "volume")
_fields = ohlcv_pb2.OHLCV.DESCRIPTOR.fields_by_name
_TAGS = {name: _fields[name].number << 3 | (0 if name == "open_time" else 1) for name in ("open_time", *_VALUES)}
_ROW = np.dtype(
    [
        ("open_time_tag", "u1"),
        ("open_time", "u1", _VARINT_BYTES),
        *(part for name in _VALUES for part in ((f"{name}_tag", "u1"), (name, "<f8"))),
    ]
)


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


def encode_candle(candle: Candle) -> bytes:
    """Return one element of ohlc_data."""
    return ohlcv_pb2.OHLCV(
        open_time=candle.open_ns,
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

    Candles without optional values, which is nearly all of them, are encoded by columns in a tenth of the time. These
    messages contain zeros, which ``encode_candle`` omits; both parse to the same message.
    """
    if not all(c.open_ns in _NINE_BYTE_TIMES_NS and c.quote_volume is None and c.trade_count is None for c in candles):
        return [encode_candle(c) for c in candles]
    rows = np.zeros(len(candles), _ROW)
    opens: Any = np.array([c.open_ns for c in candles], np.uint64)
    shifts = np.arange(0, 7 * _VARINT_BYTES, 7, dtype=np.uint64)
    rows["open_time"] = (opens[:, None] >> shifts) & 0x7F | 0x80
    rows["open_time"][:, -1] &= 0x7F
    for name, tag in _TAGS.items():
        rows[f"{name}_tag"] = tag
    for place, name in enumerate(_VALUES, 1):
        rows[name] = [c[place] for c in candles]
    data, size = rows.tobytes(), _ROW.itemsize
    return [data[start : start + size] for start in range(0, len(data), size)]
