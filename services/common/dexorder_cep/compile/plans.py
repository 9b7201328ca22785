"""Plans: a compiled trigger as values that ``dexorder_cep.run`` evaluates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from dexorder_cep.compile.aggregates import WindowAggregate
from dexorder_cep.compile.automaton import Automaton
from dexorder_cep.compile.code import Function
from dexorder_cep.compile.guards import Guard
from dexorder_cep.compile.typed import TypedColumn

FIRST_SLOT = 2
"""Slot of the first column of a derived row."""


class OverColumn(NamedTuple):
    """Column with OVER: an aggregate of the newest ``rows`` rows, or with ``lag`` the value ``rows`` rows before."""

    aggregate: WindowAggregate
    rows: int
    lag: bool


class RowStep(NamedTuple):
    """SELECT over rows.

    Attributes:
        keeps: Its WHERE; None keeps every row.
        over: Columns with OVER, which are appended to the row.
        values: ``f(row, ticker)``: the columns of the derived row; None leaves the row as it is.
        identity: Slot that identifies a row: the id of a trade; None for candles.
    """

    keeps: Function | None
    over: tuple[OverColumn, ...]
    values: Function | None
    identity: int | None


class WindowStep(NamedTuple):
    """GROUP BY over windows of time; its rows are time, identity, window_start, window_end, aggregates.

    Attributes:
        kind: Kind of the windows.
        slice_ns: Width of the slices of which windows consist: the size of TUMBLE, the slide of HOP, the step of
            CUMULATE.
        size_ns: Size of a window; of CUMULATE the largest one.
        keeps: WHERE of the rows.
        aggregates: Aggregates.
    """

    kind: Literal["TUMBLE", "HOP", "CUMULATE"]
    slice_ns: int
    size_ns: int
    keeps: Function | None
    aggregates: tuple[WindowAggregate, ...]


Step: TypeAlias = RowStep | WindowStep


Move: TypeAlias = tuple[int, int | None, bool]
"""Number of bounds after a row, next state (None after the last row), and whether the match is complete."""


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


class MatchPlan(NamedTuple):
    """Compiled MATCH_RECOGNIZE.

    Attributes:
        variables: Names of the pattern's variables.
        automaton: Its states.
        steps: For each state, by number of bounds: a function that returns a bit set of the edges that take the row
            (bit ``2 i``) and of the edges that also complete the match (bit ``2 i + 1``); or the bit set, if it depends
            on no condition.
        measures: By number of bounds: a function that returns the measures.
        moves: For each state, by bit set: its meaning; filled as bit sets occur.
        within_ns: Time in which a match must end; 0 for any.
        skip: How the search continues after a match.
        skip_variable: Variable to which it skips.
        weight: Nodes that are evaluated for a partial match and a row, at most.
        aggregates: Aggregates among them; their cost grows with the rows of the partial match.
        measured_weight: Nodes of the measures.
        measured_aggregates: Aggregates among them.
        reach: Rows before a match that are needed, for PREV.
        guard: Comparison without which no match starts; None without one.
        places: Rows of a match, if each has one place; else none.
        tested: Places after the first one that need a test, and the last one; the last ones first.
    """

    variables: tuple[str, ...]
    automaton: Automaton
    steps: tuple[Mapping[int, Function | int], ...]
    measures: Mapping[int, Function]
    moves: tuple[dict[int, tuple[Move, ...]], ...]
    within_ns: int
    skip: Literal["next", "past", "first", "last"]
    skip_variable: int
    weight: int
    aggregates: int
    measured_weight: int
    measured_aggregates: int
    reach: int
    guard: Guard | None
    places: tuple[Place, ...]
    tested: tuple[Place, ...]


class ResultColumn(NamedTuple):
    """Column of a trigger's rows, with Flink's name of its type, without NOT NULL."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Projection:
    """SELECT list over rows.

    Attributes:
        columns: Names and types.
        values: ``f(row, ticker)`` that returns the values of a row.
    """

    columns: tuple[TypedColumn, ...]
    values: Function


@dataclass(frozen=True, slots=True)
class PlainPlan:
    """Condition on single rows, or on windows.

    Attributes:
        steps: From the table's rows to the condition's.
        condition: ``f(row, ticker)``.
        rearmed: ``f(row, ticker)``: whether the value is far enough behind the threshold; None without ``rearm``.
        filtered: Whether a row that the last step drops is one that does not fit.
        projection: Columns of the events.
        guard: Comparison without which the condition does not hold; None without one.
    """

    steps: tuple[Step, ...]
    condition: Function
    rearmed: Function | None
    filtered: bool
    projection: Projection
    guard: Guard | None

    @property
    def rows_steps(self) -> tuple[RowStep, ...]:
        """The steps without windows: all of them, for a condition on the running candle."""
        return tuple(step for step in self.steps if isinstance(step, RowStep))


@dataclass(frozen=True, slots=True)
class PatternPlan:
    """MATCH_RECOGNIZE with the SELECT around it; ``keeps`` is its WHERE."""

    steps: tuple[Step, ...]
    match: MatchPlan
    order: tuple[tuple[int, bool], ...]
    keeps: Function | None
    projection: Projection


Plan = PlainPlan | PatternPlan
