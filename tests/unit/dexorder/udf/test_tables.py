"""Rows of files as points, windows, and outputs as rows."""

from __future__ import annotations

import datetime as dt
import io
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dexorder.udf.tables import PointMaker, TableError, json_row, read_rows
from dexorder_udf.points import Batch, Point

TIME = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
TIME_NS = 1704067200 * 10**9


def points_of(source: str, text: str = "", **maker: Any) -> list[Point]:
    make = PointMaker(**maker).point
    return [make(row) for rows in read_rows(source, io.TextIOWrapper(io.BytesIO(text.encode()))) for row in rows]


def test_parquet_and_csv_give_the_same_points(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ticker": ["A"],
            "period_seconds": [60],
            "open_time": pa.array([TIME], pa.timestamp("us", "UTC")),
            "close": [1.5],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    expected = [Point(TIME_NS, {"ticker": "A", "period": "1m"}, {"close": 1.5}, "n", ("ticker", "period"))]
    assert points_of(str(tmp_path / "a.parquet"), name="n") == points_of(str(tmp_path / "a.csv"), name="n") == expected


@pytest.mark.parametrize("time", [1704067200, 1704067200000, 1704067200000000, TIME_NS, '"2024-01-01T00:00:00Z"'])
def test_times_of_json_lines(time: Any) -> None:
    (point,) = points_of("-", f'{{"time": {time}, "x": 1, "n": null, "b": true, "s": "t"}}\n\n')
    assert point == Point(TIME_NS, {}, {"x": 1, "b": True, "s": "t"})


def test_columns_to_group_by() -> None:
    (point,) = points_of("-", '{"at": 5, "side": "buy", "k": 3, "ticker": "A"}', time="at", by=["side", "k"])
    assert point == Point(5 * 10**9, {"side": "buy", "k": "3"}, {"ticker": "A"}, "", ("side", "k"))


@pytest.mark.parametrize(
    ("source", "text", "words"),
    [
        ("a.xlsx", "", "use .parquet, .csv, .jsonl"),
        ("missing.parquet", "", "missing.parquet"),
        ("-", '{"time": 1}\nx', "stdin, line 2: Expecting value"),
        ("-", "[1]", "stdin, line 1: not a JSON object"),
        ("-", '{"x": 1}', "no column open_time or time or .* in a row; its columns: x"),
        ("-", '{"time": "soon"}', "column time"),
        ("-", '{"time": 1, "x": [1]}', r"column x: \[1\] is not a number"),
    ],
)
def test_unreadable_input(source: str, text: str, words: str) -> None:
    with pytest.raises(TableError, match=words):
        points_of(source, text)


def test_decimals_are_numbers() -> None:
    assert PointMaker().point({"time": 1, "x": Decimal("1.5")}).fields == {"x": 1.5}


def test_json_of_outputs() -> None:
    point = Point(TIME_NS, {"t": "a"}, {"x": 1.5, "n": math.nan, "i": -math.inf}, "n", ("t",))
    fields = {"x": 1.5, "n": "NaN", "i": "-Infinity"}
    time = "2024-01-01T00:00:00Z"
    assert json_row(point) == {"time": time, "name": "n", "group": "t=a", "tags": {"t": "a"}, "fields": fields}
    assert json_row(Batch([point], "n", {"t": "a"}, TIME_NS)) == {
        "name": "n",
        "tags": {"t": "a"},
        "tmax": time,
        "points": [{"time": time, "tags": {"t": "a"}, "fields": fields}],
    }
