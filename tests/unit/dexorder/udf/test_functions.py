"""Outliers and resampling, by examples and against another computation of the whole."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder.udf.function import Function
from dexorder.udf.functions import FUNCTIONS
from dexorder.udf.functions.outliers import BatchOutliers, Outliers
from dexorder.udf.functions.resample import Resample
from dexorder_udf.points import Batch, Point

SECOND = 10**9


def run(function: Function[Any], points: Iterable[Point]) -> list[Point]:
    found: list[Point] = []
    for each in points:
        result = function.point(each, function.state_of(each.group))
        if isinstance(result, Point):
            found.append(result)
    return found


def test_an_outlier_of_a_stream_has_its_distance() -> None:
    values = [1.0, 3.0] * 4 + [10.0, 2.0]
    points = [Point(n, {"t": "a"}, {"close": value, "x": "kept"}, "n", ("t",)) for n, value in enumerate(values)]
    (found,) = run(Outliers({"size": 8, "scale": 3}), points)
    assert found == Point(8, {"t": "a"}, {"close": 10.0, "x": "kept", "zscore": 8.0}, "n", ("t",))


def test_a_change_after_equal_values_is_infinitely_far() -> None:
    points = [Point(n, {}, {"close": value}) for n, value in enumerate([5.0, 5.0, 5.0, 4.0])]
    (found,) = run(Outliers({"size": 3}), points)
    assert found.fields["zscore"] == -math.inf


def test_outliers_of_a_batch() -> None:
    function = BatchOutliers({"scale": 2.0})
    points = [Point(n, {}, {"close": 100.0 if n == 7 else 1.0}) for n in range(20)]
    result = function.batch(Batch(points, "n", {"t": "a"}, 9), None)
    assert (result.name, result.tags, result.tmax_ns) == ("n", {"t": "a"}, 9)
    (far,) = result.points
    assert far.time_ns == 7 and far.fields["zscore"] == pytest.approx(math.sqrt(19))
    assert function.batch(Batch([], "n"), None) == Batch([], "n")


def trade(time_ns: int, price: float, amount: float = 1.0) -> Point:
    return Point(time_ns, {"ticker": "A"}, {"price": price, "amount": amount}, "trades", ("ticker",))


def test_trades_become_candles_when_the_next_one_begins() -> None:
    function = Resample({"every": 10 * SECOND})
    points = [trade(n * SECOND, price, 0.5) for n, price in ((1, 5.0), (9, 7.0), (9, 4.0), (10, 6.0), (35, 1.0))]
    first, second = run(function, points)
    assert first == Point(
        0,
        {"ticker": "A"},
        {"open": 5.0, "high": 7.0, "low": 4.0, "close": 4.0, "volume": 1.5, "count": 3, "late": 0},
        "trades",
        ("ticker",),
    )
    assert (second.time_ns, second.fields["close"]) == (10 * SECOND, 6.0)
    assert list(function.finish(function._groups)) == []


def test_the_last_candle_is_sent_at_the_end_if_asked() -> None:
    function = Resample({"every": SECOND, "last": True})
    assert run(function, [trade(5, 1.0)]) == []
    (last,) = function.finish(function._groups)
    assert (last.time_ns, last.fields["count"]) == (0, 1)


def test_late_points_are_counted_and_change_nothing_else() -> None:
    function = Resample({"every": SECOND})
    (found,) = run(function, [trade(3 * SECOND, 1.0), trade(SECOND, 99.0), trade(4 * SECOND, 1.0)])
    assert (found.fields["high"], found.fields["late"], found.fields["count"]) == (1.0, 1, 1)


candle_rows = st.lists(
    st.tuples(st.integers(0, 50), *[st.floats(1, 9, allow_nan=False)] * 4, st.floats(0, 9)), min_size=1, max_size=40
)


@given(candle_rows, st.integers(1, 9))
def test_resampled_candles_are_those_of_the_whole_list(rows: list[tuple[float, ...]], every: int) -> None:
    rows.sort(key=lambda row: row[0])
    names = ("open", "high", "low", "close", "volume")
    points = [Point(int(row[0]), {}, dict(zip(names, row[1:], strict=True))) for row in rows]
    function = Resample({"every": every, "last": True})
    found = run(function, points) + list(function.finish(function._groups))
    for candle in found:
        inside = [row for row in rows if candle.time_ns <= row[0] < candle.time_ns + every]
        fields = candle.fields
        assert fields["open"] == inside[0][1] and fields["close"] == inside[-1][4]
        assert fields["high"] == max(row[2] for row in inside) and fields["low"] == min(row[3] for row in inside)
        assert fields["count"] == len(inside) and fields["volume"] == pytest.approx(sum(row[5] for row in inside))
    assert sum(int(each.fields["count"]) for each in found) == len(rows)
    assert [each.time_ns for each in found] == sorted({int(row[0]) // every * every for row in rows})


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_option_is_explained(name: str) -> None:
    assert FUNCTIONS[name].__doc__
    assert all(each.help for each in FUNCTIONS[name].options().values())
