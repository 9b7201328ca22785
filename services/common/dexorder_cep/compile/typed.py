"""Typed tree: an expression with checked names, types and functions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from dexorder_cep.compile.types import BOOLEAN, SqlType

TICKER_SLOT = -1
"""Slot of the ticker, which is not in the rows as it is the same for all of them."""

Value: TypeAlias = object
"""Value of SQL: float, int, str, bool, Decimal, or None. Points in time and intervals are ints of nanoseconds."""


class TypedColumn(NamedTuple):
    """Column of a relation; ``slot`` is its index in the row tuples."""

    name: str
    type: SqlType
    slot: int


class Reference(NamedTuple):
    """Row of a pattern variable, by logical position, and one of its columns.

    Attributes:
        variable: Index of the variable in the pattern; None for all rows of the match.
        end: Whether ``offset`` counts from the first or from the last row of the variable.
        offset: Rows from that end.
        previous: Rows before that row, of the whole stream (the extension PREV).
        slot: The column.
    """

    variable: int | None
    end: Literal["first", "last"]
    offset: int
    previous: int
    slot: int


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant value."""

    value: Value
    type: SqlType


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """Column of the current row."""

    slot: int
    type: SqlType


@dataclass(frozen=True, slots=True)
class PatternValue:
    """Column of a row of a pattern variable."""

    reference: Reference
    type: SqlType


@dataclass(frozen=True, slots=True)
class PatternAggregate:
    """Aggregate over rows of a pattern variable.

    Attributes:
        function: Its name.
        variable: Index of the variable; None for all rows of the match.
        argument: Expression over columns of the current row; None for COUNT(*).
    """

    function: str
    variable: int | None
    argument: Typed | None
    type: SqlType


@dataclass(frozen=True, slots=True)
class MatchRowtime:
    """MATCH_ROWTIME()."""

    type: SqlType


@dataclass(frozen=True, slots=True)
class Apply:
    """Operator or function with its operands."""

    operator: str
    operands: tuple[Typed, ...]
    type: SqlType


Typed: TypeAlias = Constant | ColumnValue | PatternValue | PatternAggregate | MatchRowtime | Apply

TRUE = Constant(True, BOOLEAN)


def walk(tree: Typed) -> Iterator[Typed]:
    """Yield every node of a tree, arguments of aggregates included."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Apply):
            waiting.extend(node.operands)
        elif isinstance(node, PatternAggregate) and node.argument is not None:
            waiting.append(node.argument)
