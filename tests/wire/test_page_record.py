"""Bytes of a page and a final, and their headers: records that are in Kafka must remain readable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.kafka.page_record import encode_candle, encode_candles, final_value, page_value
from dexorder_common.model import datasets
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2

CANDLES = [
    Candle(1_700_000_040_000_000_000, 42000.5, 42010.25, 41990.0, 42001.0, 1.5),
    Candle(1_700_000_160_000_000_000, 0.1, 0.3, 0.1, 0.2, 0.0, quote_volume=12.5, trade_count=7),
]
PAGE = bytes.fromhex(
    "0a057265712d31"  # request_id "req-1"; status OK is the default and takes no byte
    "2237"  # ohlc_data, 55 bytes
    "0880a0e6b2f8a0e7cb17"  # open_time 1700000040000000000
    "11000000001082e440"  # open 42000.5
    "19000000004883e440"  # high 42010.25
    "2100000000c080e440"  # low 41990
    "29000000002082e440"  # close 42001
    "31000000000000f83f"  # volume 1.5
    "2239"
    "088080a1b7b7a4e7cb17"
    "119a9999999999b93f"
    "19333333333333d33f"
    "219a9999999999b93f"
    "299a9999999999c93f"  # volume 0 takes no byte
    "390000000000002940"  # quote_volume 12.5
    "4007"  # trade_count 7
    "2802"  # total_records 2
)
HEADERS = {
    "dx-kind": "page",
    "dx-ticker": "BTC/USDT.BINANCE",
    "dx-period-s": "60",
    "dx-job": "job-1",
    "dx-page": "3",
    "dx-start-ns": "1700000040000000000",
    "dx-end-ns": "1700000220000000000",
    "dx-empty": "[[1700000100000000000,1700000160000000000]]",
    "dx-fetched-ns": "1700000300000000001",
    "dx-trace": "t1",
}
PAGE_HEADERS = PageHeaders(
    kind=Kind.PAGE,
    ticker="BTC/USDT.BINANCE",
    period_seconds=60,
    dispatch_id="job-1",
    page=3,
    span=TimeRange(1_700_000_040_000_000_000, 1_700_000_220_000_000_000),
    fetched_ns=1_700_000_300_000_000_001,
    empty=(TimeRange(1_700_000_100_000_000_000, 1_700_000_160_000_000_000),),
    trace="t1",
)


def test_topic() -> None:
    assert datasets.CANDLES.topic == "dexorder.ohlc"


def test_page_value() -> None:
    assert page_value("req-1", CANDLES).hex() == PAGE.hex()


def test_page_without_candles() -> None:
    assert page_value("req-1", []).hex() == "0a057265712d31"


def test_page_has_at_most_a_thousand_candles() -> None:
    page_value("r", CANDLES[:1] * 1000)
    with pytest.raises(InvalidRequest, match="1001"):
        page_value("r", CANDLES[:1] * 1001)


@pytest.mark.parametrize(
    ("status", "total", "message", "value"),
    [
        (pb.DataResponse.OK, 2, None, "0a057265712d312802"),
        (pb.DataResponse.NOT_FOUND, 0, None, "0a057265712d311001"),
        (
            pb.DataResponse.ERROR,
            1000,
            "symbol 'X' is unknown",
            "0a057265712d3110021a1573796d626f6c2027582720697320756e6b6e6f776e28e807",
        ),
    ],
)
def test_final_value(
    status: pb.DataResponse.ResponseStatus.ValueType, total: int, message: str | None, value: str
) -> None:
    assert final_value("req-1", status, total, message).hex() == value


def test_headers_and_their_order() -> None:
    assert list(PAGE_HEADERS.encode().items()) == list(HEADERS.items())
    assert PageHeaders.parse(HEADERS) == PAGE_HEADERS
    proven = replace(PAGE_HEADERS, proofs=(Proof(PAGE_HEADERS.span, ProofKind.CHECKSUM, 2, 5, 7),))
    proofs = {"dx-proofs": '[[1700000040000000000,1700000220000000000,"checksum",2,5,7]]'}
    assert list(proven.encode().items()) == list((HEADERS | proofs).items())
    assert PageHeaders.parse(HEADERS | proofs) == proven


@given(
    st.lists(
        st.builds(
            Candle,
            st.integers(1 << 56, (1 << 63) - 1) | st.integers(0, (1 << 64) - 1),
            *[st.floats(allow_nan=False)] * 5,
            st.none() | st.floats(allow_nan=False),
            st.none() | st.integers(0, (1 << 64) - 1),
        ),
        max_size=4,
    ),
    st.sampled_from([None, (None, None), (2.5, None), (None, 3), (0.0, (1 << 35) - 1)]),
)
def test_candles_encoded_by_columns_equal_those_encoded_one_by_one(
    candles: list[Candle], optional: tuple[float | None, int | None] | None
) -> None:
    if optional is not None:
        candles = [c._replace(open_ns=c.open_ns % (1 << 56) + (1 << 56)) for c in candles]
        candles = [c._replace(quote_volume=optional[0], trade_count=optional[1]) for c in candles]
    read = [ohlcv_pb2.OHLCV.FromString(data) for data in encode_candles(candles)]
    assert read == [ohlcv_pb2.OHLCV.FromString(encode_candle(c)) for c in candles]
