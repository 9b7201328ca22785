"""Triggers found by their thresholds give the events and the state of triggers that are evaluated at every row.

So do alerts at rest, which have no run and no code of their own until a row changes their guard. The other engine has
both for each trigger at each row, is never loaded, and knows no shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dexorder_cep import CompiledTrigger, Engine, InvalidSql, Suspension, compile_trigger
from dexorder_cep.compile import trigger as module
from dexorder_cep.compile.guards import Guard
from dexorder_cep.run.awake import AwakeRuns
from dexorder_cep.run.thresholds import Thresholds, holds

MINUTE = 60_000_000_000
TICKERS = ("A/USDT.SIM", "B/USDT.SIM")


def pattern(rows: str, define: str, within: str = "") -> str:
    return (
        "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES LAST(A.close) AS a "
        f"AFTER MATCH SKIP PAST LAST ROW PATTERN ({rows}) {within} DEFINE {define})"
    )


TEXTS = (
    "close > {a}",
    "close >= {a}",
    "{a} > close",
    "close <= {a}",
    "close = {a}",
    "NOT close > {a}",
    "close > {a} AND volume < {b}",
    "close BETWEEN {a} AND {b}",
    "close < {a} AND 1 / (trades - 3) > 0",
    "close < {a} OR volume < {b}",
    "quote_volume > {a}",
    "quote_volume < {a} AND trades > {b}",
    "trades <= {a}.5",
    "close CROSSES ABOVE {a}",
    "SELECT close, high FROM (SELECT ticker, ts, close, high FROM ohlc WHERE close > {a}) WHERE high > {b}",
    pattern("A B", "A AS A.close < {a}, B AS B.close > {b}"),
    pattern("A B", "A AS close > {a} AND volume < 101, B AS B.close > {b}", "WITHIN INTERVAL '2' MINUTE"),
    pattern("A+ B", "A AS A.close > {a}, B AS B.close < {b}"),
    pattern("A? B", "A AS A.close > {a}, B AS B.close < {b}"),
    pattern("A B C", "A AS A.quote_volume > {a}, C AS C.close > {b}"),
    "SELECT ticker, window_end, MAX(high) AS h FROM TABLE(TUMBLE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '2' MINUTE)) "
    "GROUP BY ticker, window_start, window_end HAVING MAX(high) > {a}",
)
PARAMETERS: tuple[dict[str, str], ...] = (
    {},
    {"fire": "level"},
    {"fire": "once"},
    {"initial": "fire"},
    {"warmup": "0"},
    {"resolve": "on", "cooldown": "120"},
    {"delay_ms": "60000"},
    {"rearm": "1"},
)
VALUES = st.sampled_from([98.0, 99.0, 100.0, 100.5, 101.0, 102.0, math.nan, math.inf])
NUMBERS = st.integers(98, 102)


@st.composite
def triggers(draw: st.DrawFn) -> CompiledTrigger:
    text = draw(st.sampled_from(TEXTS)).format(a=draw(NUMBERS), b=draw(NUMBERS))
    try:
        return compile_trigger(text, draw(st.sampled_from(PARAMETERS)))
    except InvalidSql:  # the text does not accept the parameter
        return compile_trigger(text, {})


ROWS = st.tuples(VALUES, VALUES, st.one_of(st.none(), VALUES), st.one_of(st.none(), st.integers(1, 102)))
ADDED = st.tuples(triggers(), st.sampled_from([TICKERS, TICKERS, TICKERS[:1]]))
STEPS = st.one_of(
    st.tuples(st.just("row"), st.sampled_from(TICKERS), ROWS),
    st.tuples(st.just("row"), st.sampled_from(TICKERS), ROWS),
    st.tuples(st.just("row"), st.sampled_from(TICKERS), ROWS),
    st.tuples(st.just("add"), st.integers(0, 5), ADDED),
    st.tuples(st.just("add"), st.integers(0, 5), ADDED),
    st.tuples(st.just("edit"), st.integers(0, 5), st.tuples(NUMBERS, NUMBERS)),
    st.tuples(st.sampled_from(["remove", "pause", "resume"]), st.integers(0, 5), st.none()),
    st.tuples(st.sampled_from(["settle", "kill"]), st.none(), st.none()),
)


@contextmanager
def every_row() -> Iterator[None]:
    """Let no run sleep and no alert have a shape: each trigger is evaluated at every row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AwakeRuns, "settle", lambda self, row: [])
        patch.setattr(module, "read_alert", lambda sql, given: None)
        yield


class Feeder:
    """Takes the steps of an example with one engine."""

    def __init__(self, *, is_killed: bool) -> None:
        self.engine = Engine()
        self.is_killed = is_killed
        self.numbers: dict[str, int] = {}
        self.minute = 0

    def take(self, kind: str, which: Any, what: Any) -> list[Any]:
        engine, name, at_ns = self.engine, f"t{which}", (self.minute + 1) * MINUTE
        match kind:
            case "row":
                self.minute += 1
                close, volume, quote_volume, trades = what
                engine.stamp(which, 60, at_ns + MINUTE + 1, self.minute * MINUTE)
                row = (self.minute * MINUTE, close, close, close, close, volume, quote_volume, trades)
                return engine.feed_candles(which, 60, [row])
            case "add" if name not in engine.registrations:
                self.numbers[name] = self.numbers.get(name, 0) + 1
                compiled, tickers = what
                again = compile_trigger(compiled.sql, compiled.given)
                return engine.add(name, self.numbers[name], again, at_ns, tickers)
            case "edit" if name in engine.registrations:
                known = engine.registrations[name]
                text = known.compiled.sql
                for digits in ("98", "99", "100", "101", "102"):
                    text = text.replace(digits, "#")
                for number in what:
                    text = text.replace("#", str(number), 1)
                text = text.replace("#", "100")
                return engine.edit(name, known.revision + 1, compile_trigger(text, known.compiled.given))
            case "remove":
                engine.remove(name)
            case "pause":
                engine.pause(name, TICKERS[0])
            case "resume":
                return engine.resume(name, TICKERS[0], at_ns)
            case "settle":
                return [each for ticker in TICKERS for each in engine.settle(ticker, 60, at_ns)]
            case "kill" if self.is_killed:
                self.engine = Engine.load(engine.dump())
        return []


def same(outcomes: list[Any]) -> list[str]:
    """Return outcomes as texts, in which NaN equals NaN."""
    return [repr(replace(each, reason="") if isinstance(each, Suspension) else each) for each in outcomes]


REARMED: list[tuple[str, Any, Any]] = [
    ("add", 0, (compile_trigger("close > 100", {"rearm": "1"}), TICKERS[:1])),
    *(("row", TICKERS[0], (close, 1.0, None, None)) for close in (98.0, 101.0, 99.5, 98.0, 101.0)),
]


@given(st.lists(STEPS, min_size=4, max_size=40))
@example(REARMED)
@settings(max_examples=settings().max_examples // 4)
def test_events_and_state_are_those_of_every_row(steps: list[tuple[str, Any, Any]]) -> None:
    found, expected = Feeder(is_killed=True), Feeder(is_killed=False)
    for step in steps:
        outcomes = found.take(*step)
        with every_row():
            wanted = expected.take(*step)
        assert same(outcomes) == same(wanted)
    assert repr(found.engine.dump()) == repr(expected.engine.dump())


class Alert:
    """Item of a test: a guard alone."""

    def __init__(self, number: int, guard: Guard) -> None:
        self.number = number
        self.guard = guard


GUARDS = st.builds(Guard, st.integers(0, 1), st.sampled_from(["<", "<=", ">", ">="]), NUMBERS.map(float), st.just(True))


@given(
    st.lists(st.tuples(st.lists(GUARDS, max_size=30), st.lists(st.integers(0, 60), max_size=20)), max_size=3),
    *[st.tuples(st.one_of(st.none(), VALUES), VALUES)] * 2,
)
def test_guards_that_change_are_found(
    changes: list[tuple[list[Guard], list[int]]], before: tuple[Any, ...], row: tuple[Any, ...]
) -> None:
    index, alerts = Thresholds[Alert](), dict[int, Alert]()
    for added, removed in changes:
        new = [Alert(len(alerts) + 100 * len(added) + n, guard) for n, guard in enumerate(added)]
        new = [each for each in new if each.number not in alerts]
        index.add(new)
        alerts |= {each.number: each for each in new}
        for number in [each for n, each in enumerate(alerts) if n in removed]:
            index.discard(alerts.pop(number))
    assert {each.number for each in index} == alerts.keys()
    found = sorted(each.number for each in index.changed(before, row))
    assert found == sorted(
        each.number for each in alerts.values() if holds(each.guard, before) != holds(each.guard, row)
    )


@pytest.mark.parametrize(
    ("text", "guard"),
    [
        ("close > 5", Guard(4, ">", 5.0, exact=True)),
        ("5 >= close", Guard(4, "<=", 5.0, exact=True)),
        ("close > 5 AND open < 3 AND high < 2", Guard(4, ">", 5.0, exact=False)),
        ("volume BETWEEN 1 AND 2", Guard(5, ">=", 1.0, exact=False)),
        ("close > open AND close > 5", None),
        ("close > 5 OR open < 3", None),
        ("NOT close > 5", None),
        ("close + 1 > 5", None),
        ("ticker > 'A'", None),
    ],
)
def test_guard_of_a_text(text: str, guard: Guard | None) -> None:
    plan: Any = compile_trigger(text, {}).plan
    assert plan.guard == guard


@pytest.mark.parametrize(
    ("rows", "define", "guard"),
    [
        ("A B", "A AS A.close > 5", Guard(4, ">", 5.0, exact=True)),
        ("A B", "A AS close < 5 AND A.open > 2", Guard(4, "<", 5.0, exact=False)),
        ("A B", "B AS B.close > 5", None),
        ("A* B", "A AS A.close > 5", None),
        ("A B", "A AS PREV(A.close) > 5", None),
    ],
)
def test_guard_of_a_pattern(rows: str, define: str, guard: Guard | None) -> None:
    plan: Any = compile_trigger(pattern(rows, define), {}).plan
    assert plan.match.guard == guard


def test_a_quiet_row_evaluates_no_alert() -> None:
    engine, evaluated = Engine(), list[float]()

    def counted(trigger: CompiledTrigger, number: int) -> CompiledTrigger:
        plan: Any = trigger.plan

        def condition(row: Any, ticker: str) -> Any:
            evaluated.append(number)
            return plan.condition(row, ticker)

        return replace(trigger, plan=replace(plan, condition=condition), shape=None)

    for n in range(100):
        engine.add(f"t{n}", 1, counted(compile_trigger(f"close > {n}.5", {}), n), 0, TICKERS[:1])
    events = []
    for minute, close in enumerate([50.0, 50.2, 53.0, 52.6, 49.0]):
        evaluated.clear()
        row = (minute * MINUTE, close, close, close, close, 1.0, None, None)
        found = engine.feed_candles(TICKERS[0], 60, [row])
        events.append((sorted({*evaluated}), sorted(each.trigger_id for each in found)))
    assert [each[0] for each in events[1:]] == [[], [50, 51, 52], [], [49, 50, 51, 52]]
    assert [each[1] for each in events[1:]] == [[], ["t50", "t51", "t52"], [], []]
