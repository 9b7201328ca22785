"""Pages of funding rates as rows: literal bytes and every rule of validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dexorder_common.lake.tables import FUNDING as FUNDING_TABLE
from dexorder_common.model.datasets import FUNDING as DATASET
from dexorder_common.model.dispatch_id import new_dispatch_id
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.market.v1 import funding_pb2 as pb
from dexorder_spark.tables.funding import FUNDING, MAX_PAGE_RATES, decode_page, decode_rates

HOUR = 3_600 * SECOND_NS
TICKER = "BTC/USDT:USDT.BINANCE"
HEAD = PageHeaders(Kind.PAGE, TICKER, 0, new_dispatch_id(7, "0" * 16), 2, TimeRange(8 * HOUR, 24 * HOUR), 9_000)
GOOD: dict[str, Any] = {"funding_time_ns": 8 * HOUR, "rate": 1e-4, "mark_price": 42.5, "interval_seconds": 28_800}


def record(*rates: pb.FundingRate) -> bytes:
    return pb.FundingRates(rates=rates).SerializeToString()


def test_literal_bytes_become_rows() -> None:
    value = bytes.fromhex(
        "0a1a08808094ae98c606112d431cebe2361a3f190000000000404540"  # time, rate, mark price
        "0a15088080a8dcb08c0d11000000000000e0bf2080e101"  # time, rate, interval
    )
    common = {"ticker": TICKER, "fetched_at": 9, "dispatch": 7, "page": 2}
    assert FUNDING_TABLE.rows(decode_page(HEAD, value)) == [
        {**common, "funding_time": 28_800_000_000, "rate": 1e-4, "mark_price": 42.5, "interval_seconds": None},
        {**common, "funding_time": 57_600_000_000, "rate": -0.5, "mark_price": None, "interval_seconds": 28_800},
    ]
    slowly = decode_rates.slowly([value])
    assert slowly.equals(decode_rates([value]).cast(slowly.schema))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"funding_time_ns": 8 * HOUR - 1}, "a funding_time_ns outside"),
        ({"funding_time_ns": 24 * HOUR}, "a funding_time_ns outside"),
        ({"rate": float("nan")}, "a rate that is not a number"),
        ({"rate": float("-inf")}, "a rate that is not a number"),
        ({"mark_price": 0.0}, "a mark_price that is not above 0"),
        ({"mark_price": float("nan")}, "a mark_price that is not above 0"),
        ({"interval_seconds": 0}, "an interval_seconds outside"),
        ({"interval_seconds": 2**31}, "an interval_seconds outside"),
    ],
)
def test_a_page_with_one_bad_rate_is_refused(changes: dict[str, Any], fault: str) -> None:
    decode_page(HEAD, record(pb.FundingRate(**GOOD)))
    with pytest.raises(InvalidRequest, match=f"^funding rate 0 has {fault}"):
        decode_page(HEAD, record(pb.FundingRate(**GOOD | changes)))


def test_rates_ascend_and_a_page_has_not_too_many() -> None:
    later = pb.FundingRate(**GOOD | {"funding_time_ns": 9 * HOUR})
    for rates in ([later, pb.FundingRate(**GOOD)], [later, later]):
        with pytest.raises(InvalidRequest, match=r"^funding rate 1 is not after the previous one"):
            decode_page(HEAD, record(*rates))
    many = [pb.FundingRate(**GOOD | {"funding_time_ns": 8 * HOUR + n}) for n in range(MAX_PAGE_RATES + 1)]
    with pytest.raises(InvalidRequest, match="at most 1000 are allowed"):
        decode_page(HEAD, record(*many))


def test_headers_of_another_dataset_are_refused() -> None:
    FUNDING.check(HEAD)
    for changes in ({"period_seconds": 60}, {"empty": (HEAD.span,)}):
        with pytest.raises(InvalidRequest):
            FUNDING.check(replace(HEAD, **changes))


def test_its_series_is_of_the_dataset() -> None:
    assert FUNDING.series_of(HEAD) == (TICKER, 0, DATASET)
