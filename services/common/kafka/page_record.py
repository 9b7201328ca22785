"""Records of topic ``dexorder.ohlc``: pages and finals, their value, key and headers. Pure.

A page settles a sub-range of its job's range, with its candles and verified-empty ranges; a final ends one dispatch.
The value is a DataResponse, the key the job_id, so that all records of a dispatch keep their order in one partition.
Headers are UTF-8 text, since source.v1 carries them as ``map<string, string>``. docs/protocol.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from services.common.model.errors import InvalidRequest
from services.common.model.time_range import TimeRange
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.gen.dexorder.market.v1 import ohlcv_pb2

OHLC_TOPIC = "dexorder.ohlc"
MOST_CANDLES = 1_000
"""Largest page, in candles."""

KIND, TICKER, PERIOD, JOB, PAGE = "dx-kind", "dx-ticker", "dx-period-s", "dx-job", "dx-page"
START, END, EMPTY, FETCHED, TRACE = "dx-start-ns", "dx-end-ns", "dx-empty", "dx-fetched-ns", "dx-trace"

_VARINT_BYTES = 9
_PLAIN_TIMES_NS = range(1 << 56, 1 << 63)
"""Open times, from April 1972 on, whose varint takes so many bytes."""
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


class Kind(StrEnum):
    """What a record is."""

    PAGE = "page"
    FINAL = "final"


class Candle(NamedTuple):
    """One OHLCV candle; floats as the exchange gave them. A tuple, since candles are made by the million."""

    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    quote_volume: float | None = None
    trade_count: int | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """What the headers say; everything the pipeline needs before it decodes the value.

    Attributes:
        page: Number of the page within its dispatch, from 0; on the final, the number of pages before it.
        span: The sub-range this page settles; on the final the dispatched range.
        empty: Verified-empty ranges inside ``span``.
        fetched_ns: When the exchange answered, wall clock; of two copies of a candle the larger one wins.
        trace: Id that joins the log lines of one dispatch.
    """

    kind: Kind
    ticker: str
    period_seconds: int
    job_id: str
    page: int
    span: TimeRange
    fetched_ns: int
    empty: tuple[TimeRange, ...] = ()
    trace: str = ""

    def headers(self) -> dict[str, str]:
        """The record's headers, in the order they are written."""
        return {
            KIND: self.kind.value,
            TICKER: self.ticker,
            PERIOD: str(self.period_seconds),
            JOB: self.job_id,
            PAGE: str(self.page),
            START: str(self.span.start_ns),
            END: str(self.span.end_ns),
            EMPTY: json.dumps([[r.start_ns, r.end_ns] for r in self.empty], separators=(",", ":")),
            FETCHED: str(self.fetched_ns),
            TRACE: self.trace,
        }

    @staticmethod
    def parse(headers: Mapping[str, str]) -> Control:
        """The control values of a record.

        Raises:
            InvalidRequest: A header is missing or not of its form; names it and its value.
        """
        try:
            return Control(
                kind=Kind(_get(headers, KIND)),
                ticker=_get(headers, TICKER),
                period_seconds=_int(headers, PERIOD),
                job_id=_get(headers, JOB),
                page=_int(headers, PAGE),
                span=TimeRange(_int(headers, START), _int(headers, END)),
                fetched_ns=_int(headers, FETCHED),
                empty=tuple(TimeRange(int(start), int(end)) for start, end in json.loads(headers.get(EMPTY) or "[]")),
                trace=headers.get(TRACE, ""),
            )
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"headers of the record are not a page's: {error}") from error


def _get(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise InvalidRequest(f"header {name} is missing")
    return value


def _int(headers: Mapping[str, str], name: str) -> int:
    value = _get(headers, name)
    if not value.isascii() or not value.isdigit():
        raise InvalidRequest(f"header {name} {value!r} is not a whole number")
    return int(value)


def page_value(request_id: str, candles: Sequence[Candle]) -> bytes:
    """The DataResponse of a page: status OK and its own candles."""
    if len(candles) > MOST_CANDLES:
        raise InvalidRequest(f"a page of {len(candles)} candles is over {MOST_CANDLES}")
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
    """The DataResponse that ends a dispatch."""
    return pb.DataResponse(
        request_id=request_id, status=status, error_message=error_message, total_records=total_records
    ).SerializeToString(deterministic=True)


def encode_candle(candle: Candle) -> bytes:
    """One element of ohlc_data."""
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
    """Elements of ohlc_data.

    Candles as exchanges give them, without optional values, are put together by columns, in a tenth of the time. Such a
    message spells out zeros, which the plain encoder leaves out; both read the same.
    """
    if not all(c.open_ns in _PLAIN_TIMES_NS and c.quote_volume is None and c.trade_count is None for c in candles):
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
