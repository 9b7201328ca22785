"""Compilation of a trigger: text and parameters to a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.common.cep import syntax
from services.common.cep.binder import bind, bind_condition
from services.common.cep.code import Function, row_predicate, row_values
from services.common.cep.match_query import compile_match
from services.common.cep.matcher import MatchPlan
from services.common.cep.outcomes import ResultColumn
from services.common.cep.parameters import Parameters, check_parameters
from services.common.cep.parser import parse
from services.common.cep.refusals import InvalidSql, Position, refuse
from services.common.cep.row_scope import RowScope
from services.common.cep.tables import Source, TableSource, find_table
from services.common.cep.typed import TRUE, Apply, Column, Constant, Typed
from services.common.cep.types import BOOLEAN, DOUBLE


@dataclass(frozen=True, slots=True)
class Projection:
    """SELECT list over rows.

    Attributes:
        columns: Names and types.
        values: ``f(row, ticker)`` that returns the values of a row.
    """

    columns: tuple[Column, ...]
    values: Function


@dataclass(frozen=True, slots=True)
class PlainPlan:
    """Plain condition on single rows.

    Attributes:
        condition: ``f(row, ticker)``.
        rearmed: ``f(row, ticker)``: whether the value is far enough behind the threshold; None without ``rearm``.
    """

    condition: Function
    rearmed: Function | None
    projection: Projection


@dataclass(frozen=True, slots=True)
class PatternPlan:
    """MATCH_RECOGNIZE with the SELECT around it; ``keeps`` is its WHERE."""

    match: MatchPlan
    order: tuple[tuple[int, bool], ...]
    keeps: Function | None
    projection: Projection


Plan = PlainPlan | PatternPlan


@dataclass(frozen=True, slots=True)
class CompiledTrigger:
    """Checked trigger.

    Attributes:
        sql: Its text.
        given: Its parameters as received.
        source: Table that it reads.
        period_seconds: Period of the candles; 0 for trades.
        columns: Columns of its events.
        parameters: Its parameters, checked.
        plan: How it is evaluated.
    """

    sql: str
    given: Mapping[str, str]
    source: Source
    period_seconds: int
    columns: tuple[ResultColumn, ...]
    parameters: Parameters
    plan: Plan = field(repr=False)

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        """Slots by which rows of one time are sorted."""
        return self.plan.order if isinstance(self.plan, PatternPlan) else ()


def compile_trigger(sql: str, parameters: Mapping[str, str]) -> CompiledTrigger:
    """Check the text and the parameters of a trigger and compile it.

    Raises:
        InvalidSql: The text or a parameter is refused.
    """
    try:
        select = parse(sql)
        return _compile(sql, select, parameters)
    except RecursionError:
        raise InvalidSql(1, 1, "the text is nested too deeply") from None


def _compile(sql: str, select: syntax.Select, given: Mapping[str, str]) -> CompiledTrigger:
    if select.group or select.having is not None:
        at = select.having.at if select.having is not None else select.group[0].at
        raise refuse(
            at, "GROUP BY and HAVING need a window: FROM TABLE(TUMBLE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL ...))"
        )
    if isinstance(select.source, syntax.Match):
        table = _base(select.source.table)
        parameters = check_parameters(given, table.source, table.period_seconds, "edge")
        plan: Plan = _pattern(select, select.source, table)
    else:
        table = _base(select.source)
        parameters = check_parameters(given, table.source, table.period_seconds, "edge")
        plan = _plain(select, table, parameters)
    columns = tuple(ResultColumn(each.name, each.type.flink_name()) for each in plan.projection.columns)
    return CompiledTrigger(sql, dict(given), table.source, parameters.period_seconds, columns, parameters, plan)


def _base(relation: syntax.Relation) -> TableSource:
    if isinstance(relation, syntax.Table):
        return find_table(relation)
    raise refuse(relation.at, "a derived table or window is not supported yet")


def _pattern(select: syntax.Select, match: syntax.Match, table: TableSource) -> PatternPlan:
    query = compile_match(match, table.columns)
    scope = RowScope(query.columns, select.alias)
    keeps = None
    if select.where is not None:
        condition = bind_condition(select.where, scope, "the condition of WHERE")
        keeps = row_predicate(condition, select.where.at)
    return PatternPlan(query.plan, query.order, keeps, project(select, scope))


def _plain(select: syntax.Select, table: TableSource, parameters: Parameters) -> PlainPlan:
    names = (select.alias, select.source.name) if isinstance(select.source, syntax.Table) else (select.alias,)
    scope = RowScope(table.columns, *names)
    condition: Typed = TRUE
    at = select.at
    if select.where is not None:
        condition = bind_condition(select.where, scope, "the condition of WHERE")
        at = select.where.at
    rearmed = _rearmed(condition, parameters.rearm_percent, at) if parameters.rearm_percent else None
    return PlainPlan(row_predicate(condition, at), rearmed, project(select, scope))


def _rearmed(condition: Typed, percent: float, at: Position) -> Function:
    """Return the test of whether a value is behind its threshold by a part of the threshold."""
    if not isinstance(condition, Apply) or condition.operator not in ("<", "<=", ">", ">="):
        raise refuse(at, "rearm needs a condition of one comparison, as close > 100")
    value, threshold = condition.operands
    if not value.type.is_number:
        raise refuse(at, "rearm needs a comparison of numbers")
    kind = DOUBLE.or_null()
    distance = Apply(
        "*",
        (
            Apply("ABS", (Apply("CAST", (threshold,), kind),), kind),
            Constant(percent / 100.0, DOUBLE),
        ),
        kind,
    )
    above = condition.operator[0] == ">"
    limit = Apply("-" if above else "+", (Apply("CAST", (threshold,), kind), distance), kind)
    test = Apply("<=" if above else ">=", (Apply("CAST", (value,), kind), limit), BOOLEAN.or_null())
    return row_predicate(test, at)


def project(select: syntax.Select, scope: RowScope) -> Projection:
    """Return the SELECT list of a query over rows; columns without a name are ``EXPR$n``, as Flink names them."""
    columns: list[Column] = []
    values: list[Typed] = []
    taken: set[str] = set()

    def add(name: str, value: Typed) -> None:
        unique, number = name, 0
        while unique in taken:
            unique, number = f"{name}{number}", number + 1
        taken.add(unique)
        columns.append(Column(unique, value.type, len(columns)))
        values.append(value)

    for index, item in enumerate(select.items):
        if item.expression is None:
            for column in scope.columns:
                add(column.name, scope.value(column))
            continue
        value = bind(item.expression, scope)
        default = item.expression.parts[-1] if isinstance(item.expression, syntax.Name) else f"EXPR${index}"
        if value.type.base == "NULL":
            raise refuse(item.at, "a column of NULL has no type; write CAST(NULL AS DOUBLE)")
        add(item.alias or default, value)
    return Projection(tuple(columns), row_values(values, select.at))


def plain_value(value: Any) -> Any:
    """Return a value for an event: DECIMAL as text, everything else as it is."""
    return value if value is None or isinstance(value, int | float | str) else format(value, "f")
