"""The shipped indicators beside TA-Lib, which computes them over whole arrays."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import talib

from dexorder.udf.function import Function
from dexorder.udf.functions import FUNCTIONS
from dexorder_udf.points import Point, Value

Candles = dict[str, Any]


def candles(count: int, seed: int = 7) -> Candles:
    source = random.Random(seed)
    close = [100.0]
    for _ in range(count - 1):
        # now and then nothing changes at all
        close.append(close[-1] * (1 + source.choice([0.0, source.gauss(0, 0.01)])))
    high = [each * (1 + abs(source.gauss(0, 0.004))) for each in close]
    low = [each * (1 - abs(source.gauss(0, 0.004))) for each in close]
    return {"close": np.array(close), "high": np.array(high), "low": np.array(low)}


def outputs(name: str, options: dict[str, Any], data: Candles, cuts: tuple[int, ...] = ()) -> list[dict[str, Value]]:
    """Return the outputs of a function; at each cut another instance continues from the snapshot."""
    function: Function[Any] = FUNCTIONS[name](options)
    found: list[dict[str, Value]] = []
    for index in range(len(data["close"])):
        if index in cuts:
            snapshot = function.snapshot()
            function = FUNCTIONS[name](options)
            function.restore(snapshot)
        point = Point(index, {}, {key: float(value[index]) for key, value in data.items()})
        result = function.point(point, function.state_of("g"))
        if isinstance(result, Point):
            assert result.time_ns == index
            found.append(result.fields)
        else:
            assert result is None
    return found


CASES: list[tuple[str, dict[str, Any], Callable[[Candles], dict[str, Any]]]] = [
    ("moving_average", {"size": 9}, lambda c: {"mean": talib.SMA(c["close"], 9)}),
    ("moving_average", {"size": 1}, lambda c: {"mean": c["close"]}),
    ("ema", {"size": 12}, lambda c: {"ema": talib.EMA(c["close"], 12)}),
    (
        "macd",
        {},
        lambda c: dict(zip(("macd", "signal", "histogram"), talib.MACD(c["close"], 12, 26, 9), strict=True)),
    ),
    (
        "macd",
        {"fast": 3, "slow": 10, "signal": 4},
        lambda c: dict(zip(("macd", "signal", "histogram"), talib.MACD(c["close"], 3, 10, 4), strict=True)),
    ),
    ("rsi", {}, lambda c: {"rsi": talib.RSI(c["close"], 14)}),
    ("rsi", {"size": 2}, lambda c: {"rsi": talib.RSI(c["close"], 2)}),
    ("atr", {}, lambda c: {"atr": talib.ATR(c["high"], c["low"], c["close"], 14)}),
    (
        "bollinger",
        {"deviations": 1.5},
        lambda c: dict(zip(("upper", "middle", "lower"), talib.BBANDS(c["close"], 20, 1.5, 1.5), strict=True)),
    ),
]


@pytest.mark.parametrize(("name", "options", "oracle"), CASES)
def test_each_value_is_that_of_ta_lib(name: str, options: dict[str, Any], oracle: Any) -> None:
    data = candles(3000)
    found = outputs(name, options, data)
    for column, expected in oracle(data).items():
        known = expected[~np.isnan(expected)]
        assert len(found) == len(known) > 2900
        np.testing.assert_allclose([float(each[column]) for each in found], known, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "options", "oracle"), CASES)
def test_a_snapshot_at_any_point_changes_no_bit(name: str, options: dict[str, Any], oracle: Any) -> None:
    data = candles(120)
    whole = outputs(name, options, data)
    for cut in range(0, 60, 3):
        assert outputs(name, options, data, cuts=(cut, cut + 20)) == whole


def test_rsi_of_equal_values() -> None:
    data = {"close": np.full(30, 5.0)}
    assert outputs("rsi", {}, data) == [{"rsi": 0.0}] * 16
    assert set(talib.RSI(data["close"], 14)[14:]) == {0.0}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("moving_average", {"size": 0}, 'option "size": 0 is not at least 1'),
        ("ema", {"size": 1}, 'option "size": 1 is not at least 2'),
        ("macd", {"fast": 9, "slow": 9}, 'option "slow": 9 is not at least 10'),
        ("bollinger", {"window": 1}, 'unknown option "window"; the options: field, size, deviations'),
        ("outliers", {"scale": 0.0}, 'option "scale": 0.0 is not above 0'),
    ],
)
def test_options_that_make_no_sense(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FUNCTIONS[name](options)


def test_a_missing_or_wrong_field_is_named() -> None:
    function = FUNCTIONS["ema"]({"field": "price"})
    with pytest.raises(ValueError, match='no field "price"; its fields: close, open'):
        function.point(Point(0, {}, {"open": 1.0, "close": 1.0}), function.state_of(""))
    with pytest.raises(ValueError, match="field \"price\": 'x' is not a number"):
        function.point(Point(0, {}, {"price": "x"}), function.state_of(""))
