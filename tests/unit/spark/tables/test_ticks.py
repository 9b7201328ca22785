"""Records of trades as rows: literal bytes, every rule of validation, and copies within a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.tables import TICKS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_RECORD_TRADES
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.tables.ticks import TRADES, decode_page, decode_trades
from tests.fakes.pages import TICKER
from tests.fakes.trades import second, trade, trades_head, trades_record

HEAD = trades_head(0, 10, job=7)


def record(*trades: pb.Trade) -> bytes:
    return pb.Trades(trades=trades).SerializeToString()


def test_literal_bytes_become_a_row() -> None:
    body = (
        b"\x0a\x03t42"  # trade_id
        b"\x10\x80\xa8\xd6\xb9\x07"  # time 2,000,000,000 ns
        b"\x19\x00\x00\x00\x00\x00\x00\xf8\x3f"  # price 1.5
        b"\x21\x00\x00\x00\x00\x00\x00\x00\x40"  # amount 2
        b"\x28\x02"  # side: sell
        b"\x32\x03A.B"  # ticker
        b"\x38\xc0\xf0\xf5\x0b"  # received_ns 25,000,000 ns
    )
    head = replace(HEAD, ticker="A.B", span=TimeRange(0, 2_000_000_000))
    (row,) = TICKS.rows(decode_page(head, b"\x0a" + bytes([len(body)]) + body))
    assert row == {
        "ticker": "A.B",
        "trade_id": "t42",
        "time": 2_000_000,
        "price": 1.5,
        "amount": 2.0,
        "side": "sell",
        "received_at": 25_000,
        "dispatch": 7,
        "revision": None,
    }


def test_of_two_copies_in_one_record_the_later_revision_is_kept_whatever_their_order() -> None:
    first, corrected = trade(3).message(), trade(3).message(price=9.0, revision=5)
    for copies in ([first, corrected], [corrected, first], [first, corrected, first]):
        (row,) = TICKS.rows(decode_page(HEAD, record(*copies)))
        assert (row["price"], row["revision"]) == (9.0, 5)
    with pytest.raises(InvalidRequest, match="trade 1 differs from trade 0"):
        decode_page(HEAD, record(corrected, trade(3).message(price=8.0, revision=5)))


def test_rows_are_ordered_by_time_and_late_trades_are_good() -> None:
    trades = [trade(9), trade(3), trade(-500), trade(4, at_s=3)]
    rows = TICKS.rows(decode_page(trades_head(5, 10), trades_record(HEAD, trades)[0]))
    assert [row["trade_id"] for row in rows] == ["t-500", "t3", "t4", "t9"]
    assert [(row["time"], row["price"], row["amount"], row["side"]) for row in rows] == [
        each.row() for each in (trade(-500), trade(3), trade(4, at_s=3), trade(9))
    ]


def test_a_record_without_trades_is_good_and_one_without_receipt_and_side_has_nulls() -> None:
    assert decode_page(HEAD, b"").num_rows == 0
    (row,) = TICKS.rows(decode_page(HEAD, record(trade(3).message(received_ns=0, side=0))))
    assert (row["received_at"], row["side"]) == (None, None)


def test_the_time_of_a_trade_may_be_the_end_of_the_span_and_no_later() -> None:
    assert decode_page(HEAD, record(trade(10).message())).num_rows == 1
    with pytest.raises(InvalidRequest, match="trade 0 has a time_ns outside"):
        decode_page(HEAD, record(trade(10).message(time_ns=second(10) + 1)))


LONG = "x" * 129


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"trade_id": ""}, "a trade_id that is not 1 to 128 printable characters"),
        ({"trade_id": LONG}, "a trade_id that is not"),
        ({"trade_id": " 1"}, "a trade_id that is not"),
        ({"trade_id": "1\n2"}, "a trade_id that is not"),
        ({"time_ns": 0}, "a time_ns outside [1, "),
        ({"time_ns": 2**64 - 1}, "a time_ns outside [1, "),
        ({"revision": 2**63}, "a revision outside [0, 9223372036854775807]"),
        ({"received_ns": 2**63}, "a received_ns outside [0, 9223372036854775807]"),
        ({"price": 0.0}, "a price of 0 or below"),
        ({"price": -1.0}, "a price of 0 or below"),
        ({"price": float("nan")}, "a price that is not a number"),
        ({"price": float("inf")}, "a price that is not a number"),
        ({"amount": -0.5}, "an amount below 0"),
        ({"amount": float("-inf")}, "an amount that is not a number"),
        ({"side": 3}, "a side that is none of"),
        ({"side": -1}, "a side that is none of"),
        ({"ticker": "ETH/USDT.BINANCE"}, f"another ticker than {TICKER}"),
    ],
)
def test_a_record_with_a_bad_trade_is_refused_with_the_first_one_at_fault(changes: dict[str, Any], fault: str) -> None:
    value = record(trade(1).message(), trade(2).message(**changes), trade(3).message())
    with pytest.raises(InvalidRequest) as error:
        decode_page(HEAD, value)
    assert str(error.value).startswith("trade 1 ") and fault in str(error.value)


def test_of_copies_in_one_record_the_first_is_kept_and_contradictions_are_refused() -> None:
    twice = [trade(3), trade(4), trade(3, at_s=3.001), trade(4)]
    rows = TICKS.rows(decode_page(HEAD, trades_record(HEAD, twice)[0]))
    assert [(row["trade_id"], row["time"] * 1_000) for row in rows] == [("t3", second(3)), ("t4", second(4))]
    with pytest.raises(InvalidRequest, match="trade 1 differs from trade 0, which has the same id"):
        decode_page(HEAD, record(trade(3).message(), trade(3).message(price=9.0)))


def test_a_record_has_a_largest_number_of_trades() -> None:
    many = record(*(trade(3).message(trade_id=str(n)) for n in range(MAX_RECORD_TRADES + 1)))
    with pytest.raises(InvalidRequest, match="record has 10001 trades; at most 10000"):
        decode_page(HEAD, many)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dx-period-s": "60"}, "period_seconds 60 of a record of trades is not 0"),
        ({"dx-kind": "page"}, "header dx-kind 'page' does not belong to topic dexorder.ticks"),
        ({"dx-kind": "final"}, "header dx-kind 'final' does not belong"),
        ({"dx-empty": "[[1,2]]"}, "verified-empty ranges"),
    ],
)
def test_headers_of_other_records_are_refused(changes: dict[str, str], reason: str) -> None:
    value, headers = trades_record(HEAD, [trade(3)])
    taken: list[pa.RecordBatch] = []
    (row,) = decode_record(TRADES, {"payload": value, "headers": list((headers | changes).items())}, taken.append)
    assert (row["kind"], reason in row["control"]["reason"], taken) == ("refused", True, [])


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda end: record(trade(1).message()) + end))
def test_no_value_does_anything_but_become_rows_or_be_refused(value: bytes) -> None:
    try:
        rows = decode_page(HEAD, value)
    except InvalidRequest:
        return
    assert rows.schema == TICKS.arrow


@given(
    st.lists(st.builds(pb.Trade, trade_id=st.text(max_size=3), time_ns=st.integers(0, 2**64 - 1), price=st.floats()))
)
def test_both_parsers_return_the_same_columns(trades: list[pb.Trade]) -> None:
    encoded = [record(*trades), b"", record(*trades[:1])]
    fast, slow = decode_trades(encoded), decode_trades.slowly(encoded)
    assert str(fast.to_pydict()) == str(slow.to_pydict())  # as text, since NaN is not equal to itself
