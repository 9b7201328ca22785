"""Funding rates as a table: decoding and validation of a page of rates.

A page is good if its rates ascend in time inside its span and are numbers. It settles the span: the exchange has no
other rates in it. Rates are not on a grid, so the ingestor proves the times between them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from dexorder_common.lake.tables import FUNDING as FUNDING_TABLE
from dexorder_common.model import datasets
from dexorder_common.model.page import MAX_INT32, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.market.v1 import funding_pb2 as pb
from dexorder_spark.tables.columns import (
    Column,
    MessageColumns,
    check_times,
    check_without_period,
    microseconds,
    refuse_first,
    repeated,
)
from dexorder_spark.tables.table import SAMPLE_DISPATCH, SAMPLE_TICKER, PageTable

MAX_PAGE_RATES = 1_000
"""Largest number of rates in a page."""
_FIELDS: dict[str, pa.DataType] = {
    "funding_time_ns": pa.uint64(),
    "rate": pa.float64(),
    "mark_price": pa.float64(),
    "interval_seconds": pa.uint32(),
}
decode_rates = MessageColumns(
    pb.FundingRates, repeated("rates", _FIELDS), "the value of {size} bytes is not a FundingRates"
)


def decode_page(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    """Return the rates of a good page; else InvalidRequest names the first rate at fault."""
    columns, _ = decode_rates.rows([payload], "funding rates", MAX_PAGE_RATES)
    times_ns = columns["funding_time_ns"].to_numpy()
    size = len(times_ns)
    check_times("funding rate", times_ns, "funding_time_ns", headers.span.start_ns, headers.span.end_ns - 1)
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


def _check_values(columns: dict[str, Column]) -> None:
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
    """Return a good page of a ticker that is never requested."""
    step_ns = 28_800 * SECOND_NS
    rates = [pb.FundingRate(funding_time_ns=n * step_ns, rate=1e-4, interval_seconds=28_800) for n in range(1, 501)]
    span = TimeRange(0, min(501 * step_ns, MAX_TIME_NS))
    headers = PageHeaders(Kind.PAGE, SAMPLE_TICKER, 0, SAMPLE_DISPATCH, 0, span, 1)
    return headers, pb.FundingRates(rates=rates).SerializeToString()


FUNDING = PageTable(
    FUNDING_TABLE,
    datasets.FUNDING,
    check=partial(check_without_period, what="a page of funding rates"),
    decode=decode_page,
    sample=sample_page,
)
