"""Rows of a UDF's table with a column for each tag and field."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dexorder.client.relayed import RelaySource
from dexorder.errors import CatalogError
from dexorder.rows.catalog import CatalogSource
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import append_rows
from dexorder_common.lake.tables import udf_table
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_spark.udf.rows import rows_of
from dexorder_udf.points import Batch, Point

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


def test_a_machine_without_the_catalog_is_told() -> None:
    with pytest.raises(CatalogError, match="DEXORDER_CATALOG_URI"):
        RelaySource("127.0.0.1:1").udf_rows("test", TimeRange(0, 1))
