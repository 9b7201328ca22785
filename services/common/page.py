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

from services.common.errors import InvalidRequest
from services.common.market import TimeRange
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.gen.dexorder.market.v1 import ohlcv_pb2

OHLC_TOPIC = "dexorder.ohlc"
MOST_CANDLES = 1_000
"""Largest page, in candles."""

KIND, TICKER, PERIOD, JOB, PAGE = "dx-kind", "dx-ticker", "dx-period-s", "dx-job", "dx-page"
START, END, EMPTY, FETCHED, TRACE = "dx-start-ns", "dx-end-ns", "dx-empty", "dx-fetched-ns", "dx-trace"


class Kind(StrEnum):
    """What a record is."""

    PAGE = "page"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Candle:
    """One OHLCV candle; floats as the exchange gave them."""

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
            KIND: self.kind.value, TICKER: self.ticker, PERIOD: str(self.period_seconds), JOB: self.job_id,
            PAGE: str(self.page), START: str(self.span.start_ns), END: str(self.span.end_ns),
            EMPTY: json.dumps([[r.start_ns, r.end_ns] for r in self.empty], separators=(",", ":")),
            FETCHED: str(self.fetched_ns), TRACE: self.trace,
        }  # fmt: skip

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
        ohlc_data=[encode_candle(c) for c in candles],
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
        open_time=candle.open_ns, open=candle.open, high=candle.high, low=candle.low, close=candle.close,
        volume=candle.volume, quote_volume=candle.quote_volume, trade_count=candle.trade_count,
    ).SerializeToString(deterministic=True)  # fmt: skip
