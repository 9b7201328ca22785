"""The matcher against a naive one, on random rows and patterns."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dexorder_cep import InvalidSql, compile_trigger
from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.compile.plans import PatternPlan
from dexorder_cep.run.account import Account
from dexorder_cep.run.linear import LinearMatcher
from dexorder_cep.run.matcher import Found, Matcher
from dexorder_cep.run.stream import Stream
from tests.unit.services.common.cep.naive_matcher import Condition, NaiveMatcher, Taken, Variable

NAMES = "ABDE"
SECOND_NS = 1_000_000_000


class Rule(NamedTuple):
    """A condition in SQL (``V`` is the variable, ``P`` the one before it) and in Python."""

    sql: str
    python: Condition


def last(taken: Taken, variable: int) -> float | None:
    return taken[variable][-1] if taken.get(variable) else None


def rises(taken: Taken, variable: int, close: float) -> bool:
    before = last(taken, variable)
    return before is None or close > before


def above_first(taken: Taken, variable: int, close: float) -> bool:
    values = [*taken.get(variable, []), close]
    return close >= values[0]


def below_previous(taken: Taken, variable: int, close: float) -> bool:
    before = last(taken, variable - 1)
    return before is not None and close < before


def small_sum(taken: Taken, variable: int, close: float) -> bool:
    return sum(taken.get(variable, [])) + close < 9


def above_average(taken: Taken, variable: int, close: float) -> bool:
    values = taken.get(variable - 1, [])
    return bool(values) and close > sum(values) / len(values)


def few_rows(taken: Taken, variable: int, close: float) -> bool:
    return sum(map(len, taken.values())) + 1 <= 4


RULES = [
    Rule("V.close > 2", lambda taken, variable, close: close > 2),
    Rule("V.close <= 2", lambda taken, variable, close: close <= 2),
    Rule("V.close <> 3", lambda taken, variable, close: close != 3),
    Rule("V.close >= 1", lambda taken, variable, close: True),
    Rule("LAST(V.close, 1) IS NULL OR V.close > LAST(V.close, 1)", rises),
    Rule("V.close >= FIRST(V.close)", above_first),
    Rule("V.close < P.close", below_previous),
    Rule("SUM(V.close) < 9", small_sum),
    Rule("V.close > AVG(P.close)", above_average),
    Rule("COUNT(*) <= 4", few_rows),
]
QUANTIFIERS = [
    ("", 1, 1),
    ("", 1, 1),
    ("+", 1, None),
    ("+?", 1, None),
    ("*", 0, None),
    ("*?", 0, None),
    ("?", 0, 1),
    ("{2}", 2, 2),
    ("{1,3}", 1, 3),
    ("{1,2}?", 1, 2),
    ("{2,}", 2, None),
    ("{2,}?", 2, None),
    ("{0,2}", 0, 2),
    ("{0,2}?", 0, 2),
]
variables = st.lists(st.tuples(st.sampled_from(QUANTIFIERS), st.sampled_from(RULES)), min_size=1, max_size=4)
rows = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=24)
afters = st.sampled_from(["NEXT ROW", "PAST LAST ROW", "FIRST", "LAST"])


@given(variables, rows, afters, st.sampled_from([None, 4, 7]))
def test_matches_are_those_of_the_naive_matcher(
    chosen: list[tuple[tuple[str, int, int | None], Rule]],
    steps: list[tuple[int, int]],
    skip: str,
    within: int | None,
) -> None:
    names = NAMES[: len(chosen)]
    target = len(chosen) - 1 if skip in ("FIRST", "LAST") else -1
    pattern = " ".join(name + each[0] for name, (each, _) in zip(names, chosen, strict=True))
    define = ", ".join(
        f"{name} AS {rule.sql.replace('V.', name + '.').replace('P.', NAMES[max(n - 1, 0)] + '.')}"
        for n, (name, (_, rule)) in enumerate(zip(names, chosen, strict=True))
    )
    assume("P." not in chosen[0][1].sql)
    after = "PAST LAST ROW" if skip == "PAST LAST ROW" else f"TO {skip}{' ' + names[target] if target >= 0 else ''}"
    counts = ", ".join(f"COUNT({name}.close) AS n{name}" for name in names)
    sql = (
        f"SELECT * FROM ticks_view MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES {counts} "
        f"AFTER MATCH SKIP {after} PATTERN ({pattern}) {f'WITHIN INTERVAL {within!r} SECOND' if within else ''} "
        f"DEFINE {define})"
    ).replace("ticks_view", "ohlc_1s")
    sql = sql.replace(f"INTERVAL {within}", f"INTERVAL '{within}'")
    try:
        plan = compile_trigger(sql, {}).plan
    except InvalidSql:
        assume(False)
        raise
    assert isinstance(plan, PatternPlan)
    made = [
        Variable(name, least, most, "?" not in written and most != least and written != "", rule.python)
        for name, ((written, least, most), rule) in zip(names, chosen, strict=True)
    ]
    naive = NaiveMatcher(made, within, {"NEXT ROW": "next", "PAST LAST ROW": "past"}.get(skip, skip.lower()), target)
    matcher, stream, time = Matcher(plan.match, Account()), Stream("X", 0), 0
    linear = LinearMatcher(plan.match, Account()) if plan.match.places else None
    for number, (step, close) in enumerate(steps):
        time += step
        row = (time * SECOND_NS, 0.0, 0.0, 0.0, float(close), 0.0, None, None)
        stream.rows.append(row)
        try:
            found = matcher.on_row(stream, number, row)
        except TriggerFailed:
            assert skip in ("FIRST", "LAST")
            if linear is not None:
                with pytest.raises(TriggerFailed):
                    linear.on_row(stream, number, row)
            return
        if linear is not None:
            assert linear.on_row(stream, number, row) == found
            dumped = linear.dump()
            assert dumped == matcher.dump()
            linear = LinearMatcher(plan.match, Account())
            linear.restore(*dumped)
        naive.expire(time)
        position = follow(naive, found, 0, freed=True)
        naive.take(time, float(close))
        position = follow(naive, found, position, freed=False)
        assert position == len(found), "the engine emitted more than it may"
        assert naive.may_emit() is None, "the engine did not emit what it must"


def follow(naive: NaiveMatcher, found: list[Found], position: int, freed: bool) -> int:
    """Compare the engine's matches with those that may be emitted now; return how many of them are compared."""
    while (start := naive.may_emit()) is not None:
        assert position < len(found), "the engine did not emit what it must"
        match = found[position]
        assert match.first == start
        variables = tuple(n for n, count in enumerate(match.values) for _ in range(count))
        assert match.after == start + len(variables)
        naive.emitted(start, variables)
        position += 1
    return position
