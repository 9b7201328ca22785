from typing import Any

import pyarrow as pa
import pytest

from dexorder_common.kafka.page_record import encode_candle, final_value, page_value
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.periods import MONTH_SECONDS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_spark.pipeline.controls import DECODED
from dexorder_spark.pipeline.decode import decode_batches
from dexorder_spark.tables.ohlc import CANDLES, decode_candles
from tests.fakes.pages import MINUTE_NS, Record, candle, control, dispatch_id, final, page, raw, span


def decode(*records: Record) -> list[dict[str, Any]]:
    pages: list[pa.RecordBatch] = []
    batches = list(decode_batches(CANDLES, [raw(*records, partition=3)], pages.append, lambda record, reason: None))
    assert all(batch.schema == DECODED for batch in batches) and all(page.schema == OHLC.arrow for page in pages)
    control = [row for batch in batches for row in batch.to_pylist()]
    return [{"kind": "candle", **row} for page in pages for row in page.to_pylist()] + control


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows]


def test_a_good_page_becomes_its_candles_and_one_control_row() -> None:
    rows = decode(page(control(0, 3, fetched_s=17)))
    assert kinds(rows) == ["candle"] * 3 + ["page"]
    first = {name: rows[0][name] for name in OHLC.arrow.names}
    assert (first.pop("open_time").timestamp(), first.pop("fetched_at").timestamp()) == (
        span(0, 3).start_ns / SECOND_NS,
        17,
    )
    assert first == {
        "ticker": "BTC/USDT.BINANCE",
        "period_seconds": 60,
        "open": 100.0,
        "high": 102.0,
        "low": 99.0,
        "close": 101.0,
        "volume": 3.5,
        "quote_volume": 350.0,
        "trades": 7,
        "dispatch": 1,
        "page": 0,
    }
    head = rows[3]["control"]
    assert (head["dispatch_id"], head["rows"], head["reason"]) == (dispatch_id(1), 3, None)
    assert (head["start_ns"], head["end_ns"]) == (span(0, 3).start_ns, span(0, 3).end_ns)


def test_a_page_with_empty_ranges_and_a_page_without_candles_are_good() -> None:
    rows = decode(page(control(0, 5, empty=(span(1, 2),))), page(control(5, 2, empty=(span(5, 2),))))
    assert kinds(rows) == ["candle"] * 3 + ["page"] * 2
    assert rows[3]["control"]["empty"] == [span(1, 2).start_ns, span(1, 2).end_ns]
    assert rows[4]["control"]["rows"] == 0


def test_months_are_on_the_grid_of_the_calendar() -> None:
    opens = [parse_time(f"2024-0{m}-01") for m in (1, 2, 3)]
    head = PageHeaders(
        Kind.PAGE, "A.B", MONTH_SECONDS, dispatch_id(1), 0, TimeRange(opens[0], parse_time("2024-04-01")), 1_000
    )
    assert kinds(decode((page_value("r", [Candle(t, 1, 1, 1, 1, 0) for t in opens]), head.encode()))) == [
        "candle",
        "candle",
        "candle",
        "page",
    ]


GOOD = [candle(0), candle(1), candle(2)]
BAD_PAGES: list[tuple[str, Any]] = [
    ("outside the span", [candle(-1), candle(1), candle(2)]),
    ("outside the span", [candle(0), candle(1), candle(3)]),
    ("not after the previous", [candle(0), candle(0), candle(2)]),
    ("not after the previous", [candle(1), candle(0), candle(2)]),
    ("off the grid", [candle(0), candle(1)._replace(open_ns=candle(1).open_ns + SECOND_NS), candle(2)]),
    ("neither a candle nor", [candle(0), candle(2)]),
    ("open or close outside", [candle(0), candle(1)._replace(low=100.5), candle(2)]),
    ("open or close outside", [candle(0), candle(1)._replace(high=100.5), candle(2)]),
    ("volume below 0", [candle(0), candle(1)._replace(volume=-1.0), candle(2)]),
    ("high that is not a number", [candle(0), candle(1)._replace(high=float("nan")), candle(2)]),
    ("close that is not a number", [candle(0), candle(1)._replace(close=float("inf")), candle(2)]),
    ("quote_volume", [candle(0), candle(1)._replace(quote_volume=-2.0), candle(2)]),
    ("trade_count", [candle(0), candle(1)._replace(trade_count=2**63), candle(2)]),
    ("outside the span", [candle(0), candle(1), candle(2)._replace(open_ns=2**64 - 1)]),
]


@pytest.mark.parametrize(("reason", "candles"), BAD_PAGES)
def test_a_page_with_a_bad_candle_is_refused_as_a_whole_with_the_reason(reason: str, candles: list[Candle]) -> None:
    head = control(0, 3)
    rows = decode(page(control(3, 1)), (page_value("r", candles), head.encode()), page(control(4, 1)))
    assert kinds(rows) == ["candle", "candle", "page", "refused", "page"]
    refused = rows[3]
    assert reason in refused["control"]["reason"]
    assert (refused["control"]["dispatch_id"], refused["control"]["rows"]) == (dispatch_id(1), None)
    assert (refused["partition"], refused["offset"]) == (3, 1)


@pytest.mark.parametrize(
    ("reason", "value"),
    [
        ("not a DataResponse", b"\xff\xff"),
        ("not a DataResponse", b"<html>"),
        ("not OK", pb.DataResponse(status=pb.DataResponse.ERROR).SerializeToString()),
        ("total_records 2", pb.DataResponse(ohlc_data=map(encode_candle, GOOD), total_records=2).SerializeToString()),
        (
            "candle 1 is not an OHLCV",
            pb.DataResponse(
                ohlc_data=[encode_candle(GOOD[0]), b"\xff", encode_candle(GOOD[2])], total_records=3
            ).SerializeToString(),
        ),
        ("outside the span", pb.DataResponse(ohlc_data=[b""] * 3, total_records=3).SerializeToString()),
        ("at most 1000", pb.DataResponse(ohlc_data=[b""] * 1001, total_records=1001).SerializeToString()),
        ("neither a candle nor", b""),
    ],
)
def test_a_value_that_is_not_a_page_is_refused(reason: str, value: bytes) -> None:
    rows = decode((value, control(0, 3).encode()))
    assert kinds(rows) == ["refused"]
    assert reason in rows[0]["control"]["reason"]


@pytest.mark.parametrize(
    ("reason", "empty"),
    [
        ("verified-empty range", (span(2, 2),)),
        ("is in the verified-empty range", (span(1, 1),)),
        ("off the grid", (TimeRange(span(1, 1).start_ns, span(1, 1).start_ns + 1),)),
    ],
)
def test_empty_ranges_that_contradict_the_page_refuse_it(reason: str, empty: tuple[TimeRange, ...]) -> None:
    rows = decode((page_value("r", GOOD), control(0, 3, empty=empty).encode()))
    assert kinds(rows) == ["refused"]
    assert reason in rows[0]["control"]["reason"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("dx-kind", "pages"),
        ("dx-ticker", ""),
        ("dx-period-s", "61"),
        ("dx-start-ns", "x"),
        ("dx-empty", "[[1]]"),
        ("dx-end-ns", "0"),
        ("dx-fetched-ns", "-1"),
        ("dx-ticker", "BTC"),
        ("dx-empty", "[[Infinity, 1]]"),
        ("dx-empty", "[" * 100_000),
    ],
)
def test_unreadable_headers_leave_a_dead_letter_without_a_dispatch(header: str, value: str) -> None:
    payload, headers = page(control(0, 3))
    rows = decode((payload, headers | {header: value}), page(control(3, 1)))
    assert kinds(rows) == ["candle", "refused", "page"]
    assert rows[1]["control"]["dispatch_id"] is None


@pytest.mark.parametrize("status", [pb.DataResponse.OK, pb.DataResponse.NOT_FOUND, pb.DataResponse.ERROR])
def test_a_final_record_has_the_result_of_the_dispatch(status: pb.DataResponse.ResponseStatus.ValueType) -> None:
    rows = decode(final(control(0, 3), 12, status))
    assert kinds(rows) == ["final"]
    head = rows[0]["control"]
    assert (head["dispatch_id"], head["status"], head["total_records"]) == (dispatch_id(1), status, 12)


def test_a_final_record_keeps_its_message() -> None:
    value = final_value("r", pb.DataResponse.ERROR, 0, "symbol unknown")
    assert decode((value, control(0, 3, kind=Kind.FINAL).encode()))[0]["control"]["error_message"] == "symbol unknown"


def test_an_undecodable_final_ends_the_dispatch_with_an_error_and_is_kept() -> None:
    rows = decode((b"\xff", control(0, 3, kind=Kind.FINAL).encode()))
    assert kinds(rows) == ["final", "refused"]
    assert rows[0]["control"]["status"] == pb.DataResponse.ERROR
    assert "refused" in rows[0]["control"]["error_message"]
    assert rows[1]["control"]["dispatch_id"] is None


def test_both_decoders_return_the_same_columns() -> None:
    encoded = [encode_candle(c) for c in (candle(0), Candle(5 * MINUTE_NS, 0.0, 2.0, 0.0, 1.0, 0.0))]
    assert decode_candles(encoded).to_pydict() == decode_candles.slowly(encoded).to_pydict()
    assert decode_candles.slowly(encoded).schema.types == decode_candles(encoded).schema.types
