"""Rows of a UDF's table with a column for each tag and field."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from arro3.core import DataType

from dexorder import Client
from dexorder.client.relayed import RelaySource
from dexorder.errors import CatalogError
from dexorder.rows.catalog import CatalogSource, open_catalog
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import append_rows
from dexorder_common.lake.tables import UDF_OUTPUTS, udf_table
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_spark.udf.rows import rows_of
from dexorder_udf.points import Batch, Point
from tests.fakes.candle_table import Warehouse
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder

POINTS: list[Point | Batch] = [
    Point(1_000_000, {"ticker": "A", "side": "buy"}, {"mean": 1.5, "n": 1, "time": "noon"}, "m", ("ticker",)),
    Batch([Point(2_000_000, {"ticker": "B"}, {"n": 2, "ok": True, "mean": 2})], "m", {"ticker": "B"}, 9_000_000),
]


def test_each_tag_and_field_is_a_column_of_its_type(tmp_path: Path) -> None:
    settings = CatalogSettings.local(tmp_path)
    declared = udf_table("test")
    table = declared.load_or_create(settings.load())
    append_rows(table, pa.Table.from_pylist(rows_of(reversed(POINTS), 0), schema=declared.arrow))
    source = CatalogSource(settings.name, settings.over({}))
    rows = source.udf_rows("test", TimeRange(0, MAX_TIME_NS))
    wanted = ["sequence", "time", "ticker", "period", "name", "group", "batch_time"]
    assert rows.column_names == [*wanted, "side", "mean", "n", "time_", "ok"]
    assert rows["sequence"].to_pylist() == [0, 1] and rows["ticker"].to_pylist() == ["B", "A"]
    assert rows["mean"].to_pylist() == [2.0, 1.5] and rows["n"].to_pylist() == [2, 1]
    assert rows["side"].to_pylist() == [None, "buy"] and rows["ok"].to_pylist() == [True, None]
    assert source.udf_rows("test", TimeRange(2_000_000, MAX_TIME_NS)).num_rows == 1
    with pytest.raises(CatalogError, match="udf_other"):
        source.udf_rows("other", TimeRange(0, 1))


def test_declared_fields_are_columns_though_no_row_has_a_value(fake: FakeRelay, warehouse: Warehouse) -> None:
    declared = udf_table("test")
    table = declared.load_or_create(open_catalog("dexorder", warehouse.properties))
    with table.transaction() as change:
        change.set_properties({UDF_OUTPUTS: json.dumps({"mean": "doubles", "n": "ints", "side": "strings"})})
    with Client() as client:
        empty = client.udf_rows("test")
    own = ["sequence", "time", "ticker", "period", "name", "group", "batch_time"]
    assert empty.column_names == [*own, "mean", "n", "side"] and empty.num_rows == 0
    types = [empty[name].type for name in ("mean", "n", "side")]
    assert types == [DataType.float64(), DataType.int64(), DataType.string()]
    append_rows(table, pa.Table.from_pylist(rows_of([Point(10**9, {"ticker": "A"}, {"n": 7})], 0), declared.arrow))
    result = dexorder("read", "udf:test", "--json")
    (row,) = json.loads(result.stdout)
    assert (result.exit_code, row["mean"], row["n"], row["ticker"]) == (0, None, 7, "A"), result.stderr
    result = dexorder("read", "udf:test")
    assert result.stdout.split()[:5] == ["time", "ticker", "mean", "n", "side"]
    assert "udf:test: 1 rows in trading.udf_test" in result.stderr
    result = dexorder("read", "udf:other")
    assert result.exit_code == 1 and "does not contain the table trading.udf_other" in result.stderr


def test_a_machine_without_the_catalog_is_told() -> None:
    with pytest.raises(CatalogError, match="DEXORDER_CATALOG_URI"):
        RelaySource("127.0.0.1:1").udf_rows("test", TimeRange(0, 1))
