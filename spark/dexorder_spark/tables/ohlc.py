"""Candles as a table: decoding and validation of a page of candles.

A page is good if its candles are complete, ascending, on the period grid and inside its span, and if candles and
verified-empty ranges together account for every period of the span.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dexorder_common.kafka.page_record import page_value, parse_response
from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.tables import OHLC
from dexorder_common.model import datasets
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_PAGE_CANDLES, Candle, Kind, PageHeaders
from dexorder_common.model.periods import MONTH_SECONDS, check_period, count_periods, is_on_grid, total_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from dexorder_spark.tables.columns import MessageColumns
from dexorder_spark.tables.table import SAMPLE_DISPATCH, SAMPLE_TICKER, PageTable

_MINUTE_NS = 60 * SECOND_NS
_VALUES = ("open", "high", "low", "close", "volume")
_FIELDS: dict[str, pa.DataType] = {
    "open_time_ns": pa.uint64(),
    **dict.fromkeys((*_VALUES, "quote_volume"), pa.float64()),
    "trade_count": pa.uint64(),
}
decode_candles = MessageColumns(ohlcv_pb2.OHLCV, pa.schema(_FIELDS), "candle {place} is not an OHLCV")


def check_headers(headers: PageHeaders) -> None:
    """Raise InvalidRequest if the headers do not belong to a record of candles."""
    check_period(headers.period_seconds)


def decode_page(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    """Return the candles of a good page; else InvalidRequest names the first candle or range at fault."""
    response = parse_response(payload)
    if response.status != pb.DataResponse.OK:
        raise InvalidRequest(f"status {response.status} of a page is not OK")
    encoded = response.ohlc_data
    size = len(encoded)
    if size > MAX_PAGE_CANDLES:
        raise InvalidRequest(f"page has {size} candles; at most {MAX_PAGE_CANDLES} are allowed")
    if response.total_records != size:
        raise InvalidRequest(f"total_records {response.total_records} differs from the page's {size} candles")
    columns = decode_candles(list(encoded))
    opens_ns = columns.column("open_time_ns").to_numpy()
    check_times(headers, opens_ns)
    _check_values(columns)
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(headers.ticker), size),
            pa.repeat(pa.scalar(headers.period_seconds, pa.int32()), size),
            pa.array((opens_ns // 1_000).astype(np.int64)).view(MICROSECONDS),
            *(columns.column(name) for name in (*_VALUES, "quote_volume")),
            columns.column("trade_count").cast(pa.int64()),
            pa.repeat(pa.scalar(headers.fetched_ns // 1_000, MICROSECONDS), size),
            pa.repeat(headers.dispatch, size),
            pa.repeat(pa.scalar(headers.page, pa.int32()), size),
        ],
        schema=OHLC.arrow,
    )


def check_times(headers: PageHeaders, opens_ns: npt.NDArray[np.uint64]) -> None:
    """Check that candles ascend inside the span, on the grid, and with the empty ranges account for every period.

    InvalidRequest names the first candle or range at fault.
    """
    span, period = headers.span, headers.period_seconds
    if not (is_on_grid(span.start_ns, period) and is_on_grid(span.end_ns, period) and span):
        raise InvalidRequest(f"span {span} is empty or off the grid of {period} s")
    for hole in headers.empty:
        if not (span.contains(hole) and is_on_grid(hole.start_ns, period) and is_on_grid(hole.end_ns, period)):
            raise InvalidRequest(f"verified-empty range {hole} is outside {span} or off the grid of {period} s")
    opens = opens_ns.astype(object) if (opens_ns > MAX_TIME_NS).any() else opens_ns.astype(np.int64)
    _refuse_first(opens, (opens < span.start_ns) | (opens >= span.end_ns), f"is outside the span {span}")
    _refuse_first(opens[1:], np.diff(opens) <= 0, "is not after the previous one")
    _refuse_first(opens, _off_grid(opens, span.start_ns, period), f"is off the grid of {period} s")
    for hole in headers.empty:
        inside = (opens >= hole.start_ns) & (opens < hole.end_ns)
        _refuse_first(opens, inside, f"is in the verified-empty range {hole}")
    missing = count_periods(span, period) - len(opens) - total_periods(headers.empty, period)
    if missing:
        raise InvalidRequest(f"{missing} periods of {span} have neither a candle nor a verified-empty range")


def _off_grid(opens: npt.NDArray[Any], anchor_ns: int, period: int) -> npt.NDArray[np.bool_]:
    if period == MONTH_SECONDS:
        return np.array([not is_on_grid(int(t), period) for t in opens], dtype=np.bool_)
    off: npt.NDArray[np.bool_] = (opens - anchor_ns) % (period * SECOND_NS) != 0
    return off


def _check_values(columns: pa.RecordBatch) -> None:
    opens = columns.column("open_time_ns").to_numpy()
    price = {name: columns.column(name).to_numpy() for name in _VALUES}
    for name in _VALUES:
        _refuse_first(opens, ~np.isfinite(price[name]), f"has a {name} that is not a number")
    quote = columns.column("quote_volume").to_numpy(zero_copy_only=False)  # null becomes NaN
    _refuse_first(opens, np.isinf(quote) | (quote < 0), "has a quote_volume that is infinite or below 0")
    _refuse_first(opens, price["volume"] < 0, "has a volume below 0")
    _refuse_first(opens, price["low"] <= 0, "has a price of 0 or below")
    body_low = np.minimum(price["open"], price["close"])
    body_high = np.maximum(price["open"], price["close"])
    outside = (price["low"] > body_low) | (price["high"] < body_high)
    _refuse_first(opens, outside, "has an open or close outside low and high")
    trades = columns.column("trade_count")
    if trades.null_count < len(trades) and max(t for t in trades.to_pylist() if t is not None) >= 2**63:
        raise InvalidRequest("a trade_count exceeds a signed 64-bit integer")


def _refuse_first(opens_ns: npt.NDArray[Any], bad: npt.NDArray[np.bool_], fault: str) -> None:
    if bad.any():
        raise InvalidRequest(f"candle {int(opens_ns[int(np.argmax(bad))])} {fault}")


def sample_page() -> tuple[PageHeaders, bytes]:
    """Return a good page of an invented series."""
    span = TimeRange(0, MAX_PAGE_CANDLES * _MINUTE_NS)
    headers = PageHeaders(Kind.PAGE, SAMPLE_TICKER, 60, SAMPLE_DISPATCH, 0, span, 1)
    candles = [Candle(i * _MINUTE_NS, 1.0, 2.0, 0.5, 1.5, 1.0) for i in range(MAX_PAGE_CANDLES)]
    return headers, page_value("sample", candles)


CANDLES = PageTable(
    OHLC,
    datasets.CANDLES,
    check=check_headers,
    decode=decode_page,
    sample=sample_page,
)
