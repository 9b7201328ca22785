"""Raw records -> candles and control rows. Runs in Spark's workers; one bad record never stops the rest. Pure.

A page is good when its candles are whole, ordered, on the grid and inside its span, and when candles and verified-empty
ranges together account for every period of the span. Anything else is refused as a whole, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from services.common.model.errors import InvalidRequest
from services.common.model.instrument import Instrument
from services.common.model.page import MAX_PAGE_CANDLES, Kind, PageHeaders
from services.common.model.periods import MONTH_SECONDS, check_period, count_periods, is_on_grid, total_periods
from services.common.model.times import MAX_TIME_NS, SECOND_NS
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.gen.dexorder.market.v1 import ohlcv_pb2
from spark.pipeline.columns import CANDLE, DECODED, FINAL_KIND, MICROS, PAGE_KIND, REFUSED_KIND
from spark.source.records import RAW

try:
    from ptars import HandlerPool

    _handler = HandlerPool([ohlcv_pb2.DESCRIPTOR]).get_for_message(ohlcv_pb2.OHLCV.DESCRIPTOR)
except ImportError:  # no wheel for this platform: nine times slower, same result
    _handler = None

_ANYTHING = Exception
"""Whatever a record's bytes raise is that record's fault: let through, it would fail this batch again and again."""
_PRICES = ("open", "high", "low", "close", "volume")


Take = Callable[[pa.RecordBatch], None]
"""Takes a page's candles, at least one, as columns of ``CANDLE``."""


def decode_batches(batches: Iterable[pa.RecordBatch], take: Take) -> Iterator[pa.RecordBatch]:
    """Batches of ``RAW`` to batches of ``DECODED``, all control rows; good pages' candles go to ``take``."""
    for batch in batches:
        rows = [row for record in _records(batch) for row in decode_record(record, take)]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def decode_record(record: dict[str, Any], take: Take) -> list[dict[str, Any]]:
    """Control rows (kind, control, raw) of one record; a good page's candles go to ``take``."""
    try:
        control = PageHeaders.parse(dict(record["headers"] or ()))
        check_period(control.period_seconds)
        Instrument.parse(control.ticker)
    except _ANYTHING as error:
        return [{"kind": REFUSED_KIND, "control": {"reason": _reason(error)}, "raw": record}]
    row = _control_row(control)
    try:
        if control.kind is Kind.FINAL:
            return [{"kind": FINAL_KIND, "control": row | _final(record["payload"])}]
        rows = _page(control, record["payload"])
    except _ANYTHING as error:
        refused = {"kind": REFUSED_KIND, "control": row | {"reason": _reason(error)}, "raw": record}
        if control.kind is Kind.PAGE:
            return [refused]
        ended = {"status": pb.DataResponse.ERROR, "error_message": f"the final record is refused: {_reason(error)}"}
        refused["control"] = {"reason": _reason(error)}  # not a page of the job
        return [{"kind": FINAL_KIND, "control": row | ended | {"total_records": 0}}, refused]
    if rows.num_rows:
        take(rows)
    return [{"kind": PAGE_KIND, "control": row | {"rows": rows.num_rows}}]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InvalidRequest) else f"{type(error).__name__}: {error}"


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = [batch.column(name) for name in RAW.names]
    for values in zip(*(column.to_pylist() for column in columns), strict=True):
        yield dict(zip(RAW.names, values, strict=True))


def _control_row(control: PageHeaders) -> dict[str, Any]:
    return {
        "job_id": control.dispatch_id,
        "ticker": control.ticker,
        "period_seconds": control.period_seconds,
        "start_ns": control.span.start_ns,
        "end_ns": control.span.end_ns,
        "fetched_ns": control.fetched_ns,
        "empty": [t for r in control.empty for t in (r.start_ns, r.end_ns)],
    }


def _final(payload: bytes) -> dict[str, Any]:
    response = _parse(payload)
    return {
        "status": response.status,
        "error_message": response.error_message if response.HasField("error_message") else None,
        "total_records": response.total_records,
    }


def _parse(payload: bytes) -> pb.DataResponse:
    try:
        return pb.DataResponse.FromString(payload)
    except DecodeError as error:
        raise InvalidRequest(f"the value of {len(payload)} bytes is no DataResponse: {error}") from error


def _page(control: PageHeaders, payload: bytes) -> pa.RecordBatch:
    response = _parse(payload)
    encoded = response.ohlc_data
    if response.status != pb.DataResponse.OK:
        raise InvalidRequest(f"status {response.status} of a page is not OK")
    if len(encoded) > MAX_PAGE_CANDLES:
        raise InvalidRequest(f"{len(encoded)} candles are over {MAX_PAGE_CANDLES}")
    if response.total_records != len(encoded):
        raise InvalidRequest(f"total_records {response.total_records} is not the page's {len(encoded)} candles")
    columns = decode_candles(list(encoded))
    opens_ns = columns.column("open_time").to_numpy()
    check_times(control, opens_ns)
    _check_values(columns)
    size = len(encoded)
    micros = pa.array((opens_ns // 1_000).astype(np.int64)).cast(MICROS)
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(control.ticker), size),
            pa.repeat(pa.scalar(control.period_seconds, pa.int32()), size),
            micros,
            *(columns.column(name) for name in (*_PRICES, "quote_volume")),
            columns.column("trade_count").cast(pa.int64()),
            pa.repeat(control.fetched_ns // 1_000, size).cast(MICROS),
        ],
        schema=CANDLE,
    )


def decode_candles(encoded: Sequence[bytes]) -> pa.RecordBatch:
    """Serialized OHLCV messages as columns named as its fields.

    Raises:
        InvalidRequest: One of them does not parse.
    """
    if _handler is not None:
        try:
            batch: pa.RecordBatch = _handler.list_to_record_batch(encoded)
            return batch
        except ValueError:
            pass  # the plain parser names the candle
    return decode_plain(encoded)


def decode_plain(encoded: Sequence[bytes]) -> pa.RecordBatch:
    """The same by plain protobuf."""
    candles = []
    for index, data in enumerate(encoded):
        try:
            candles.append(ohlcv_pb2.OHLCV.FromString(data))
        except DecodeError as error:
            raise InvalidRequest(f"candle {index} is no OHLCV: {error}") from error
    columns: dict[str, pa.Array[Any]] = {"open_time": pa.array([c.open_time for c in candles], pa.uint64())}
    for name in _PRICES:
        columns[name] = pa.array([getattr(c, name) for c in candles], pa.float64())
    quotes = [c.quote_volume if c.HasField("quote_volume") else None for c in candles]
    trades = [c.trade_count if c.HasField("trade_count") else None for c in candles]
    columns |= {"quote_volume": pa.array(quotes, pa.float64()), "trade_count": pa.array(trades, pa.uint64())}
    return pa.record_batch(columns)


def check_times(control: PageHeaders, opens_ns: npt.NDArray[np.uint64]) -> None:
    """Candles ascend inside the span, on the grid, and account with the empty ranges for every period of it.

    Raises:
        InvalidRequest: They do not; names the first offender.
    """
    span, period = control.span, control.period_seconds
    if not (is_on_grid(span.start_ns, period) and is_on_grid(span.end_ns, period) and span):
        raise InvalidRequest(f"span {span} is empty or off the grid of {period} s")
    for hole in control.empty:
        if not (span.contains(hole) and is_on_grid(hole.start_ns, period) and is_on_grid(hole.end_ns, period)):
            raise InvalidRequest(f"verified-empty range {hole} is outside {span} or off the grid of {period} s")
    opens = opens_ns.astype(object) if (opens_ns > MAX_TIME_NS).any() else opens_ns.astype(np.int64)
    _first(opens, (opens < span.start_ns) | (opens >= span.end_ns), f"is outside the span {span}")
    _first(opens[1:], np.diff(opens) <= 0, "is not after the one before it")
    _first(opens, _off_grid(opens, span.start_ns, period), f"is off the grid of {period} s")
    for hole in control.empty:
        _first(opens, (opens >= hole.start_ns) & (opens < hole.end_ns), f"is in the verified-empty range {hole}")
    missing = count_periods(span, period) - len(opens) - total_periods(control.empty, period)
    if missing:
        raise InvalidRequest(f"{missing} periods of {span} have neither a candle nor a verified-empty range")


def _off_grid(opens: npt.NDArray[Any], anchor_ns: int, period: int) -> npt.NDArray[np.bool_]:
    if period == MONTH_SECONDS:
        return np.array([not is_on_grid(int(t), period) for t in opens], dtype=np.bool_)
    off: npt.NDArray[np.bool_] = (opens - anchor_ns) % (period * SECOND_NS) != 0
    return off


def _check_values(columns: pa.RecordBatch) -> None:
    opens = columns.column("open_time").to_numpy()
    price = {name: columns.column(name).to_numpy() for name in _PRICES}
    for name in _PRICES:
        _first(opens, ~np.isfinite(price[name]), f"has a {name} that is no number")
    quote = columns.column("quote_volume").to_numpy(zero_copy_only=False)  # null becomes NaN
    _first(opens, np.isinf(quote) | (quote < 0), "has a quote_volume that is infinite or below 0")
    _first(opens, price["volume"] < 0, "has a volume below 0")
    body_low = np.minimum(price["open"], price["close"])
    body_high = np.maximum(price["open"], price["close"])
    _first(opens, (price["low"] > body_low) | (price["high"] < body_high), "has open or close beyond low and high")
    trades = columns.column("trade_count")
    if trades.null_count < len(trades) and max(t for t in trades.to_pylist() if t is not None) >= 2**63:
        raise InvalidRequest("a trade_count does not fit 64 bits with a sign")


def _first(opens_ns: npt.NDArray[Any], bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        raise InvalidRequest(f"candle {int(opens_ns[int(np.argmax(bad))])} {what}")
