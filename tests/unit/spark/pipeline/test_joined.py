"""Joined records of trades are decoded as the records that they join would be, each for itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dexorder_common.kafka.joined_record import (
    JOINED_HEADERS,
    MAX_JOINED_RECORDS,
    TradesRecord,
    join_records,
    records_in,
)
from dexorder_common.lake.tables import TICKS
from dexorder_common.model.page import PageHeaders
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.pipeline.controls import DECODED, Rules
from dexorder_spark.pipeline.decode import decode_batches
from dexorder_spark.pipeline.files import FileLayout, FileWriter, read_columns
from dexorder_spark.records.admission import Place, RecordRefusal
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable
from dexorder_spark.tables.ticks import TRADES
from tests.fakes.pages import Record, raw
from tests.fakes.staged import load_new
from tests.fakes.trades import MadeTrade, second, trade, trades_head, trades_record

BTC, ETH, XRP = (f"{coin}/USDT.SIM" for coin in ("BTC", "ETH", "XRP"))
FREE = pb.Trades(trades=[trade(3).message(price=0.0)])
NOW_NS = second(100)


def part(head: PageHeaders, *trades: MadeTrade) -> TradesRecord:
    return TradesRecord(head, trades_record(head, trades)[0])


def joined(*parts: TradesRecord, **headers: str) -> Record:
    return join_records(parts), {**JOINED_HEADERS, **{k.replace("_", "-"): v for k, v in headers.items()}}


PARTS = (
    part(trades_head(0, 10, ticker=ETH), trade(3), trade(5)),
    part(trades_head(0, 20, ticker=BTC, job=2), trade(3), trade(12), trade(19)),
    part(trades_head(0, 60, ticker=XRP, job=3)),
    part(trades_head(10, 20, ticker=ETH, page=1), trade(15)),
)


def decode(
    *records: Record, rules: Rules | None = None, table: PageTable = TRADES
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Any]]:
    """Return control rows, rows and refused records."""
    rows: list[pa.RecordBatch] = []
    letters: list[Any] = []
    found = decode_batches(
        table, [raw(*records)], rows.append, lambda *each: letters.append(each), rules or Rules(NOW_NS)
    )
    controls = [row for batch in found for row in batch.to_pylist()]
    return controls, [row for each in rows for row in TICKS.rows(each)], letters


def alone(*parts: TradesRecord) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    controls, rows, _ = decode(*((value, headers.encode()) for headers, value in parts))
    return controls, rows


def without_place(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"offset": 0, "control": row["control"] | {"part": None}} for row in rows]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["ticker"], row["time"], row["trade_id"]))


def test_they_give_the_same_pages_and_rows_and_are_told_by_their_numbers() -> None:
    controls, rows, letters = decode(joined(*PARTS))
    their_controls, their_rows = alone(*PARTS)
    assert without_place(controls) == without_place(their_controls)
    assert in_order(rows) == in_order(their_rows)
    assert [(row["offset"], row["control"]["part"]) for row in controls] == [(0, number) for number in range(4)]
    assert not letters


@pytest.mark.parametrize(
    "bad",
    [
        TradesRecord(trades_head(0, 10, ticker=XRP), b"\x0a\x7f"),
        part(trades_head(0, 10, ticker=XRP), trade(11)),
        TradesRecord(trades_head(0, 10, ticker=XRP), FREE.SerializeToString()),
        part(replace(trades_head(0, 10, ticker=XRP), dispatch_id="guessed"), trade(3)),
        part(replace(trades_head(0, 10, ticker=XRP), ticker="no ticker"), trade(3)),
        part(replace(trades_head(0, 10, ticker=XRP), fetched_ns=MAX_TIME_NS + 1), trade(3)),
    ],
)  # fmt: skip
def test_one_at_fault_refuses_no_other(bad: TradesRecord) -> None:
    """A part whose length reaches into the next one is among them: values are never parsed as one message."""
    controls, rows, letters = decode(joined(PARTS[0], bad, PARTS[1]))
    assert in_order(rows) == in_order(alone(PARTS[0], PARTS[1])[1])
    assert {row["control"]["part"]: row["kind"] for row in controls} == {0: "page", 1: "refused", 2: "page"}
    ((record, reason),) = letters
    assert (record["offset"], reason) == (0, next(r["control"]["reason"] for r in controls if r["kind"] == "refused"))


def test_copies_and_shuffled_trades_inside_a_record_are_treated_as_in_a_record_alone() -> None:
    head = trades_head(0, 20, ticker=XRP)
    corrected = [trade(3).message(), trade(3).message(price=9.0, revision=5), trade(1).message()]
    copies = TradesRecord(head, pb.Trades(trades=corrected).SerializeToString())
    _, rows, letters = decode(joined(PARTS[0], copies, PARTS[1]))
    assert in_order(rows) == in_order(alone(PARTS[0], copies, PARTS[1])[1])
    assert not letters


def test_one_that_the_relay_does_not_know_is_refused_at_the_second_decoding() -> None:
    refusals: dict[Place, RecordRefusal] = {
        (0, 0, 1): RecordRefusal("range is outside", is_issued=True),
        (0, 0, 3): RecordRefusal("never issued", is_issued=False),
    }
    controls, rows, letters = decode(joined(*PARTS), rules=Rules(NOW_NS, refusals))
    refused = {row["control"]["part"]: row["control"] for row in controls if row["kind"] == "refused"}
    assert {number: each["reason"] for number, each in refused.items()} == {1: "range is outside", 3: "never issued"}
    assert refused[1]["dispatch_id"] and refused[3]["dispatch_id"] is None  # the relay is told of the first alone
    assert in_order(rows) == in_order(alone(PARTS[0])[1])
    ((_, reason),) = letters
    assert reason == "2 of the joined records are refused, the first one: range is outside"


@pytest.mark.parametrize(
    ("record", "table", "reason"),
    [
        (joined(*PARTS, dx_version="2"), TRADES, "header dx-version '2' of a joined record is not 1"),
        ((b"\x0a\x7f", {**JOINED_HEADERS}), TRADES, "the value of 2 bytes is not a JoinedRecords"),
        (joined(*PARTS[:1] * (MAX_JOINED_RECORDS + 1)), TRADES, "5001 records are joined; at most 5000 are allowed"),
        (joined(*PARTS), CANDLES, "topic dexorder.ohlc does not take joined records"),
    ],
)
def test_one_that_cannot_be_read_is_refused_as_a_whole(record: Record, table: PageTable, reason: str) -> None:
    controls, rows, letters = decode(record, table=table)
    assert [(row["kind"], row["control"]["part"]) for row in controls] == [("refused", None)]
    assert controls[0]["control"]["reason"].startswith(reason)
    assert (rows, len(letters)) == ([], 1)
    assert not list(records_in(record[1], record[0])) or table is CANDLES


def test_their_rows_are_in_one_sorted_file_of_each_partition(tmp_path: Path) -> None:
    target = load_new(tmp_path, TICKS.name)()
    layout = FileLayout.of(TRADES, target)
    writer = FileWriter(layout)
    batches = decode_batches(
        TRADES, [raw(joined(*PARTS), joined(*PARTS[::-1]))], writer.add, lambda *_: None, take_many=writer.add_many
    )
    assert all(each.schema == DECODED for each in batches)
    writer.flush()
    files = [read_columns(layout, [file], TRADES.columns).to_pylist() for file in writer.written]
    assert sum(map(len, files)) == 2 * len(alone(*PARTS)[1])
    assert all(rows == in_order(rows) for rows in files)
    assert len({(rows[0]["ticker"], rows[0]["time"].date()) for rows in files}) == len(files)
