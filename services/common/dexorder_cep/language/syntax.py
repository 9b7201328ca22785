"""Syntax tree of a trigger's text, before names and types are known. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dexorder_cep.language.refusals import TextPosition


@dataclass(frozen=True, slots=True)
class Number:
    """Number as written: ``1`` is an INT or BIGINT, ``1.5`` a DECIMAL, ``1e3`` a DOUBLE."""

    text: str
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Text:
    """String literal."""

    value: str
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Keyword:
    """TRUE, FALSE or NULL."""

    value: bool | None
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Interval:
    """INTERVAL literal of days to seconds, in milliseconds; ``months`` is set for years and months."""

    milliseconds: int
    months: bool
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Timestamp:
    """TIMESTAMP literal, in milliseconds since 1970."""

    milliseconds: int
    precision: int
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Name:
    """Column, possibly qualified: ``close``, ``A.close``."""

    parts: tuple[str, ...]
    at: TextPosition


@dataclass(frozen=True, slots=True)
class TypeName:
    """Target of a CAST: ``DECIMAL(10, 2)``."""

    name: str
    arguments: tuple[int, ...]
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Frame:
    """OVER clause: PARTITION BY and ORDER BY, and the rows before the current one (None without ROWS)."""

    partition: tuple[Expression, ...]
    order: tuple[Expression, ...]
    preceding: int | None
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a function; ``star`` is COUNT(*)."""

    name: str
    arguments: tuple[Expression, ...]
    at: TextPosition
    star: bool = False
    distinct: bool = False
    over: Frame | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """Operator with its operands.

    AND and OR have all operands of a chain. CROSSES ABOVE and CROSSES BELOW have the two values. CASE has condition,
    value, condition, value, ..., ELSE. ``type_name`` is the target of CAST.
    """

    operator: str
    operands: tuple[Expression, ...]
    at: TextPosition
    type_name: TypeName | None = None


Expression: TypeAlias = Number | Text | Keyword | Interval | Timestamp | Name | Call | Operation


def names_in(expression: Expression) -> Iterator[Name]:
    """Yield the names in an expression, except the names in OVER."""
    for each in parts_of(expression):
        if isinstance(each, Name):
            yield each


def parts_of(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions in it, from left to right, except the expressions in OVER."""
    waiting = [expression]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, Operation):
            waiting.extend(reversed(each.operands))
        elif isinstance(each, Call):
            waiting.extend(reversed(each.arguments))


@dataclass(frozen=True, slots=True)
class SelectItem:
    """Column of a SELECT; ``expression`` is None for ``*``."""

    expression: Expression | None
    alias: str | None
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Table:
    """Name of a table."""

    name: str
    at: TextPosition


@dataclass(frozen=True, slots=True)
class WindowTable:
    """TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), sizes...)); sizes in milliseconds."""

    kind: Literal["TUMBLE", "HOP", "CUMULATE"]
    table: Relation
    time_column: str
    sizes: tuple[int, ...]
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Quantified:
    """Variable of a PATTERN with its quantifier; ``most`` is None without an upper limit."""

    variable: str
    least: int
    most: int | None
    reluctant: bool
    written: bool
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Skip:
    """AFTER MATCH SKIP: to the next row, past the last row, or to the first or last row of a variable."""

    mode: Literal["next", "past", "first", "last"]
    variable: str
    at: TextPosition


@dataclass(frozen=True, slots=True)
class Match:
    """MATCH_RECOGNIZE clause."""

    table: Relation
    partition: tuple[Expression, ...]
    order: tuple[tuple[Expression, bool], ...]
    measures: tuple[tuple[Expression, str], ...]
    skip: Skip
    pattern: tuple[Quantified, ...]
    within: Interval | None
    define: tuple[tuple[str, Expression, TextPosition], ...]
    at: TextPosition


Relation: TypeAlias = "Table | WindowTable | Match | Select"


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT statement or derived table."""

    items: tuple[SelectItem, ...]
    source: Relation
    alias: str | None
    where: Expression | None
    group: tuple[Expression, ...]
    having: Expression | None
    at: TextPosition
