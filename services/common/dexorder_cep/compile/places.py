"""Places: patterns in which each row of a match has one place, variables without a quantifier or with ``{n}``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dexorder_cep.compile.automaton import Automaton
from dexorder_cep.compile.code import Function


class Place(NamedTuple):
    """Row of a match.

    Attributes:
        number: Its number, from 0.
        state: State of the automaton before the row.
        starts: Number of the first row of each variable that has rows before it.
        step: Test of the row, or its result if that does not depend on the row.
    """

    number: int
    state: int
    starts: tuple[int, ...]
    step: Function | int


def places_of(automaton: Automaton, steps: tuple[Mapping[int, Function | int], ...]) -> tuple[Place, ...]:
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
