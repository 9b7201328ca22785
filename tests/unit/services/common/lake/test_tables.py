"""Declarations of the tables: existing tables were created with exactly these, and readers depend on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType

from dexorder_common.lake.arrow_types import MICROSECONDS, spark_ddl
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.coverage import (
    CLAIM_COLUMNS,
    Claim,
    CoverageRow,
    Order,
    Retraction,
    decode_claim,
    decode_coverage,
    decode_retraction,
    encode_coverage,
    encode_retraction,
)
from dexorder_common.lake.tables import COVERAGE, DEAD_LETTERS, OHLC, RETRACTIONS, IcebergTable, rows_in
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange

COMMON = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.dict-size-bytes": "65536",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
UNPARTITIONED: dict[str, Any] = {"spec-id": 0, "fields": []}
UNSORTED: dict[str, Any] = {"order-id": 0, "fields": []}


def column(number: int, name: str, kind: Any, doc: str | None = None, *, required: bool = True) -> dict[str, Any]:
    made = {"id": number, "name": name, "type": kind, "required": required}
    return made | ({"doc": doc} if doc else {})


SPAN = [column(12, "start_time", "timestamptz"), column(13, "end_time", "timestamptz")]
DECLARED: list[tuple[IcebergTable, str, list[dict[str, Any]], list[int], dict[str, Any], dict[str, Any]]] = [
    (
        OHLC,
        "trading.ohlc",
        [
            column(1, "ticker", "string", "market, for example BTC/USDT.BINANCE"),
            column(2, "period_seconds", "int", "candle period in seconds"),
            column(3, "open_time", "timestamptz", "first moment of the candle, on the period's grid"),
            column(4, "open", "double"),
            column(5, "high", "double"),
            column(6, "low", "double"),
            column(7, "close", "double"),
            column(8, "volume", "double", "in units of the base currency"),
            column(
                9,
                "quote_volume",
                "double",
                "in units of the quote currency, where the exchange gives it",
                required=False,
            ),
            column(10, "trades", "long", "number of trades, where the exchange gives it", required=False),
            column(11, "fetched_at", "timestamptz", "when the exchange answered, by the ingestor's clock"),
            column(
                12,
                "dispatch",
                "long",
                "number of the dispatch that brought the row; the larger one stays",
                required=False,
            ),
            column(13, "page", "int", "number of the page in its dispatch; the larger one stays", required=False),
        ],
        [1, 2, 3],
        {
            "spec-id": 0,
            "fields": [
                {"source-id": 3, "field-id": 1000, "transform": "month", "name": "open_time_month"},
                {"source-id": 1, "field-id": 1001, "transform": "bucket[4]", "name": "ticker_bucket"},
            ],
        },
        {
            "order-id": 1,
            "fields": [
                {"source-id": n, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
                for n in (1, 2, 3)
            ],
        },
    ),
    (
        COVERAGE,
        "trading.coverage",
        [
            column(1, "ticker", "string"),
            column(2, "period_seconds", "int"),
            column(3, "start_time", "timestamptz", "first moment that is settled"),
            column(4, "end_time", "timestamptz", "first moment after it"),
            column(5, "rows", "long", "candles inside"),
            column(
                6,
                "empty",
                {
                    "type": "list",
                    "element-id": 11,
                    "element": {"type": "struct", "fields": SPAN},
                    "element-required": True,
                },
                "ranges verified to hold no candle",
            ),
            column(7, "evidence", "string", "proofs of the range, as JSON; page if there are none"),
            column(8, "fetched_at", "timestamptz"),
            column(9, "committed_at", "timestamptz", "when this row was written, after the candles"),
            column(10, "dispatch", "long", "number of the dispatch that settled the range", required=False),
            column(14, "dataset", "string", "null for candles and, with period 0, trades", required=False),
        ],
        [],
        UNPARTITIONED,
        UNSORTED,
    ),
    (
        RETRACTIONS,
        "trading.coverage_retractions",
        [
            column(1, "ticker", "string"),
            column(2, "period_seconds", "int"),
            column(3, "start_time", "timestamptz", "first moment that is no longer settled"),
            column(4, "end_time", "timestamptz", "first moment after it"),
            column(5, "reason", "string"),
            column(6, "retracted_at", "timestamptz"),
            column(
                7,
                "dispatch",
                "long",
                "pages of dispatches with a smaller number claim nothing inside",
                required=False,
            ),
            column(8, "dataset", "string", "null for candles and, with period 0, trades", required=False),
        ],
        [],
        UNPARTITIONED,
        UNSORTED,
    ),
    (
        DEAD_LETTERS,
        "trading.dead_letters",
        [
            column(1, "source", "string", "address of the source.v1 server"),
            column(2, "partition", "int"),
            column(3, "offset", "long"),
            column(4, "reason", "string"),
            column(5, "key", "string", required=False),
            column(
                6,
                "headers",
                {
                    "type": "map",
                    "key-id": 11,
                    "key": "string",
                    "value-id": 12,
                    "value": "string",
                    "value-required": True,
                },
            ),
            column(7, "payload", "binary", required=False),
            column(8, "seen_at", "timestamptz"),
        ],
        [],
        UNPARTITIONED,
        UNSORTED,
    ),
]
TABLES = [OHLC, COVERAGE, RETRACTIONS, DEAD_LETTERS]


@pytest.mark.parametrize(("table", "name", "columns", "identifiers", "partitions", "order"), DECLARED)
def test_declared_schema_partitions_and_order(
    table: IcebergTable,
    name: str,
    columns: list[dict[str, Any]],
    identifiers: list[int],
    partitions: dict[str, Any],
    order: dict[str, Any],
) -> None:
    assert table.name == name
    assert json.loads(table.schema.model_dump_json()) == {
        "type": "struct",
        "fields": columns,
        "schema-id": 0,
        "identifier-field-ids": identifiers,
    }
    assert json.loads(table.partitions.model_dump_json()) == partitions
    assert json.loads(table.order.model_dump_json()) == order


def test_properties() -> None:
    assert COVERAGE.properties == RETRACTIONS.properties == DEAD_LETTERS.properties == COMMON
    assert OHLC.properties == COMMON | {
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "write.distribution-mode": "none",
        "write.delete.distribution-mode": "none",
        "write.update.distribution-mode": "none",
        "write.merge.distribution-mode": "none",
    }


def test_keys_and_versions_name_columns() -> None:
    assert [table.key for table in TABLES] == [
        ("ticker", "period_seconds", "open_time"),
        ("ticker", "period_seconds", "start_time", "end_time", "dispatch"),
        ("ticker", "period_seconds", "start_time", "end_time", "dispatch", "retracted_at"),
        ("source", "partition", "offset"),
    ]
    assert [table.version for table in TABLES] == [("dispatch", "page"), (), (), ()]
    for table in TABLES:
        assert {*table.key, *table.version} <= set(table.arrow.names)


def test_arrow_schema_of_each_kind_of_column() -> None:
    span = pa.struct([pa.field("start_time", MICROSECONDS, False), pa.field("end_time", MICROSECONDS, False)])
    assert OHLC.arrow.field("open_time") == pa.field("open_time", MICROSECONDS, False)
    assert OHLC.arrow.field("trades") == pa.field("trades", pa.int64(), True)
    assert OHLC.arrow.field("period_seconds") == pa.field("period_seconds", pa.int32(), False)
    assert COVERAGE.arrow.field("empty") == pa.field("empty", pa.list_(pa.field("element", span, False)), False)
    headers = pa.map_(pa.string(), pa.field("value", pa.string(), False))  # type: ignore[call-overload]
    assert DEAD_LETTERS.arrow.field("headers") == pa.field("headers", headers, False)
    assert DEAD_LETTERS.arrow.field("payload") == pa.field("payload", pa.binary(), True)


def test_ddl_of_each_kind_of_column() -> None:
    assert OHLC.ddl == (
        "`ticker` string, `period_seconds` int, `open_time` timestamp, `open` double, `high` double, `low` double, "
        "`close` double, `volume` double, `quote_volume` double, `trades` bigint, `fetched_at` timestamp, "
        "`dispatch` bigint, `page` int"
    )
    nested = pa.schema([COVERAGE.arrow.field("empty"), *(DEAD_LETTERS.arrow.field(n) for n in ("headers", "payload"))])
    assert spark_ddl(nested) == (
        "`empty` array<struct<`start_time`: timestamp, `end_time`: timestamp>>, `headers` map<string, string>, "
        "`payload` binary"
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    catalog: Any = CatalogSettings.local(tmp_path).load()
    yield catalog
    catalog.close()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table_is_created_once_as_declared(catalog: Any, table: IcebergTable) -> None:
    assert table.load(catalog) is None
    made = table.load_or_create(catalog)
    again = table.load_or_create(catalog)
    assert again.metadata.table_uuid == made.metadata.table_uuid
    assert made.schema().as_arrow().equals(table.schema.as_arrow())  # the catalog numbers nested fields itself
    assert made.spec().fields == table.partitions.fields
    assert made.sort_order().fields == table.order.fields
    assert made.properties.items() >= {k: v for k, v in table.properties.items() if k != "format-version"}.items()
    assert made.format_version == 2


def test_table_of_an_earlier_release_gets_the_columns_that_it_lacks(catalog: Any) -> None:
    """Its rows have null there; its docs become those of today, and a column of the user stays."""
    fields = [each for each in OHLC.schema.fields if each.name not in ("dispatch", "page")]
    fields[-1] = fields[-1].model_copy(update={"doc": "of two copies the later one stays"})
    old = replace(OHLC, schema=Schema(*fields, identifier_field_ids=[1, 2, 3]), version=("fetched_at",))
    made = old.load_or_create(catalog)
    with made.update_schema() as change:
        change.add_column("mine", LongType())
    prices = dict.fromkeys(("open", "high", "low", "close", "volume"), 1.0)
    row = {"ticker": "A.B", "period_seconds": 60, "open_time": 0, "fetched_at": 0, **prices}
    made.append(pa.Table.from_pylist([row], schema=old.arrow))
    evolved = OHLC.load_or_create(catalog)
    assert [each.name for each in evolved.schema().fields] == [*old.arrow.names, "mine", "dispatch", "page"]
    docs = {each.name: each.doc for each in evolved.schema().fields if each.name != "mine"}
    assert docs == {each.name: each.doc for each in OHLC.schema.fields}
    evolved.append(pa.Table.from_pylist([row | {"dispatch": 7, "page": 1}], schema=OHLC.arrow))
    rows = OHLC.rows(evolved.scan().to_arrow())
    assert sorted((each["dispatch"] or 0, each["page"] or 0) for each in rows) == [(0, 0), (7, 1)]
    assert OHLC.load_or_create(catalog).metadata_location == evolved.metadata_location


SERIES = Series("BTC/USDT.BINANCE", 60)
MINUTE = 60_000_000_000
ROW = CoverageRow(
    SERIES,
    TimeRange(0, 3 * MINUTE),
    7,
    1_700_000_000_000_001_000,
    (TimeRange(MINUTE, 2 * MINUTE),),
    committed_ns=1_700_000_001_000_000_000,
    rows=2,
    evidence="page",
)


def test_coverage_rows_survive_the_table(catalog: Any) -> None:
    table = COVERAGE.load_or_create(catalog)
    table.append(pa.Table.from_pylist([encode_coverage(ROW)], schema=COVERAGE.arrow))
    (row,) = COVERAGE.rows(table.scan().to_arrow())
    assert row["start_time"] == 0 and row["fetched_at"] == 1_700_000_000_000_001
    assert decode_coverage(row) == ROW
    (claim,) = COVERAGE.rows(table.scan(selected_fields=CLAIM_COLUMNS).to_arrow())
    assert set(claim) == set(CLAIM_COLUMNS)
    assert decode_claim(claim) == Claim(ROW.series, ROW.span, ROW.dispatch, ROW.fetched_ns, ROW.empty)
    for batch in table.scan().to_arrow_batch_reader():
        assert COVERAGE.rows(batch) == [row]


def test_retractions_survive_the_table(catalog: Any) -> None:
    retraction = Retraction(SERIES, TimeRange(30_000_000_000, MINUTE), Order(7, 1_700_000_000_000_001_000))
    table = RETRACTIONS.load_or_create(catalog)
    table.append(pa.Table.from_pylist([encode_retraction(retraction, "test")], schema=RETRACTIONS.arrow))
    (row,) = RETRACTIONS.rows(table.scan().to_arrow())
    assert row["reason"] == "test" and decode_retraction(row) == retraction


def test_reversed_range_is_refused() -> None:
    row = encode_coverage(ROW)
    for broken in ({"start_time": 2, "end_time": 1}, {"empty": [{"start_time": 2, "end_time": 1}]}):
        with pytest.raises(InvalidRequest, match="reversed"):
            decode_coverage(row | broken)


def test_filter_selects_a_series_and_a_half_open_range(catalog: Any) -> None:
    def candle(ticker: str, period_seconds: int, open_time: int) -> dict[str, Any]:
        prices = dict.fromkeys(("open", "high", "low", "close", "volume"), 1.0)
        return {"ticker": ticker, "period_seconds": period_seconds, "open_time": open_time, "fetched_at": 0, **prices}

    wanted = [(SERIES.ticker, 60, 60_000_000), (SERIES.ticker, 60, 120_000_000)]
    others = [
        (SERIES.ticker, 60, 0),
        (SERIES.ticker, 60, 180_000_000),
        (SERIES.ticker, 3_600, 60_000_000),
        ("ETH/USDT.BINANCE", 60, 60_000_000),
    ]
    table = OHLC.load_or_create(catalog)
    table.append(pa.Table.from_pylist([candle(*each) for each in wanted + others], schema=OHLC.arrow))
    found = OHLC.rows(table.scan(row_filter=rows_in(SERIES, TimeRange(MINUTE, 3 * MINUTE))).to_arrow())
    assert sorted((row["ticker"], row["period_seconds"], row["open_time"]) for row in found) == wanted
