"""No record can fail the decoding of a batch, whatever its headers and its value are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_spark.pipeline.controls import DECODED, Rules
from dexorder_spark.pipeline.decode import decode_batches
from dexorder_spark.records.admission import RecordRefusal
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import Record, control, final, page, raw, span

NOW_NS = span(1_000, 1).start_ns
GOOD = page(control(0, 3, job=9))


def decode(*records: Record, rules: Rules | None = None) -> tuple[list[dict[str, Any]], list[pa.RecordBatch]]:
    pages: list[pa.RecordBatch] = []
    kept: list[Any] = []
    given_records = [raw(*records, partition=3)]
    batches = list(
        decode_batches(CANDLES, given_records, pages.append, lambda *each: kept.append(each), rules or Rules(NOW_NS))
    )
    assert all(batch.schema == DECODED for batch in batches)
    found = [row for batch in batches for row in batch.to_pylist()]
    refused = [row for row in found if row["kind"] == "refused"]
    assert [(row["offset"], row["control"]["reason"]) for row in refused] == [(r["offset"], why) for r, why in kept]
    assert all(record["payload"] == records[record["offset"]][0] for record, _ in kept)
    return found, pages


numbers = st.integers().map(str) | st.sampled_from(["9" * 30, str(2**63), str(2**63 - 1), "1e9", "-1", "٣"])
times = st.one_of(st.integers(-1, 2**64), st.floats(), st.booleans(), st.none(), st.text(max_size=2))
some_ranges = st.lists(st.lists(times, max_size=3), max_size=3)
ranges = st.one_of(some_ranges, times, st.dictionaries(st.text(max_size=1), times)).map(json.dumps)
odd = st.sampled_from(["[" * 1_500, '["\\ud800"]', "[[1e999,2]]", "NaN", "{", "[[0,1]]" * 2])
values = st.one_of(
    st.text(max_size=20), numbers, ranges, odd, st.sampled_from(["T" * 300 + ".B", "\u2028.B", " A.B", "A.B"])
)
names = st.sampled_from([*GOOD[1], "other"])
payloads = st.binary(max_size=60) | st.builds(
    lambda status, total, message, data: pb.DataResponse(
        request_id="r", status=status, total_records=total, error_message=message, ohlc_data=data
    ).SerializeToString(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.text(max_size=5),
    st.lists(st.binary(max_size=20), max_size=3),
)
records = st.tuples(payloads | st.just(GOOD[0]), st.dictionaries(names, values, max_size=4)).map(
    lambda made: (made[0], GOOD[1] | made[1])
)


@given(records, st.booleans())
def test_no_header_and_no_payload_fails_a_batch(odd_record: Record, is_final: bool) -> None:
    payload, headers = odd_record
    record = (payload, headers | {"dx-kind": "final"}) if is_final else odd_record
    rows, pages = decode(GOOD, record, GOOD)
    assert [row["kind"] for row in rows if row["offset"] in (0, 2)] == ["page", "page"]
    found = [row for row in rows if row["offset"] == 1]
    assert found, "each record is accounted for"
    for row in found:
        if row["kind"] == "refused":
            assert row["control"]["reason"]
        else:
            assert 0 <= row["control"]["fetched_ns"] <= NOW_NS
    assert len(pages) == 2 + any(row["control"]["rows"] or 0 for row in found)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("dx-fetched-ns", str(2**63), "dx-fetched-ns '9223372036854775808' is not a whole number up to"),
        ("dx-page", str(2**31), "dx-page '2147483648' is not a whole number up to 2147483647"),
        ("dx-period-s", str(2**31), "dx-period-s"),
        ("dx-start-ns", "9" * 5_000, "dx-start-ns '9999"),
        ("dx-empty", "[[1e999,2]]", "not a range of two whole numbers"),
        ("dx-empty", "[[true,2]]", "not a range of two whole numbers"),
        ("dx-empty", "[" * 100_000, "headers of the record"),
        ("dx-empty", json.dumps([[0, 1]] * 10_001), "is not a list of at most 10000 ranges"),
        ("dx-proofs", "[[0,1]]", "proof [0, 1] is not [start_ns, end_ns, kind"),
        ("dx-proofs", "[" * 100_000, "are not JSON"),
        ("dx-ticker", "T" * 100_000 + ".B", "has more than 256 characters"),
        ("dx-job", "6f1f0d9c4b3a4c1c8a6f2f2f2f2f2f2f", "is not NUMBER-TOKEN"),
        ("dx-job", f"{2**62}-0123456789abcdef", "is not NUMBER-TOKEN"),
    ],
)
def test_every_number_and_text_of_the_headers_is_bounded(name: str, value: str, text: str) -> None:
    payload, headers = GOOD
    (row,), _ = decode((payload, headers | {name: value}))
    assert row["kind"] == "refused" and text in row["control"]["reason"] and len(row["control"]["reason"]) <= 1_000


def test_a_fetch_in_the_future_is_as_late_as_the_drivers_clock() -> None:
    payload, headers = GOOD
    _, (rows,) = decode((payload, headers | {"dx-fetched-ns": str(MAX_TIME_NS)}))
    (fetched,) = set(rows.column("fetched_at").cast(pa.int64()).to_pylist())
    assert fetched == NOW_NS // 1_000


@pytest.mark.parametrize("price", [0.5, 1.0])
def test_a_price_of_0_or_below_is_refused(price: float) -> None:
    (row,), _ = decode(page(control(0, 3), price))  # the low is 1 below the price
    assert row["control"]["reason"].endswith("has a price of 0 or below")


@pytest.mark.parametrize("is_issued", [True, False])
def test_records_that_do_not_count_are_kept_and_reported_only_for_an_issued_dispatch(is_issued: bool) -> None:
    rules = Rules(NOW_NS, {(3, 0): RecordRefusal("no", is_issued), (3, 1): RecordRefusal("not either", is_issued)})
    rows, pages = decode(GOOD, final(control(0, 3), 3), GOOD, rules=rules)
    kinds = [(row["kind"], row["offset"], row["control"]["dispatch_id"] is not None) for row in rows]
    refused_final = [("final", 1, True)] if is_issued else []
    assert kinds == [("refused", 0, is_issued), *refused_final, ("refused", 1, False), ("page", 2, True)]
    assert len(pages) == 1
    assert rows[0]["control"]["reason"] == "no"
