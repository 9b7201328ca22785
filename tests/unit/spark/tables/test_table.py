"""The pipeline's pure parts with a second table: one series column, and a key that ends in a trade's number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import expressions
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.tables import OHLC, IcebergTable
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.times import iso_microseconds
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.pipeline.files import FileLayout, FileWriter
from dexorder_spark.pipeline.presence import difference, find
from dexorder_spark.pipeline.ranges import KeyRange, ScanRange, overlap, row_filter, scan_ranges
from dexorder_spark.pipeline.upsert import merge_condition, merge_statement
from dexorder_spark.tables import ticks
from dexorder_spark.tables.funding import FUNDING
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import TABLES, PageTable, ensure_tables
from dexorder_spark.tables.tickers import SNAPSHOTS
from tests.fakes.pages import DAY, MINUTE_NS, control, span

TRADES_ICEBERG = IcebergTable(
    "trading.toy_trades",
    Schema(
        NestedField(1, "symbol", StringType(), required=True),
        NestedField(2, "traded_at", TimestamptzType(), required=True),
        NestedField(3, "number", LongType(), required=True),
        NestedField(4, "price", DoubleType(), required=True),
        NestedField(5, "edition", LongType(), required=True),
    ),
    key=("symbol", "traded_at", "number"),
    version=("edition",),
    partitions=PartitionSpec(PartitionField(2, 1000, DayTransform(), "traded_at_day")),
)


def rows(numbers: Iterable[int], edition: int = 1, symbol: str = "A.X") -> pa.RecordBatch:
    """Two trades a minute, so that several share a time."""
    found = [
        {
            "symbol": symbol,
            "traded_at": (DAY + number // 2 * MINUTE_NS) // 1_000,
            "number": number,
            "price": float(number),
            "edition": edition,
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(found, schema=TRADES_ICEBERG.arrow)


def check_headers(headers: PageHeaders) -> None:
    if headers.period_seconds != 60:
        raise InvalidRequest("a page of another period")


def decode_trades(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    if not payload:
        raise InvalidRequest("a page without trades")
    return rows(range(len(payload)), symbol=headers.ticker)


def sample() -> tuple[PageHeaders, bytes]:
    return control(0, 3), b"123"


TRADES = PageTable(
    TRADES_ICEBERG,
    Dataset(name="t", rows="trades", topic="trades", table="t", time_column="traded_at", series_columns=("symbol",)),
    check=check_headers,
    decode=decode_trades,
    sample=sample,
)


def versions(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch]).select(TRADES.version_columns)


def test_ddl_and_columns_follow_the_schema() -> None:
    assert TRADES_ICEBERG.ddl == (
        "`symbol` string, `traded_at` timestamp, `number` bigint, `price` double, `edition` bigint"
    )
    assert TRADES.columns == ["symbol", "traded_at", "number", "price", "edition"]
    assert TRADES.arrow_of(TRADES.version_columns).names == ["symbol", "traded_at", "number", "edition"]
    assert TRADES.iceberg.arrow.field("traded_at").type == MICROSECONDS


@pytest.mark.parametrize("changes", [{"series_columns": ("price",)}, {"time_column": "edition"}])
def test_series_and_time_columns_belong_to_the_key_unless_times_of_copies_differ(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="toy_trades needs"):
        replace(TRADES, dataset=replace(TRADES.dataset, **changes))
    if "time_column" in changes:
        changed = replace(TRADES.dataset, **changes)
        assert replace(TRADES, dataset=changed, tolerance_ns=1).time_column == "edition"


def test_a_page_of_another_kind_or_series_is_refused() -> None:
    record = {"payload": b"1"}
    for head, reason in (
        (replace(control(0, 3), kind=Kind.TICKERS), "header dx-kind 'tickers' does not belong to topic trades"),
        (replace(control(0, 3), period_seconds=0), "a page of another period"),
        (replace(control(0, 3), kind=Kind.FINAL), "header dx-kind 'final' does not belong to topic trades"),
    ):
        given = record | {"headers": list(head.encode().items())}
        (row,) = decode_record(replace(TRADES, has_finals=False), given, lambda rows: None)
        assert (row["kind"], row["control"]["reason"]) == ("refused", reason)


def test_a_page_is_decoded_by_its_table() -> None:
    taken: list[pa.RecordBatch] = []
    record = {"headers": list(control(0, 3).encode().items())}
    (row,) = decode_record(TRADES, record | {"payload": b"12345"}, taken.append)
    assert (row["kind"], row["control"]["rows"]) == ("page", 5)
    assert (row["control"]["first_us"], row["control"]["last_us"]) == (DAY // 1_000, (DAY + 2 * MINUTE_NS) // 1_000)
    assert [page.schema for page in taken] == [TRADES_ICEBERG.arrow]
    (row,) = decode_record(TRADES, record | {"payload": b""}, taken.append)
    assert (row["kind"], row["control"]["reason"]) == ("refused", "a page without trades")


def test_key_ranges_of_one_series_column() -> None:
    pages = [KeyRange((symbol,), span(first, 10)) for symbol in ("A.X", "B.X") for first in (0, 10, 30)]
    assert scan_ranges(pages) == [
        ScanRange(("A.X",), (), span(0, 20)),
        ScanRange(("A.X",), (), span(30, 10)),
        ScanRange(("B.X",), (), span(0, 20)),
        ScanRange(("B.X",), (), span(30, 10)),
    ]
    assert scan_ranges(pages, 2) == [ScanRange((symbol,), (), span(0, 40)) for symbol in ("A.X", "B.X")]
    assert scan_ranges(pages, 1) == [ScanRange(("A.X", "B.X"), (), span(0, 40))]
    assert not overlap(pages)
    assert overlap([*pages, KeyRange(("B.X",), span(39, 5))])


def test_conditions_name_only_columns_of_their_table() -> None:
    ranges = [ScanRange(("A.X", "B'X"), (), span(0, 2))]
    first, last = (iso_microseconds(time_ns, " ") for time_ns in (span(0, 2).start_ns, span(0, 2).end_ns))
    assert merge_condition(TRADES, ranges) == (
        "t.symbol = s.symbol AND t.traded_at = s.traded_at AND t.number = s.number"
        f" AND ((t.symbol IN ('A.X', 'B\\'X') AND t.traded_at >= TIMESTAMP '{first}'"
        f" AND t.traded_at < TIMESTAMP '{last}'))"
    )
    assert merge_statement(TRADES, "`c`.trading.toy_trades", "batch", ranges) == (
        f"MERGE INTO `c`.trading.toy_trades t USING batch s ON {merge_condition(TRADES, ranges)} "
        "WHEN MATCHED AND struct(coalesce(s.edition, 0)) > struct(coalesce(t.edition, 0)) "
        "THEN UPDATE SET t.price = s.price, t.edition = s.edition "
        "WHEN NOT MATCHED THEN INSERT (symbol, traded_at, number, price, edition) "
        "VALUES (s.symbol, s.traded_at, s.number, s.price, s.edition)"
    )
    found = row_filter(TRADES, ranges)
    assert isinstance(found, expressions.And)
    assert {"symbol", "traded_at"} == {
        name for name in CANDLES.columns + TRADES.columns if f"name='{name}'" in repr(found)
    }


def test_files_are_written_and_found_in_the_second_table(catalog: CatalogSettings) -> None:
    target = TRADES_ICEBERG.load_or_create(catalog.load())
    writer = FileWriter(FileLayout.of(TRADES, target))
    writer.add(rows(range(100)))  # from half past eleven, so two days
    writer.add(rows(range(10), symbol="B.X"))
    writer.flush()
    assert sorted(file.record_count for file in writer.written) == [40, 70]
    commit_files(target, added=writer.written)
    found = find(TRADES, target.refresh(), [ScanRange(("A.X",), (), span(0, 50))])
    assert found
    assert sorted(file.rows.num_rows for file in found) == [40, 60]
    for staged, new in ((rows(range(100)), []), (rows([99, 100]), [1]), (rows([7], edition=6), [0])):
        assert list(difference(TRADES, versions(staged), found).new) == new


# ---- the declared tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "rows"), [(CANDLES, 1_000), (ticks.TRADES, 500), (SNAPSHOTS, 500), (FUNDING, 500)])
def test_the_sample_is_good(table: PageTable, rows: int) -> None:
    headers, value = table.sample()
    table.check(headers)
    assert table.decode(headers, value).num_rows == rows


def test_tables_are_created_once_and_left_unchanged(catalog: CatalogSettings) -> None:
    before = {layout.name: catalog.load().load_table(layout.name).metadata.table_uuid for layout in TABLES}
    ensure_tables(catalog.load())
    assert {layout.name: catalog.load().load_table(layout.name).metadata.table_uuid for layout in TABLES} == before


def test_ohlc_has_the_layout_of_the_design(catalog: CatalogSettings) -> None:
    table = catalog.load().load_table(OHLC.name)
    assert table.format_version == 2
    assert [str(f.transform) for f in table.spec().fields] == ["month", "bucket[4]"]
    assert [table.schema().find_column_name(f.source_id) for f in table.sort_order().fields] == [
        "ticker",
        "period_seconds",
        "open_time",
    ]
    assert table.schema().identifier_field_names() == {"ticker", "period_seconds", "open_time"}
    assert {table.properties[f"write.{a}.mode"] for a in ("merge", "update", "delete")} == {"merge-on-read"}
    assert table.properties["write.distribution-mode"] == "none"
