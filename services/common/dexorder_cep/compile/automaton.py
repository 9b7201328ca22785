"""Automaton of a PATTERN, built as Flink's NFACompiler builds it. Pure.

Flink makes states from the last variable to the first. A greedy loop adds "and not the loop's condition" to every
edge of the state after it, which is why a greedy loop never gives a row back. ``A{2,3}`` is a chain of states; ``A+``
is a state that takes the first row and a looping one.
"""

from __future__ import annotations

from typing import NamedTuple

from dexorder_cep.language.refusals import MAX_STATES, refuse
from dexorder_cep.language.syntax import Quantified


class Test(NamedTuple):
    """Condition of a variable that must hold, or must not."""

    variable: int
    holds: bool


class Take(NamedTuple):
    """Edge that takes a row.

    Attributes:
        variable: Variable that gets the row.
        tests: Conditions on the row, all of them.
        target: State after it; None after the last row of the pattern.
        completes: Tests under each of which (any one) the match is complete, although it may continue from ``target``.
    """

    variable: int
    tests: tuple[Test, ...]
    target: int | None
    completes: tuple[tuple[Test, ...], ...]


class Automaton(NamedTuple):
    """States by number, each with its edges in Flink's order, and the number of the first."""

    states: tuple[tuple[Take, ...], ...]
    start: int


class _State:
    """State under construction: edges are (taken variable or None for an empty step, target, tests)."""

    def __init__(self) -> None:
        self.edges: list[_Edge] = []


class _Edge:
    def __init__(self, variable: int | None, target: _State, tests: list[Test]) -> None:
        self.variable = variable
        self.target = target
        self.tests = tests


def build(pattern: tuple[Quantified, ...]) -> Automaton:
    """Return the automaton of a pattern.

    Raises:
        InvalidSql: It has more than ``MAX_STATES`` states.
    """
    needed = sum(max(each.least, each.most or 0) + 1 for each in pattern)
    if needed > MAX_STATES:
        raise refuse(pattern[0].at, f"the pattern needs {needed} states; the limit is {MAX_STATES}")
    final = _State()
    states: list[_State] = []
    sink = final
    for variable in reversed(range(len(pattern))):
        sink = _variable(pattern[variable], variable, sink, states)
    numbers = {id(state): number for number, state in enumerate(states)}
    flat = tuple(tuple(_takes(state, numbers, final)) for state in states)
    return Automaton(flat, numbers[id(sink)])


def is_greedy(each: Quantified) -> bool:
    """Return whether Flink makes a quantifier greedy: a fixed number and ``?`` are not."""
    fixed = each.least == each.most
    return each.written and not each.reluctant and not fixed and (each.least, each.most) != (0, 1)


def _variable(each: Quantified, variable: int, sink: _State, states: list[_State]) -> _State:
    greedy, optional = is_greedy(each), each.least == 0
    if each.most is None:
        if greedy:
            _refuse_loop(sink, variable)
        loop = _new(states)
        loop.edges.append(_Edge(None, sink, []))
        loop.edges.append(_Edge(variable, loop, [Test(variable, True)]))
        least = most = max(each.least, 1)
        return _chain(variable, least, most, optional, loop, sink, states)
    if greedy:
        _refuse_loop(sink, variable)
    return _chain(variable, max(each.least, 1), each.most, optional, sink, sink, states)


def _chain(
    variable: int, least: int, most: int, optional: bool, after: _State, proceed: _State, states: list[_State]
) -> _State:
    last = after
    for _ in range(least, most):
        last = _single(variable, last, proceed, states)
    for _ in range(least - 1):
        last = _single(variable, last, None, states)
    return _single(variable, last, proceed if optional else None, states)


def _single(variable: int, after: _State, proceed: _State | None, states: list[_State]) -> _State:
    state = _new(states)
    state.edges.append(_Edge(variable, after, [Test(variable, True)]))
    if proceed is not None:
        state.edges.append(_Edge(None, proceed, []))
    return state


def _new(states: list[_State]) -> _State:
    state = _State()
    states.append(state)
    return state


def _refuse_loop(sink: _State, variable: int) -> None:
    for edge in sink.edges:
        edge.tests = [*edge.tests, Test(variable, False)]


def _takes(state: _State, numbers: dict[int, int], final: _State) -> list[Take]:
    """Return the edges that a row may take, empty steps included, in the order of Flink's decision graph."""
    found: list[Take] = []
    waiting: list[tuple[_State, tuple[Test, ...]]] = [(state, ())]
    while waiting:
        current, tests = waiting.pop()
        for edge in current.edges:
            together = tuple(dict.fromkeys((*tests, *edge.tests)))
            if edge.variable is None:
                waiting.append((edge.target, together))
            elif edge.target is final:
                found.append(Take(edge.variable, together, None, ()))
            else:
                target = edge.target
                found.append(Take(edge.variable, together, numbers[id(target)], _completions(target, final)))
    return found


def _completions(state: _State, final: _State) -> tuple[tuple[Test, ...], ...]:
    found: list[tuple[Test, ...]] = []
    waiting: list[tuple[_State, tuple[Test, ...]]] = [(state, ())]
    while waiting:
        current, tests = waiting.pop()
        for edge in current.edges:
            if edge.variable is None:
                together = tuple(dict.fromkeys((*tests, *edge.tests)))
                if edge.target is final:
                    found.append(together)
                else:
                    waiting.append((edge.target, together))
    return tuple(found)
