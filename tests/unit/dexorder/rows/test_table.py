"""Rows and columns: what they give to Python, pandas, polars, DuckDB and pyarrow."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from decimal import Decimal
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dexorder import Rows
from dexorder.rows.columns import Column
from dexorder.rows.table import times_ns
from dexorder_common.lake.tables import OHLC, TICKERS, TICKS

MICROSECONDS = pa.timestamp("us", "UTC")
TABLE: Any = pa.table(
    {
        "text": ["a", "b<", None],
        "large": pa.array(["a", None, "c"], pa.large_string()),
        "int32": pa.array([1, 2, 3], pa.int32()),
        "some": pa.array([1, None, 3], pa.int64()),
        "float": [1.5, -0.0, 1e300],
        "few": pa.array([None, None, 2.5], pa.float64()),
        "bool": [True, False, True],
        "unsure": [True, None, False],
        "time": pa.array([1_704_067_200_000_000, -1, 0], MICROSECONDS),
        "never": pa.array([None, 1, 0], MICROSECONDS),
        "local": pa.array([0, 1, 2], pa.timestamp("ms")),
        "berlin": pa.array([0, 1, 2], pa.timestamp("us", "Europe/Berlin")),
        "day": pa.array([dt.date(2024, 1, 1), None, dt.date(1969, 1, 1)]),
        "decimal": [Decimal("1.50"), None, Decimal("2.00")],
        "list": [[1], None, []],
        "struct": [{"k": 1}, None, {"k": None}],
        "null": pa.nulls(3),
    }
)
WHOLES: dict[str, Any] = {
    "one chunk": TABLE,
    "two chunks": pa.concat_tables([TABLE.slice(2), TABLE]),
    "a slice": TABLE.slice(1, 1),
    "no rows": TABLE.slice(0, 0),
    "no chunks": pa.Table.from_batches([], TABLE.schema),
}
any_table = pytest.mark.parametrize("table", WHOLES.values(), ids=WHOLES)


@any_table
def test_values_are_those_of_pyarrow(table: Any) -> None:
    rows = Rows(table)
    assert rows.to_pylist() == table.to_pylist() and rows.to_pydict() == table.to_pydict()
    assert len(rows) == rows.num_rows == table.num_rows and rows.shape == table.shape
    assert rows.column_names == table.column_names == [*rows.schema.names] and rows.num_columns == table.num_columns
    for name in table.column_names:
        assert rows[name].to_pylist() == table[name].to_pylist() and rows[name].null_count == table[name].null_count
        assert rows.column(name).to_pylist() == [each.as_py() for each in rows[name]]
    zones = {value.tzinfo for value in rows["time"].to_pylist()}
    assert zones == {value.tzinfo for value in table["time"].to_pylist()}


@any_table
def test_schema_and_memory_are_those_of_pyarrow(table: Any) -> None:
    rows = Rows(table)
    assert rows.to_arrow().equals(table) and rows.to_arrow().schema == table.schema
    assert pa.schema(rows.schema) == pa.schema(cast(Any, rows)) == table.schema
    assert pa.chunked_array(rows["float"]) == table["float"]
    if len(table):
        there: Any = rows.to_arrow()
        buffers = [each["float"].chunk(0).buffers()[1] for each in (table, there)]
        assert 0 <= buffers[1].address - buffers[0].address < buffers[0].size, "a copy"


@pytest.mark.parametrize("declared", [OHLC, TICKS, TICKERS], ids=lambda each: each.name)
def test_schemas_of_the_tables_survive(declared: Any) -> None:
    table = pa.Table.from_batches([], declared.arrow)
    assert Rows(table).to_arrow().schema.equals(declared.arrow, check_metadata=True)


@any_table
def test_pandas_frame_is_that_of_pyarrow(table: Any) -> None:
    pd.testing.assert_frame_equal(Rows(table).to_pandas(), table.to_pandas())
    pd.testing.assert_series_equal(Rows(table)["time"].to_pandas(), table["time"].to_pandas(), check_names=False)


@any_table
def test_other_libraries_take_rows_as_they_are(table: Any) -> None:
    plain = table.drop_columns(["decimal", "null"])
    rows = Rows(plain)
    assert pl.DataFrame(rows).equals(pl.DataFrame(pl.from_arrow(plain))) and rows.to_polars().equals(pl.DataFrame(rows))
    assert pl.Series(rows["float"]).to_list() == plain["float"].to_pylist()
    with duckdb.connect() as database:
        counted = database.execute("SELECT count(*), sum(int32) FROM rows").fetchall()
    assert counted == [(table.num_rows, sum(table["int32"].to_pylist()) or None)]
    assert Rows(pl.DataFrame(rows))["int32"].to_pylist() == table["int32"].to_pylist()


def test_columns_as_numpy() -> None:
    rows = Rows(TABLE)
    assert rows["int32"].to_numpy().dtype == np.int32 and rows["bool"].to_numpy().dtype == np.bool_
    assert [np.isnan(rows[name].to_numpy()).tolist() for name in ("few", "some")] == [
        [True, True, False],
        [False, True, False],
    ]
    assert np.asarray(rows["float"]).tolist() == [1.5, -0.0, 1e300] and np.array(rows["int32"], float).sum() == 6.0
    assert rows["time"].to_numpy().tolist()[0] == dt.datetime(2024, 1, 1)
    assert np.isnat(rows["never"].to_numpy()).tolist() == [True, False, False]
    assert rows["text"].to_numpy().tolist() == ["a", "b<", None]
    assert rows["list"].to_numpy().tolist() == [[1], None, []]


def test_parts_of_rows() -> None:
    rows = Rows(WHOLES["two chunks"])
    numbers = [3, 1, 2, 3]
    for key in (slice(1, 3), slice(-1, None), slice(None, None, -1), slice(3, 1), slice(0, 99), slice(None, None, 2)):
        assert rows[key]["int32"].to_pylist() == numbers[key]
    assert rows["int32"][1:3].to_pylist() == [1, 2] and rows["int32"][-1].as_py() == 3 and rows[2][0].as_py() == 3
    assert rows.slice(3).num_rows == 1 and rows.slice(9).num_rows == 0 and rows.slice(1, 99).num_rows == 3
    assert rows.take([3, 0])["int32"].to_pylist() == [3, 3] and rows.take([]).num_rows == 0
    assert rows.select(["float", "text"]).column_names == ["float", "text"]
    assert Rows.concat([rows[:1], rows[1:]]) == rows and Rows.concat(iter([rows[:0]])).num_rows == 0
    joined = Rows.concat([rows[:1], rows[:0], rows[1:1], rows[1:]])
    assert joined == rows and all(len(chunk) for chunk in joined.to_arrow()["int32"].chunks), "empty parts add up"
    with pytest.raises(KeyError, match="nothing"):
        rows["nothing"]
    with pytest.raises(ValueError, match="step 2"):
        rows["int32"][::2]
    with pytest.raises(ValueError, match="different columns"):
        Rows.concat([rows, rows.select(["text"])])


def test_equality_is_that_of_columns_and_values() -> None:
    one, two = Rows(TABLE), Rows(pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]))
    assert one == two and one == TABLE and one == TABLE and one["time"] == two["time"] == TABLE["time"]
    assert Rows(pa.Table.from_batches([], TABLE.schema)) == one[:0]
    for other in (
        one[:2],
        one[::-1],
        one.select(one.column_names[::-1]),
        TABLE.rename_columns([f"{n}_" for n in TABLE.column_names]),
        7,
        None,
    ):
        assert one != other
    assert one["int32"] != one["some"] and one["int32"] != [1, 2, 3]
    with pytest.raises(TypeError):
        hash(one)
    described = TABLE.replace_schema_metadata({"a": "b"})
    assert Rows(described) == one and Rows.concat([Rows(described), one]).num_rows == 6


def test_times_are_nanoseconds() -> None:
    assert times_ns(Rows(TABLE), "time") == [1_704_067_200_000_000_000, -1_000, 0]
    assert times_ns(Rows(WHOLES["two chunks"])[1:3], "time") == [1_704_067_200_000_000_000, -1_000]
    assert times_ns(Rows(WHOLES["no chunks"]), "time") == []


def test_rows_are_pickled() -> None:
    rows = Rows(WHOLES["two chunks"])[1:]
    assert pickle.loads(pickle.dumps(rows)) == rows


def test_text_and_html_show_both_ends() -> None:
    rows = Rows(pa.table({"n": list(range(1_000)), "t<": ["x&y"] * 999 + [None]}))
    lines = repr(rows).splitlines()
    assert lines[0] == "Rows: 1,000 rows, 2 columns"
    assert [line.split()[0] for line in lines[1:]] == [
        "n",
        "0",
        "1",
        "2",
        "3",
        "4",
        "...",
        "995",
        "996",
        "997",
        "998",
        "999",
    ]
    assert repr(rows[:1]).splitlines()[1:] == ["n  t<", "0  x&y"]
    page = rows._repr_html_()
    assert page.count("<tr>") == 12 and "<th>t&lt;</th>" in page and "x&amp;y" in page and "1,000 rows" in page
    assert (
        repr(rows["n"]) == "Column: 1,000 values: 0, 1, 2, 3, 4, ..." and repr(rows["n"][:1]) == "Column: 1 values: 0"
    )


@pytest.mark.parametrize(
    ("method", "package"), [("to_arrow", "pyarrow"), ("to_pandas", "pandas"), ("to_polars", "polars")]
)
def test_a_missing_package_is_named(method: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(TABLE)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "dexorder.rows.numpy_pandas", raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"{method} needs {package}, which is not installed: pip install"):
        getattr(rows, method)()


def test_a_column_needs_numpy_for_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    column = Column(pa.array([1, 2]))
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "dexorder.rows.numpy_pandas", raising=False)
    with pytest.raises(ModuleNotFoundError, match="to_numpy needs numpy"):
        column.to_numpy()
