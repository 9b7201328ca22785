"""Funding rates as a table: decoding and validation of a page of rates.

A page is good if its rates ascend in time inside its span and are numbers. It settles the span: what it has not, the
exchange has not. Between which times rates lie is the ingestor's to prove, as there is no grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from dexorder_common.lake.tables import FUNDING as FUNDING_TABLE
from dexorder_common.model import datasets
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_INT32, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.market.v1 import funding_pb2 as pb
from dexorder_spark.tables.columns import check_times, check_without_period, columns_of, microseconds, refuse_first
from dexorder_spark.tables.table import SAMPLE_DISPATCH, SAMPLE_TICKER, PageTable

MAX_PAGE_RATES = 1_000
"""Largest number of rates in a page."""
_FIELDS = {
    "funding_time": pa.uint64(),
    "rate": pa.float64(),
    "mark_price": pa.float64(),
    "interval_seconds": pa.uint32(),
}
_OPTIONAL = ("mark_price", "interval_seconds")
_RATE = pa.struct([pa.field(name, kind) for name, kind in _FIELDS.items()])


def check_headers(headers: PageHeaders) -> None:
    """Raise InvalidRequest if the headers are not those of a record of funding rates."""
    check_without_period(headers, "funding rates")
    if headers.empty:
        raise InvalidRequest("a page of funding rates has verified-empty ranges, which only candles have")


def decode_page(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    """Return the rates of a good page; else InvalidRequest names the first rate at fault."""
    lists: Any = decode_rates([payload]).column("rates")
    rates = lists.flatten()
    size = len(rates)
    if size > MAX_PAGE_RATES:
        raise InvalidRequest(f"page has {size} funding rates; at most {MAX_PAGE_RATES} are allowed")
    columns = {name: rates.field(name) for name in _FIELDS}
    times_ns = columns["funding_time"].to_numpy()
    check_times("funding rate", times_ns, "funding_time", headers.span.start_ns, headers.span.end_ns - 1)
    refuse_first("funding rate", [False, *(times_ns[1:] <= times_ns[:-1])], "is not after the previous one")
    _check_values(columns)
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(headers.ticker), size),
            microseconds(times_ns),
            columns["rate"],
            columns["mark_price"],
            columns["interval_seconds"].cast(pa.int32()),
            pa.repeat(pa.scalar(headers.fetched_ns // 1_000, FUNDING_TABLE.arrow.field("fetched_at").type), size),
            pa.repeat(headers.dispatch, size),
            pa.repeat(pa.scalar(headers.page, pa.int32()), size),
        ],
        schema=FUNDING_TABLE.arrow,
    )


def decode_slowly(encoded: Sequence[bytes]) -> pa.RecordBatch:
    """Do what ``decode_rates`` does, with protobuf's own parser."""
    found: list[list[dict[str, Any]]] = []
    for value in encoded:
        try:
            rates = pb.FundingRates.FromString(value).rates
        except DecodeError as error:
            raise InvalidRequest(f"the value of {len(value)} bytes is not a FundingRates: {error}") from error
        found.append([_fields(each) for each in rates])
    return pa.record_batch({"rates": pa.array(found, pa.list_(_RATE))})


decode_rates = columns_of(pb.DESCRIPTOR, pb.FundingRates.DESCRIPTOR, decode_slowly)
"""Return serialized FundingRates messages as one column ``rates``; InvalidRequest if one does not parse."""


def _fields(rate: pb.FundingRate) -> dict[str, Any]:
    given = {each.name for each, _ in rate.ListFields()}
    return {name: None if name in _OPTIONAL and name not in given else getattr(rate, name) for name in _FIELDS}


def _check_values(columns: dict[str, pa.Array[Any]]) -> None:
    refuse_first("funding rate", ~np.isfinite(columns["rate"].to_numpy()), "has a rate that is not a number")
    prices = columns["mark_price"].to_numpy(zero_copy_only=False)  # null becomes NaN
    is_given = columns["mark_price"].is_valid().to_numpy(zero_copy_only=False)
    bad = is_given & ~(np.isfinite(prices) & (prices > 0))
    refuse_first("funding rate", bad, "has a mark_price that is not above 0")
    intervals = columns["interval_seconds"].to_numpy(zero_copy_only=False)
    is_given = columns["interval_seconds"].is_valid().to_numpy(zero_copy_only=False)
    bad = is_given & ~((intervals > 0) & (intervals <= MAX_INT32))
    refuse_first("funding rate", bad, f"has an interval_seconds outside [1, {MAX_INT32}]")


def sample_page() -> tuple[PageHeaders, bytes]:
    """Return a good page of a ticker that nobody asks for."""
    step_ns = 28_800 * SECOND_NS
    rates = [pb.FundingRate(funding_time=n * step_ns, rate=1e-4, interval_seconds=28_800) for n in range(1, 501)]
    span = TimeRange(0, min(501 * step_ns, MAX_TIME_NS))
    headers = PageHeaders(Kind.PAGE, SAMPLE_TICKER, 0, SAMPLE_DISPATCH, 0, span, 1)
    return headers, pb.FundingRates(rates=rates).SerializeToString()


FUNDING = PageTable(FUNDING_TABLE, datasets.FUNDING, check=check_headers, decode=decode_page, sample=sample_page)
