"""Records of ticker snapshots as rows: literal bytes and every rule of validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.tables import TICKERS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_RECORD_SNAPSHOTS, Kind
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.tables.tickers import SNAPSHOTS, decode_page, decode_snapshots
from tests.fakes.pages import final
from tests.fakes.trades import snapshot, snapshots_head, snapshots_record

HEAD = snapshots_head(job=7, page=2)


def record(*snapshots: pb.TickerSnapshot) -> bytes:
    return pb.TickerSnapshots(snapshots=snapshots).SerializeToString()


def test_literal_bytes_become_a_row() -> None:
    body = (
        b"\x0a\x0bA/B.BINANCE"  # ticker
        b"\x10\x80\xa8\xd6\xb9\x07"  # time 2,000,000,000 ns
        b"\x19\x00\x00\x00\x00\x00\x00\xf8\x3f"  # last 1.5
        b"\x31\x00\x00\x00\x00\x00\x00\x00\x40"  # base_volume 2
        b"\x41\x00\x00\x00\x00\x00\x00\x00\x00"  # bid_size 0
    )
    (row,) = TICKERS.rows(decode_page(HEAD, b"\x0a" + bytes([len(body)]) + body))
    given = {"last": 1.5, "base_volume": 2.0, "bid_size": 0.0}
    others = ("bid", "ask", "ask_size", "open", "high", "low", "quote_volume", "received_at")
    assert row == {"ticker": "A/B.BINANCE", "time": 2_000_000, "dispatch": 7, "page": 2} | given | dict.fromkeys(others)


def test_rows_are_ordered_by_time_and_ticker() -> None:
    found = decode_page(HEAD, record(snapshot("B", 1), snapshot("A", 1), snapshot("C", 0)))
    assert found.column("ticker").to_pylist() == ["C.BINANCE", "A.BINANCE", "B.BINANCE"]
    assert decode_page(HEAD, b"").num_rows == 0


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"ticker": ""}, "a ticker that is not 1 to 256 printable characters"),
        ({"ticker": "x" * 250 + ".BINANCE"}, "a ticker that is not 1 to 256"),
        ({"ticker": "A/B.KRAKEN"}, "a ticker that is not SYMBOL.BINANCE"),
        ({"ticker": "BINANCE"}, "a ticker that is not SYMBOL.BINANCE"),
        ({"ticker": ".BINANCE"}, "a ticker that is not SYMBOL.BINANCE"),
        ({"ticker": "*.BINANCE"}, "a ticker that is not SYMBOL.BINANCE"),
        ({"time_ns": 0}, "a time_ns outside [1, "),
        ({"time_ns": 2**63}, "a time_ns outside [1, "),
        ({"received_ns": 2**63}, "a received_ns outside [0, "),
        ({"last": float("nan")}, "a last that is not a number"),
        ({"low": float("-inf")}, "a low that is not a number"),
        ({"ask_size": -1.0}, "a ask_size below 0"),
        ({"quote_volume": -1.0}, "a quote_volume below 0"),
    ],
)
def test_a_record_with_a_bad_snapshot_is_refused(changes: dict[str, Any], fault: str) -> None:
    bad = snapshot("B", last=1.0)
    for name, value in changes.items():
        setattr(bad, name, value)
    with pytest.raises(InvalidRequest) as error:
        decode_page(HEAD, record(snapshot("A"), bad, snapshot("C")))
    assert str(error.value).startswith("snapshot 1 ") and fault in str(error.value)


def test_two_snapshots_of_one_market_at_one_time_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"two snapshots of B\.BINANCE at one time"):
        decode_page(HEAD, record(snapshot("B"), snapshot("A"), snapshot("B", last=2.0)))
    assert decode_page(HEAD, record(snapshot("B", 0), snapshot("B", 1))).num_rows == 2


def test_a_record_has_a_largest_number_of_snapshots() -> None:
    with pytest.raises(InvalidRequest, match="record has 20001 ticker snapshots; at most 20000"):
        decode_page(HEAD, record(*(snapshot(str(n)) for n in range(MAX_RECORD_SNAPSHOTS + 1))))


def kinds(record: tuple[bytes, dict[str, str]]) -> list[tuple[str, str | None]]:
    taken: list[pa.RecordBatch] = []
    given = {"payload": record[0], "headers": list(record[1].items())}
    return [(row["kind"], row["control"].get("reason")) for row in decode_record(SNAPSHOTS, given, taken.append)]


def test_a_final_record_is_good_and_headers_of_other_records_are_refused() -> None:
    assert kinds(snapshots_record(HEAD, [snapshot("A")])) == [("page", None)]
    assert kinds(final(snapshots_head(kind=Kind.FINAL), 1)) == [("final", None)]
    for changed, reason in (
        (replace(HEAD, ticker="BTC/USDT.BINANCE"), "is not *.EXCHANGE"),
        (replace(HEAD, period_seconds=60), "period_seconds 60 of a record of ticker snapshots is not 0"),
        (replace(HEAD, kind=Kind.TRADES), "header dx-kind 'trades' does not belong to topic dexorder.tickers"),
    ):
        ((kind, why),) = kinds(snapshots_record(changed, [snapshot("A")]))
        assert (kind, reason in str(why)) == ("refused", True)


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda end: record(snapshot("A")) + end))
def test_no_value_does_anything_but_become_rows_or_be_refused(value: bytes) -> None:
    try:
        rows = decode_page(HEAD, value)
    except InvalidRequest:
        return
    assert rows.schema == TICKERS.arrow


@given(st.lists(st.builds(snapshot, st.text(max_size=3), st.integers(0, 9), last=st.floats(), ask_size=st.floats())))
def test_both_parsers_return_the_same_columns(snapshots: list[pb.TickerSnapshot]) -> None:
    encoded = [record(*snapshots), b""]
    both = decode_snapshots(encoded), decode_snapshots.slowly(encoded)
    found: list[Any] = [made.column("snapshots").to_pylist() for made in both]
    # As text, since NaN is not equal to itself.
    fast, slow = (str([[sorted(each.items()) for each in record] for record in records]) for records in found)
    assert fast == slow
