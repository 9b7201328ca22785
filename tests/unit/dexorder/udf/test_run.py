"""A function over rows in memory gives what its process gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dexorder.udf import Batch, Edge, Function, Point, option, run_function
from dexorder.udf.functions.averages import MovingAverage
from dexorder.udf.functions.outliers import BatchOutliers
from dexorder.udf.tables import TableError
from dexorder_udf.errors import UdfError, UdfOptionError

TIMES = pd.date_range("2024-01-01", periods=6, freq="min", tz="UTC")
FRAME = pd.DataFrame({"open_time": TIMES, "ticker": list("ABABAB"), "close": [1.0, 10.0, 3.0, 30.0, 5.0, np.nan]})


def test_a_data_frame_gives_a_data_frame() -> None:
    with pytest.raises(UdfError, match='has no field "close"; its fields: other'):  # NaN is no value
        run_function(MovingAverage, FRAME.assign(other=np.float32(1.5)))
    found = run_function(MovingAverage, FRAME[:5], options={"size": 2, "field": "close"})
    assert found["ticker"].tolist() == ["A", "B", "A"]
    assert found["mean"].tolist() == [2.0, 20.0, 4.0]
    assert found["time"].tolist() == [TIMES[2], TIMES[3], TIMES[4]]


def test_an_arrow_table_and_dictionaries_give_dictionaries() -> None:
    rows = [{"time": n, "ticker": "A", "close": float(n)} for n in range(4)]
    for given in (rows, pa.Table.from_pylist(rows)):
        found = run_function(MovingAverage, given, options={"size": 3})
        assert [(row["time"], row["mean"]) for row in found] == [(2 * 10**9, 1.0), (3 * 10**9, 2.0)]


def test_batches_have_windows() -> None:
    rows = [{"time": n, "close": 100.0 if n == 3 else 1.0} for n in range(20)]
    found = run_function(BatchOutliers, rows, window="10s", options={"scale": 2.0})
    assert [(row["time"], row["batch_time"], row["close"]) for row in found] == [(3 * 10**9, 10 * 10**9, 100.0)]
    with pytest.raises(UdfError, match="window '' is not a duration"):
        run_function(BatchOutliers, rows)


def test_errors_name_the_cause_and_the_line() -> None:
    class Wrong(Function[None]):
        size = option(int, 1)

        def point(self, point: Point, state: None) -> Any:
            return point.with_fields({"x": 1 / 0})

    rows = [{"time": 1, "close": 1.0}]
    with pytest.raises(UdfError, match=r"ZeroDivisionError: .*test_run.py, line \d+, in point"):
        run_function(Wrong, rows)
    with pytest.raises(UdfOptionError, match='has no option "sise"'):
        run_function(Wrong, rows, options={"sise": 2})
    with pytest.raises(UdfError, match='"size": 0 is not at least 1'):
        run_function(MovingAverage, rows, options={"size": 0})
    with pytest.raises(TableError, match="no column"):
        run_function(Wrong, [{"close": 1.0}])


def test_the_rest_comes_at_the_end_of_the_input() -> None:
    class Count(Function[list[int]]):
        provides = Edge.BATCH

        def new_state(self) -> list[int]:
            return []

        def point(self, point: Point, state: list[int]) -> None:
            state.append(1)

        def finish(self, groups: Any) -> list[Batch]:
            return [Batch([Point(7, {}, {"count": len(each)})], "end", {"g": group}) for group, each in groups.items()]

    found = run_function(Count, [{"time": n, "ticker": "AB"[n % 2], "x": n} for n in range(5)])
    assert [(row["g"], row["count"]) for row in found] == [("ticker=A", 3), ("ticker=B", 2)]
