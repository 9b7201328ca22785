"""An alert that is made from another one's code is the one that its own text would give."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_cep import InvalidSql, compile_trigger
from dexorder_cep.compile import trigger as module
from dexorder_cep.compile.alerts import read_alert

TEXTS = [
    "close > {}",
    "close >= -{}",
    "{} > close",
    "SELECT `close`, volume FROM ohlc_5m WHERE `close` < {}",
    "close CROSSES ABOVE {}",
    "close - {} > open",
    "close > {} AND open < close",
    "quote_volume <= {}",
    "close * {} CROSSES BELOW open",
    "trades > {}",
    "SELECT close + {} AS x FROM ohlc WHERE close > open",
    "close > {} AND open < {}",
    "close > {} AND open < 1e2",
    "close > {} AND open < .5",
    "SELECT close, LAG(close, {}) OVER (PARTITION BY ticker ORDER BY ts) AS c FROM ohlc",
    "SELECT close FROM (SELECT ticker, ts, close FROM ohlc WHERE close > {}) WHERE close < open",
    "close > :level",
    "close CROSSES BELOW :level",
    "close > :level AND open < 1E2",
    "close > :level AND open < 100",
    "close > :level AND open < :level",
    "SELECT ts, LAG(close, :level) OVER (PARTITION BY ticker ORDER BY ts) AS c FROM ohlc WHERE close > :level",
    "close > {} -- 5",
    "close > {} AND ticker <> 'A 5'",
]
PARAMETERS: list[dict[str, str]] = [{}, {"fire": "level"}, {"rearm": "1"}, {"cooldown": "60", "message": "{{close}}"}]
NUMBERS = st.one_of(
    st.sampled_from(["100", "100.0", "0", "1", "5", "0.1", "9223372036854775808", "1" * 40, "1.", ".5", "1e2", "x"]),
    st.integers(0, 10**18).map(str),
    st.decimals(0, 10**6, places=3).map(str),
)


def compiled(sql: str, given: dict[str, str]) -> Any:
    try:
        return compile_trigger(sql, given)
    except InvalidSql as error:
        return str(error)


def functions(found: Any) -> list[Any]:
    """Return all functions of a trigger as their code and constants."""
    plan = found.plan
    several = [plan.condition, plan.rearmed, plan.projection.values]
    for step in plan.steps:
        several += [step.keeps, step.values, *(each.aggregate.argument for each in step.over)]
    return [each and (each.__code__, [(type(k), repr(k)) for k in each.__defaults__ or ()]) for each in several]


@given(st.sampled_from(TEXTS), st.sampled_from(PARAMETERS), st.lists(NUMBERS, min_size=2, max_size=4))
def test_an_alert_is_what_its_own_text_gives(text: str, parameters: dict[str, str], numbers: list[str]) -> None:
    module._FIRST.clear()
    for number in numbers:
        sql = text.replace("{}", number)
        values = {**parameters, "level": number} if ":level" in text else parameters
        found = compiled(sql, values)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "read_alert", lambda sql, given: None)
            alone = compiled(sql, values)
        assert type(found) is type(alone)
        if isinstance(found, str):
            assert found == alone
            continue
        for name in ("sql", "given", "source", "period_seconds", "columns", "parameters", "message"):
            assert getattr(found, name) == getattr(alone, name)
        assert functions(found) == functions(alone)
        assert (found.plan.guard, found.plan.filtered) == (alone.plan.guard, alone.plan.filtered)
        assert [(each.name, each.type) for each in found.plan.projection.columns] == [
            (each.name, each.type) for each in alone.plan.projection.columns
        ]


def test_alerts_of_a_shape_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module._FIRST.clear()
    for text in ("SELECT `close` FROM ohlc WHERE `close` > {}", "close CROSSES ABOVE {}"):
        first = compile_trigger(text.format(1), {})
        monkeypatch.setattr(module, "_compile_text", None)
        again: Any = compile_trigger(text.format(70_000), {})
        assert again.plan.condition.__code__ is first.plan.condition.__code__  # type: ignore[union-attr]
        assert again.plan.projection is first.plan.projection
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("sql", "given", "number"),
    [
        ("close > 70000", {}, 70_000.0),
        ("`close` > 1.5", {"fire": "once"}, 1.5),
        ("close > :x", {"x": "-2.5"}, 2.5),
        ("close > 5 AND open > 6", {}, None),
        ("`close 5` > 6", {}, None),
        ("close > 5 /* 6 */", {}, None),
        ("close > :x AND open > :x", {"x": "5"}, None),
    ],
)
def test_number_of_a_text(sql: str, given: dict[str, str], number: float | None) -> None:
    found = read_alert(sql, given)
    assert (found and found.number) == number
    assert found is None or Decimal(found.number).is_finite()
