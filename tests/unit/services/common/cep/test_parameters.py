"""Parameters of a trigger, and PREV: what they change, and values that are refused with the name of the parameter."""

from __future__ import annotations

import pytest

from dexorder_cep import Engine, Firing, InvalidSql, Outcome, compile_trigger

SECOND_NS = 1_000_000_000
LEVEL = "SELECT price FROM ticks WHERE price > 0"
CANDLES = "SELECT close FROM ohlc WHERE close > 5"


def prices(found: list[Outcome]) -> list[object]:
    return [row[0] for each in found if isinstance(each, Firing) for row in each.rows]


def trade(second: int, price: float) -> tuple[int, str, float, float, None]:
    return second * SECOND_NS, f"n{price:g}", price, 1.0, None


@pytest.mark.parametrize(("delay", "expected", "late"), [("3000", [1.0, 2.0, 3.0], None), ("1", [1.0, 3.0, 9.0], "1")])
def test_rows_that_are_late_by_less_than_the_delay_are_put_in_order(
    delay: str, expected: list[float], late: str | None
) -> None:
    engine = Engine()
    engine.add("t", 1, compile_trigger(LEVEL, {"fire": "level", "delay_ms": delay}), 0)
    found: list[Outcome] = []
    for each in (trade(1, 1.0), trade(3, 3.0), trade(2, 2.0), trade(7, 9.0)):
        found += engine.feed_ticks("X", [each])
    found += engine.settle("X", 0, 8 * SECOND_NS) if delay == "1" else []
    assert prices(found) == expected
    assert isinstance(found[-1], Firing)
    assert found[-1].context.get("late_dropped") == late


def test_the_period_says_which_candles_are_evaluated() -> None:
    for parameters, sql, period in (
        ({}, CANDLES, 60),
        ({"period": "300"}, CANDLES, 300),
        ({}, CANDLES.replace("ohlc", "ohlc_5m"), 300),
        ({"period": "300"}, CANDLES.replace("ohlc", "ohlc_5m"), 300),
    ):
        engine = Engine()
        engine.add("t", 1, compile_trigger(sql, {"fire": "level", **parameters}), 0)
        row = (0, 6.0, 6.0, 6.0, 6.0, 1.0, None, None)
        assert prices([each for p in (60, 300, 900) for each in engine.feed_candles("X", p, [row])]) == [6.0]
        (firing,) = engine.feed_candles("X", period, [(3_600 * SECOND_NS, *row[1:])])
        assert isinstance(firing, Firing)
        assert firing.context["period"] == str(period)


def test_prev_is_the_value_of_rows_before_also_before_the_match() -> None:
    sql = (
        "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts "
        "MEASURES PREV(A.close) AS last_close, PREV(A.close, 2) AS older, A.close AS now_close "
        "PATTERN (A) DEFINE A AS A.close > PREV(A.close) AND PREV(A.close) > PREV(A.close, 2))"
    )
    engine = Engine()
    engine.add("t", 1, compile_trigger(sql, {}), 0)
    closes = (5.0, 3.0, 4.0, 6.0, 7.0, 2.0)
    rows = [(n * 60 * SECOND_NS, close, close, close, close, 1.0, None, None) for n, close in enumerate(closes)]
    found = engine.feed_candles("X", 60, rows)
    assert [row[1:] for each in found if isinstance(each, Firing) for row in each.rows] == [
        (4.0, 3.0, 6.0),
        (6.0, 4.0, 7.0),
    ]


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("fire", "always", "edge, level, once"),
        ("on", "close", "bar_close, tick, bar"),
        ("period", "61", "60"),
        ("cooldown", "-1", "whole number of seconds"),
        ("cooldown", "9999999999", "2678400"),
        ("rearm", "100", "from 0 to 100"),
        ("rearm", "nan", "from 0 to 100"),
        ("initial", "wait", "arm, fire"),
        ("warmup", "501", "500"),
        ("delay_ms", "1.5", "whole number of milliseconds"),
        ("max_rows", "0", "from 1"),
        ("expires", "tomorrow", "2026-01-31T12:00:00Z"),
        ("resolve", "yes", "off, on"),
        ("limit", "1", "cooldown, delay_ms"),
    ],
)
def test_a_value_that_is_not_accepted_is_named_with_what_is(name: str, value: str, accepted: str) -> None:
    with pytest.raises(InvalidSql) as refusal:
        compile_trigger(CANDLES, {name: value})
    assert name in str(refusal.value)
    assert accepted in str(refusal.value)


def test_a_refusal_says_where_and_why() -> None:
    with pytest.raises(InvalidSql) as caught:
        compile_trigger("SELECT nothing\nFROM ohlc", {})
    error = caught.value
    assert (error.line, str(error)) == (
        1,
        f"line 1, column {error.column}: {error.reason}",
    ) and "nothing" in error.reason
    assert str(InvalidSql(0, 0, "fire is not a mode")) == "fire is not a mode"
