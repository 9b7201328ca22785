"""Names and functions that expressions over single rows, and those in MEASURES and DEFINE, may use. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from dexorder_cep.compile.binder import bind
from dexorder_cep.compile.functions import AGGREGATES, MORE_AGGREGATES, aggregate_type
from dexorder_cep.compile.tables import TIME_SLOT
from dexorder_cep.compile.typed import (
    Apply,
    ColumnValue,
    MatchRowtime,
    PatternAggregate,
    PatternValue,
    Reference,
    Typed,
    TypedColumn,
    walk,
)
from dexorder_cep.compile.types import BIGINT, ROWTIME, WINDOW_TIME
from dexorder_cep.language import syntax
from dexorder_cep.language.refusals import MAX_OFFSET, refuse


class RowScope:
    """Columns of a relation, by name or qualified with the relation's name or alias."""

    def __init__(self, columns: tuple[TypedColumn, ...], *names: str | None) -> None:
        self.columns = columns
        self._columns = {column.name: column for column in columns}
        self._names = {name for name in names if name}

    def value(self, column: TypedColumn) -> Typed:
        """Return the value of a column of the current row."""
        return ColumnValue(column.slot, column.type)

    def column(self, name: syntax.Name) -> Typed:
        """Return the value of a name."""
        *qualifier, column = name.parts
        if qualifier and ".".join(qualifier) not in self._names:
            raise refuse(name.at, f"{'.'.join(qualifier)!r} is not a table of this query")
        return self.value(find_column(self._columns, column, name))

    def call(self, call: syntax.Call) -> Typed | None:
        """Return None: rows have only scalar functions."""
        return None

    def crossing(self, node: syntax.Operation) -> Typed:
        """Refuse it: one row cannot cross a value."""
        raise refuse(node.at, f"{node.operator} is accepted in WHERE of a SELECT over rows, outside of another one")


class PatternScope:
    """Names in an expression of MATCH_RECOGNIZE.

    ``A.close`` is the value of A's last row; ``close`` is the value of the last row of the match so far.
    """

    def __init__(self, columns: tuple[TypedColumn, ...], variables: dict[str, int], candidate: int | None) -> None:
        self._columns = {column.name: column for column in columns}
        self._variables = variables
        self._candidate = candidate

    def column(self, name: syntax.Name) -> Typed:
        """Return the column of a variable's last row."""
        variable, column = self._find(name)
        nullable = column.type.nullable or (variable != self._candidate and variable is not None)
        reference = Reference(variable, "last", 0, 0, column.slot)
        return PatternValue(reference, column.type.or_null(nullable))

    def _find(self, name: syntax.Name) -> tuple[int | None, TypedColumn]:
        *qualifier, column = name.parts
        if len(qualifier) > 1:
            raise refuse(name.at, f"{'.'.join(name.parts)!r} is not a column of a pattern variable")
        if qualifier and qualifier[0] not in self._variables:
            raise refuse(name.at, f"{qualifier[0]!r} is not a variable of the pattern")
        return (self._variables[qualifier[0]] if qualifier else None), find_column(self._columns, column, name)

    def call(self, call: syntax.Call) -> Typed | None:
        """Return the value of FIRST, LAST, PREV, MATCH_ROWTIME or an aggregate."""
        if call.over is not None:
            raise refuse(call.over.at, "OVER is not accepted in MATCH_RECOGNIZE")
        if call.name in ("FIRST", "LAST"):
            return self._navigation(call, "first" if call.name == "FIRST" else "last")
        if call.name == "PREV":
            return self._previous(call)
        if call.name == "MATCH_ROWTIME":
            return self._rowtime(call)
        if call.name in AGGREGATES:
            return self._aggregate(call)
        if call.name in MORE_AGGREGATES:
            raise refuse(call.at, f"{call.name} is not supported in MATCH_RECOGNIZE")
        return None

    def crossing(self, node: syntax.Operation) -> Typed:
        """Refuse it: a pattern compares rows itself."""
        raise refuse(node.at, f"{node.operator} is not accepted in MATCH_RECOGNIZE; compare with PREV")

    def _rowtime(self, call: syntax.Call) -> Typed:
        """Return the time of the match: TIMESTAMP, or with the time column as argument its own type."""
        if self._candidate is not None:
            raise refuse(call.at, "MATCH_ROWTIME is accepted in MEASURES only")
        if not call.arguments and not call.star:
            return MatchRowtime(WINDOW_TIME)
        column = call.arguments[0] if len(call.arguments) == 1 else None
        if not isinstance(column, syntax.Name) or self._find(column)[1].slot != TIME_SLOT:
            raise refuse(call.at, "MATCH_ROWTIME takes no argument or the time column ts")
        return MatchRowtime(ROWTIME)

    def _navigation(self, call: syntax.Call, end: Literal["first", "last"]) -> Typed:
        offset = offset_of(call, 0)
        inner = bind(call.arguments[0], self)
        self._one_variable(inner, call)

        def move(reference: Reference) -> Reference:
            return reference._replace(end=end, offset=offset)

        return _map(inner, move)

    def _previous(self, call: syntax.Call) -> Typed:
        offset = offset_of(call, 1)
        inner = bind(call.arguments[0], self)

        def move(reference: Reference) -> Reference:
            return reference._replace(previous=reference.previous + offset)

        found = _map(inner, move)
        for node in walk(found):
            if isinstance(node, PatternValue) and node.reference.previous > MAX_OFFSET:
                raise refuse(call.at, f"the offset of PREV is at most {MAX_OFFSET}")
        return found

    def _one_variable(self, inner: Typed, call: syntax.Call) -> int | None:
        found: set[int | None] = set()
        for node in walk(inner):
            if isinstance(node, PatternAggregate | MatchRowtime):
                raise refuse(call.at, f"{call.name} of an aggregate is not supported")
            if isinstance(node, PatternValue):
                if (node.reference.end, node.reference.offset, node.reference.previous) != ("last", 0, 0):
                    raise refuse(
                        call.at, f"{call.name} takes columns; FIRST, LAST and PREV inside it are not supported"
                    )
                found.add(node.reference.variable)
        if len(found) > 1:
            raise refuse(call.at, f"{call.name} must refer to one variable of the pattern")
        if not found and call.name in ("FIRST", "LAST"):
            raise refuse(call.at, f"{call.name} takes a column of a variable")
        return next(iter(found), None)

    def _aggregate(self, call: syntax.Call) -> Typed:
        if counts_rows(call):
            return PatternAggregate("COUNT", None, None, BIGINT)
        inner = bind(call.arguments[0], self)
        variable = self._one_variable(inner, call)
        argument = _of_row(inner, self._columns)
        if call.name in ("SUM", "AVG") and not argument.type.is_number:
            raise refuse(call.at, f"{call.name} takes a number, not {argument.type.flink_name()}")
        if argument.type.base == "NULL":
            raise refuse(call.at, f"{call.name} of NULL is not accepted")
        kind = aggregate_type(call.name, argument.type, may_be_empty=True)
        return PatternAggregate(call.name, variable, argument, kind)


def find_column(columns: dict[str, TypedColumn], wanted: str, name: syntax.Name) -> TypedColumn:
    """Return a column by its name, or raise InvalidSql."""
    if wanted in columns:
        return columns[wanted]
    same = next((each for each in columns if each.lower() == wanted.lower()), None)
    hint = f"; names have upper and lower case: write {same!r}" if same else f"; columns are {', '.join(columns)}"
    raise refuse(name.at, f"column {wanted[:60]!r} does not exist{hint}")


def counts_rows(call: syntax.Call) -> bool:
    """Return whether an aggregate is COUNT(*), or raise InvalidSql unless it has one argument."""
    if call.distinct:
        raise refuse(call.at, f"DISTINCT is not supported in {call.name}")
    if call.star and call.name != "COUNT":
        raise refuse(call.at, f"{call.name}(*) does not exist")
    if not call.star and len(call.arguments) != 1:
        raise refuse(call.at, f"{call.name} takes 1 argument, not {len(call.arguments)}")
    return call.star


def offset_of(call: syntax.Call, default: int, least: int = 0) -> int:
    """Return the number of rows in FIRST, LAST, PREV or LAG of a value, or raise InvalidSql."""
    if not 1 <= len(call.arguments) <= 2 or call.star or call.distinct:
        raise refuse(call.at, f"{call.name} takes a value and, optionally, a number of rows")
    if len(call.arguments) == 1:
        return default
    number = call.arguments[1]
    if not isinstance(number, syntax.Number) or not number.text.isdigit():
        raise refuse(number.at, f"the offset of {call.name} must be a whole number")
    if len(number.text) > 6 or not least <= int(number.text) <= MAX_OFFSET:
        raise refuse(number.at, f"the offset of {call.name} is {least} to {MAX_OFFSET}")
    return int(number.text)


def _map(tree: Typed, move: Callable[[Reference], Reference]) -> Typed:
    """Return a tree with moved references to rows; a row that does not exist is NULL."""
    if isinstance(tree, PatternValue):
        return PatternValue(move(tree.reference), tree.type.or_null())
    if isinstance(tree, Apply):
        operands = tuple(_map(each, move) for each in tree.operands)
        nullable = tree.type.nullable or (
            not tree.operator.startswith("IS") and any(each.type.nullable for each in operands)
        )
        return replace(tree, operands=operands, type=tree.type.or_null(nullable))
    return tree


def _of_row(tree: Typed, columns: dict[str, TypedColumn]) -> Typed:
    """Return the argument of an aggregate: its columns are the row's."""
    if isinstance(tree, PatternValue):
        kind = next(each.type for each in columns.values() if each.slot == tree.reference.slot)
        return ColumnValue(tree.reference.slot, kind)
    if isinstance(tree, Apply):
        return replace(tree, operands=tuple(_of_row(each, columns) for each in tree.operands))
    return tree
