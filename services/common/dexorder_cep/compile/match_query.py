"""MATCH_RECOGNIZE: checks with Flink's refusals, and compilation to a plan of the matcher. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from dexorder_cep.compile.automaton import Automaton, Take, build, is_greedy
from dexorder_cep.compile.binder import bind, bind_condition
from dexorder_cep.compile.code import PATTERN, Emitter, Function, Spans, generate, pattern_values
from dexorder_cep.compile.guards import guard_of_start
from dexorder_cep.compile.plans import MatchPlan, Place
from dexorder_cep.compile.scopes import PatternScope
from dexorder_cep.compile.tables import TICKER, TIME_SLOT
from dexorder_cep.compile.typed import TICKER_SLOT, TRUE, PatternAggregate, PatternValue, Typed, TypedColumn, walk
from dexorder_cep.language import syntax
from dexorder_cep.language.refusals import MAX_VARIABLES, TextPosition, refuse
from dexorder_cep.language.syntax import Match, Quantified


class MatchQuery(NamedTuple):
    """Plan and its output.

    Attributes:
        plan: For the matcher.
        columns: The ticker and the measures; slots are positions in the tuple of measures.
        order: Slots by which rows of equal time are sorted, each with True for descending.
    """

    plan: MatchPlan
    columns: tuple[TypedColumn, ...]
    order: tuple[tuple[int, bool], ...]


def compile_match(match: Match, columns: tuple[TypedColumn, ...]) -> MatchQuery:
    """Check a MATCH_RECOGNIZE clause over rows of ``columns`` and compile it.

    Raises:
        InvalidSql: Flink refuses it, or this engine does not support it.
    """
    by_name = {column.name: column for column in columns}
    _check_partition(match, by_name)
    order = _order(match, by_name)
    variables = _variables(match)
    _check_quantifiers(match.pattern)
    skip_variable = _skip_variable(match, variables)
    if match.within is not None and match.within.months:
        raise refuse(match.within.at, "WITHIN takes an interval of days to seconds, not of months")
    if not match.measures:
        raise refuse(match.at, "MATCH_RECOGNIZE without MEASURES is not accepted by Flink SQL")
    conditions = _conditions(match, columns, variables)
    measures = _measures(match, columns, variables)
    automaton = build(match.pattern)
    least = tuple(each.least for each in match.pattern)
    tested = [node for tree in conditions.values() for node in walk(tree)]
    measured = [node for _, tree, _ in measures for node in walk(tree)]
    contexts = _contexts(automaton)
    steps = _steps(automaton, contexts, conditions, least, match.at)
    places = _places(automaton, steps)
    plan = MatchPlan(
        variables=tuple(variables),
        automaton=automaton,
        steps=steps,
        measures=_measure_functions(automaton, contexts, [tree for _, tree, _ in measures], least, match.at),
        moves=tuple({} for _ in automaton.states),
        within_ns=match.within.milliseconds * 1_000_000 if match.within else 0,
        skip=match.skip.mode,
        skip_variable=skip_variable,
        weight=len(tested) + 1,
        aggregates=sum(isinstance(node, PatternAggregate) for node in tested),
        measured_weight=len(measured),
        measured_aggregates=sum(isinstance(node, PatternAggregate) for node in measured),
        reach=max((n.reference.previous for n in (*tested, *measured) if isinstance(n, PatternValue)), default=0),
        guard=guard_of_start(automaton, conditions),
        places=places,
        tested=tuple(each for each in places[:0:-1] if type(each.step) is not int or each is places[-1]),
    )
    emitted = (TICKER, *(TypedColumn(name, tree.type, slot) for slot, (name, tree, _) in enumerate(measures)))
    return MatchQuery(plan, emitted, order)


def _check_partition(match: Match, columns: dict[str, TypedColumn]) -> None:
    names = [each.parts for each in match.partition if isinstance(each, syntax.Name)]
    if len(match.partition) != 1 or len(names) != 1 or names[0][-1] not in columns:
        at = match.partition[0].at if match.partition else match.at
        raise refuse(at, "MATCH_RECOGNIZE takes PARTITION BY ticker: each ticker is examined by itself")
    if columns[names[0][-1]].slot != TICKER_SLOT:
        raise refuse(match.partition[0].at, "MATCH_RECOGNIZE takes PARTITION BY ticker, no other column")


def _order(match: Match, columns: dict[str, TypedColumn]) -> tuple[tuple[int, bool], ...]:
    if not match.order:
        raise refuse(match.at, "MATCH_RECOGNIZE takes ORDER BY ts")
    found: list[tuple[int, bool]] = []
    for expression, descending in match.order:
        if not isinstance(expression, syntax.Name) or expression.parts[-1] not in columns:
            raise refuse(expression.at, "ORDER BY of MATCH_RECOGNIZE takes columns")
        found.append((columns[expression.parts[-1]].slot, descending))
    first, descending = found[0]
    if first != TIME_SLOT:
        raise refuse(match.order[0][0].at, "ORDER BY of MATCH_RECOGNIZE must begin with the time column ts")
    if descending:
        raise refuse(match.order[0][0].at, "ORDER BY ts must be ascending in MATCH_RECOGNIZE")
    return tuple(each for each in found[1:] if each[0] not in (TIME_SLOT, TICKER_SLOT))


def _variables(match: Match) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in match.pattern:
        if each.variable in found:
            raise refuse(each.at, f"variable {each.variable!r} is in the pattern twice; that is not supported")
        found[each.variable] = len(found)
    if len(found) > MAX_VARIABLES:
        raise refuse(match.pattern[MAX_VARIABLES].at, f"the pattern has more than {MAX_VARIABLES} variables")
    return found


def _check_quantifiers(pattern: tuple[Quantified, ...]) -> None:
    if all(each.least == 0 for each in pattern):
        raise refuse(pattern[0].at, "the pattern can match no row at all; at least one variable must not be optional")
    for each in pattern:
        if each.reluctant and (each.least, each.most) == (0, 1):
            raise refuse(each.at, f"{each.variable}??: reluctant optional variables are not supported")
    for before, each in itertools.pairwise(pattern):
        if is_greedy(before) and each.least == 0 and each.most in (1, None):
            raise refuse(
                each.at,
                f"optional variable {each.variable!r} cannot follow the greedy variable {before.variable!r}; "
                "make the greedy one reluctant with '?'",
            )
    if is_greedy(pattern[-1]):
        raise refuse(
            pattern[-1].at,
            "a greedy quantifier is not accepted on the last variable of a pattern; end the pattern with a simple "
            "variable or a reluctant quantifier",
        )


def _skip_variable(match: Match, variables: dict[str, int]) -> int:
    if match.skip.mode in ("next", "past"):
        return -1
    if match.skip.variable not in variables:
        raise refuse(match.skip.at, f"AFTER MATCH SKIP: {match.skip.variable!r} is not a variable of the pattern")
    return variables[match.skip.variable]


def _conditions(match: Match, columns: tuple[TypedColumn, ...], variables: dict[str, int]) -> dict[int, Typed]:
    found: dict[int, Typed] = {}
    names: set[str] = set()
    for name, expression, at in match.define:
        if name in names:
            raise refuse(at, f"variable {name!r} is defined twice")
        names.add(name)
        candidate = variables.get(name, len(variables))  # a variable that the pattern lacks is checked, not used
        scope = PatternScope(columns, variables | {name: candidate}, candidate)
        found[candidate] = bind_condition(expression, scope, f"the condition of {name}")
    found.pop(len(variables), None)
    return found


def _measures(
    match: Match, columns: tuple[TypedColumn, ...], variables: dict[str, int]
) -> list[tuple[str, Typed, TextPosition]]:
    scope = PatternScope(columns, variables, None)
    found: list[tuple[str, Typed, TextPosition]] = []
    names = {TICKER.name}
    for expression, name in match.measures:
        if name in names:
            raise refuse(expression.at, f"the column {name!r} is in the result twice")
        names.add(name)
        found.append((name, bind(expression, scope), expression.at))
    return found


def _contexts(automaton: Automaton) -> list[set[int]]:
    """Return for each state the numbers of bounds with which it is reached."""
    found: list[set[int]] = [set() for _ in automaton.states]
    waiting = [(automaton.start, 0)]
    while waiting:
        state, known = waiting.pop()
        if known in found[state]:
            continue
        found[state].add(known)
        for take in automaton.states[state]:
            if take.target is not None:
                waiting.append((take.target, take.variable + 1))
    return found


def _steps(
    automaton: Automaton,
    contexts: list[set[int]],
    conditions: dict[int, Typed],
    least: tuple[int, ...],
    at: TextPosition,
) -> tuple[dict[int, Function | int], ...]:
    made: dict[tuple[int, tuple[object, ...]], Function | int] = {}
    found: list[dict[int, Function | int]] = []
    for takes, numbers in zip(automaton.states, contexts, strict=True):
        functions: dict[int, Function | int] = {}
        for known in sorted(numbers):
            key = known, tuple((take.tests, take.completes) for take in takes)
            if key not in made:
                made[key] = _step(takes, known - 1, conditions, least, at)
            functions[known] = made[key]
        found.append(functions)
    return tuple(found)


def _places(automaton: Automaton, steps: tuple[Mapping[int, Function | int], ...]) -> tuple[Place, ...]:
    """Return the places of a pattern; none if a row of a match may have several."""
    found: list[Place] = []
    state: int | None = automaton.start
    starts: tuple[int, ...] = ()
    while state is not None:
        takes = automaton.states[state]
        if len(takes) != 1 or takes[0].completes or len(found) == len(automaton.states):
            return ()
        found.append(Place(len(found), state, starts, steps[state][len(starts)]))
        starts += (len(found) - 1,) * (takes[0].variable + 1 - len(starts))
        state = takes[0].target
    return tuple(found)


def _step(
    takes: tuple[Take, ...], current: int, conditions: dict[int, Typed], least: tuple[int, ...], at: TextPosition
) -> Function | int:
    """Return the function of one state: a bit set of its edges that take the row; or the bit set itself."""
    emitter = Emitter()
    names: dict[int, str] = {}

    def test(variable: int, holds: bool, *, certain: bool) -> str:
        if variable in names:
            code = names[variable]
        else:
            condition = conditions.get(variable, TRUE)
            if condition is TRUE:
                return "1" if holds else "0"
            emitter.spans = Spans(current, variable, least)
            code = emitter.truth(condition)
            if certain:
                names[variable] = emitter.temporary()
                code = f"({names[variable]} := {code})"
        return code if holds else f"(not {code})"

    parts: list[str] = []
    for index, take in enumerate(takes):
        # Only the first test of an edge is always evaluated, so that its value may be used again.
        tests = [test(each.variable, each.holds, certain=n == 0) for n, each in enumerate(take.tests)]
        bits: str = str(1 << 2 * index)
        if take.completes:
            ways = [
                " and ".join(test(each.variable, each.holds, certain=False) for each in way) or "1"
                for way in take.completes
            ]
            bits = f"({3 << 2 * index} if {' or '.join(f'({way})' for way in ways)} else {bits})"
        parts.append(f"({bits} if {' and '.join(tests)} else 0)")
    function = generate(" | ".join(parts), PATTERN, emitter, at)
    tested = {each.variable for take in takes for way in (take.tests, *take.completes) for each in way}
    return function if tested & conditions.keys() else int(function(*[None] * len(PATTERN)))


def _measure_functions(
    automaton: Automaton, contexts: list[set[int]], measures: list[Typed], least: tuple[int, ...], at: TextPosition
) -> dict[int, Function]:
    ends = {take.variable + 1 for takes in automaton.states for take in takes if take.target is None or take.completes}
    return {known: pattern_values(measures, Spans(known - 1, None, least), at) for known in sorted(ends)}
