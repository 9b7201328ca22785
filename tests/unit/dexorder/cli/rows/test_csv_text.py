"""Lines of CSV: byte for byte those of pyarrow."""

from __future__ import annotations

import datetime as dt
import io
import math
from typing import Any, cast

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dexorder.cli.rows.csv_text import csv_header, csv_lines
from dexorder.rows.table import Rows


def theirs(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    csv.write_csv(table, stream)
    return stream.getvalue()


def ours(table: pa.Table) -> bytes:
    rows = Rows(table)
    return csv_header(rows.column_names) + csv_lines(rows)


POWERS = [sign * 10.0**power for power in range(-20, 25) for sign in (1, -1)]
ODD = [0.0, -0.0, math.nan, math.inf, -math.inf, None, 5e-324, 1.7976931348623157e308, 9999999999.999998, 0.1 + 0.2]


@given(st.lists(st.none() | st.floats(width=64), max_size=20))
@example([*POWERS, *ODD])
@example([1.0, 2.5, None, 100.0])
@example([9999999999.5, -9999999999.0])
@example([1e10])
def test_numbers(values: list[float | None]) -> None:
    table = pa.table({"n": pa.array(values, pa.float64())})
    assert ours(table) == theirs(table)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", None])
@given(st.lists(st.none() | st.integers(-(10**17), 4 * 10**17), max_size=8))
@example([0, 1_704_067_200_000_000, -1, 1_704_067_200_000_100, None])
def test_times(unit: str, zone: str | None, values: list[int | None]) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = [each if each is None else each * per_second // 10**9 for each in values]
    table = pa.table({"t": pa.array(times, pa.timestamp(cast(Any, unit), zone))})
    assert ours(table) == theirs(table)


@pytest.mark.parametrize(
    "column",
    [
        ["a", 'b"c', "x,y", "", None, "line\nbreak", "é"],
        pa.array(["a", None], pa.large_string()),
        [1, None, -(2**63)],
        pa.array([2**64 - 1, None], pa.uint64()),
        [True, False, None],
        [dt.date(2024, 1, 31), None],
        pa.nulls(2),
        pa.array([], pa.float64()),
        pa.array([], pa.string()),
    ],
)
def test_other_values(column: Any) -> None:
    table = pa.table({'a"b': column, "second": pa.nulls(len(column), pa.int64())})
    assert ours(table) == theirs(table)
