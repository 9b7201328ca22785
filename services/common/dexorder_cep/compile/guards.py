"""Guards: a comparison of a column with a number without which a condition does not hold. Pure.

A condition that is such a comparison, or a conjunction that starts with one, is false while its guard is false, and
nothing else of it is evaluated then. So triggers are found by their thresholds (``dexorder_cep.run.thresholds``).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from dexorder_cep.compile.automaton import Automaton
from dexorder_cep.compile.typed import TICKER_SLOT, Apply, ColumnValue, Constant, PatternValue, Typed

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Guard(NamedTuple):
    """Comparison of a column of the newest row with a number; it is false for NULL and NaN.

    Attributes:
        slot: The column.
        operator: ``<``, ``<=``, ``>`` or ``>=``, with the column on its left.
        threshold: The number.
        exact: Whether it is the whole condition.
    """

    slot: int
    operator: str
    threshold: Any
    exact: bool


def guard_of(condition: Typed, candidate: int | None = None) -> Guard | None:
    """Return the guard of a condition, or None if it has none.

    Args:
        condition: Of single rows, or of a pattern's variable.
        candidate: The variable, if the newest row is examined for it.
    """
    exact = True
    while isinstance(condition, Apply) and condition.operator == "AND":
        condition, exact = condition.operands[0], False
    if not isinstance(condition, Apply) or condition.operator not in _FLIPPED:
        return None
    left, right = condition.operands
    operator = condition.operator
    if isinstance(left, Constant):
        left, right, operator = right, left, _FLIPPED[operator]
    slot = _slot(left, candidate)
    if slot is None or not left.type.is_number or not isinstance(right, Constant):
        return None
    value = right.value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value:
        return None
    return Guard(slot, operator, value, exact)


def guard_of_start(automaton: Automaton, conditions: dict[int, Typed]) -> Guard | None:
    """Return the guard without which no match of a pattern starts, or None if it has none."""
    takes = automaton.states[automaton.start]
    if len(takes) != 1 or not takes[0].tests or not takes[0].tests[0].holds:
        return None
    variable = takes[0].tests[0].variable
    return guard_of(conditions[variable], variable) if variable in conditions else None


def _slot(value: Typed, candidate: int | None) -> int | None:
    """Return the slot of a value that is a column of the newest row; None for others."""
    if isinstance(value, ColumnValue):
        return value.slot if value.slot != TICKER_SLOT else None
    if not isinstance(value, PatternValue) or candidate is None:
        return None
    reference = value.reference
    is_newest = reference.variable in (None, candidate) and (reference.end, reference.offset) == ("last", 0)
    return reference.slot if is_newest and not reference.previous and reference.slot != TICKER_SLOT else None
