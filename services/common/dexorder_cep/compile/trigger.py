"""Compilation of a trigger: text and parameters to a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dexorder_cep.compile.alerts import Shape, number_of, read_alert, sign_of, with_number
from dexorder_cep.compile.binder import bind_condition
from dexorder_cep.compile.code import Function, row_predicate, row_values
from dexorder_cep.compile.guards import Guard, guard_of
from dexorder_cep.compile.match_query import compile_match
from dexorder_cep.compile.message import Message, check_message
from dexorder_cep.compile.parameters import NAMES, Fire, Parameters, check_parameters, is_running
from dexorder_cep.compile.plans import PatternPlan, PlainPlan, Plan, Projection, ResultColumn, RowStep, Step, WindowStep
from dexorder_cep.compile.relations import Relation, RowQuery, compile_query, compile_relation, project
from dexorder_cep.compile.scopes import RowScope
from dexorder_cep.compile.tables import Source
from dexorder_cep.compile.typed import Apply, Constant, Typed, TypedColumn
from dexorder_cep.compile.types import BOOLEAN, DOUBLE
from dexorder_cep.language import syntax
from dexorder_cep.language.parser import parse
from dexorder_cep.language.refusals import MAX_LOOKBACK, MAX_MERGES, InvalidSql, TextPosition, refuse
from dexorder_cep.language.tokens import tokenize
from dexorder_cep.language.values import described, with_values


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
        message: Template of the message of a firing; None without one.
        plan: How it is evaluated.
        shape: Shape of an alert whose text and parameters follow from it and the number; None for other triggers.
        first: The alert of which it is a copy with another number; None without one.
    """

    sql: str
    given: Mapping[str, str]
    source: Source
    period_seconds: int
    columns: tuple[ResultColumn, ...]
    parameters: Parameters
    message: Message | None
    plan: Plan = field(repr=False)
    shape: Shape | None = None
    first: CompiledTrigger | None = None

    def with_number(self, number: float) -> CompiledTrigger:
        """Return the alert of the same shape with another number, which has its sign."""
        assert self.shape is not None
        sql, given = self.shape.text(abs(number))
        return replace(self, sql=sql, given=given or _NONE, plan=with_number(self.plan, number), first=self)

    @property
    def number(self) -> float:
        """Number of an alert with a shape, with its sign."""
        return number_of(self.plan)

    @property
    def guard(self) -> Guard | None:
        """Comparison without which a condition does not hold; None for a pattern."""
        return self.plan.guard if isinstance(self.plan, PlainPlan) else None

    @property
    def follows_newest(self) -> bool:
        """Whether the state of an alert after a row depends on this row alone, and changes only with its guard."""
        guard, parameters = self.guard, self.parameters
        if self.shape is None or guard is None or not guard.exact or self.plan.steps or self.is_running:
            return False
        return parameters.fire != "level" and parameters.initial == "arm"

    @property
    def is_running(self) -> bool:
        """True for a condition on the running candle, which is evaluated at every trade."""
        return is_running(self.period_seconds, self.parameters.on)

    @property
    def looks_back(self) -> bool:
        """True for a condition on rows with OVER or LAG."""
        return any(step.over for step in self.plan.steps if isinstance(step, RowStep))

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        """Slots by which rows of one time are sorted."""
        return self.plan.order if isinstance(self.plan, PatternPlan) else ()


def compile_trigger(sql: str, parameters: Mapping[str, str]) -> CompiledTrigger:
    """Check the text and the parameters of a trigger and compile it.

    Raises:
        InvalidSql: The text or a parameter is refused.
    """
    alert = read_alert(sql, parameters)
    first = _FIRST.get(alert.shape) if alert is not None else None
    if alert is not None and first is not None:
        number = math.copysign(alert.number, first.number)
        if alert.follows:
            return first.with_number(number)
        plan = with_number(first.plan, number)
        return replace(first, sql=sql, given=dict(parameters) or _NONE, plan=plan, shape=None)
    found = _compile_text(sql, parameters)
    if alert is not None and sign_of(found.plan, alert.number) is not None:
        if len(_FIRST) == _MAX_SHAPES:
            del _FIRST[next(iter(_FIRST))]
        first = _FIRST[alert.shape] = replace(found, shape=alert.shape)
        return first if alert.follows else found
    return found


def find_alert(sql: str, parameters: Mapping[str, str]) -> tuple[CompiledTrigger, float] | None:
    """Return the first alert of the shape of a text, and the text's number with its sign.

    None for a text that does not follow from both, or without such an alert.
    """
    alert = read_alert(sql, parameters)
    first = _FIRST.get(alert.shape) if alert is not None and alert.follows else None
    return (first, math.copysign(alert.number, first.number)) if alert is not None and first is not None else None


_FIRST: dict[Shape, CompiledTrigger] = {}
"""The first alert of each shape."""
_MAX_SHAPES = 1_024
_NONE: Mapping[str, str] = {}


def _compile_text(sql: str, parameters: Mapping[str, str]) -> CompiledTrigger:
    try:
        return _compile(sql, read_text(sql, parameters), parameters)
    except RecursionError:
        raise InvalidSql(1, 1, "the text is nested too deeply") from None
    except InvalidSql as error:
        values = _values(parameters)
        if not values or not error.line:
            raise
        raise InvalidSql(error.line, error.column, f"{error.reason} (with {described(values)})") from None


def read_text(sql: str, parameters: Mapping[str, str]) -> syntax.Select:
    """Return the syntax tree of a text with the values of its parameters; InvalidSql if it is refused."""
    return parse(with_values(tokenize(sql), _values(parameters), NAMES))


def _values(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that are values in the text."""
    return {name: value for name, value in parameters.items() if name not in NAMES}


def _compile(sql: str, select: syntax.Select, given: Mapping[str, str]) -> CompiledTrigger:
    match select.source:
        case syntax.Match():
            relation = compile_relation(select.source.table, None)
            table = relation.table
            parameters = check_parameters(given, table.source, table.period_seconds, "edge", final_rows="a pattern")
            plan: Plan = _pattern(select, select.source, relation)
        case _:
            query = compile_query(select)
            relation = query.relation
            fire: Fire = "level" if relation.windowed else "edge"
            table, final_rows = relation.table, "a window" if relation.windowed else None
            parameters = check_parameters(given, table.source, table.period_seconds, fire, final_rows=final_rows)
            plan = _plain(select, query, parameters)
    _check_cost(plan.steps, select.at)
    columns = tuple(ResultColumn(each.name, each.type.flink_name()) for each in plan.projection.columns)
    source = relation.table.source
    message = check_message(given["message"], columns) if "message" in given else None
    return CompiledTrigger(sql, dict(given), source, parameters.period_seconds, columns, parameters, message, plan)


def _check_cost(steps: tuple[Step, ...], at: TextPosition) -> None:
    """Refuse OVER and windows that need too much for each row or window."""
    rows = sum(column.rows for step in steps if isinstance(step, RowStep) for column in step.over if not column.lag)
    if rows > MAX_LOOKBACK:
        raise refuse(at, f"the columns with OVER have {rows} rows together; the limit is {MAX_LOOKBACK}")
    for step in steps:
        if isinstance(step, WindowStep):
            merges = step.size_ns // step.slice_ns * len(step.aggregates)
            if merges > MAX_MERGES:
                raise refuse(
                    at,
                    f"a window of {step.size_ns // step.slice_ns} steps with {len(step.aggregates)} aggregates needs "
                    f"{merges} steps; the limit is {MAX_MERGES}",
                )


def _pattern(select: syntax.Select, match: syntax.Match, relation: Relation) -> PatternPlan:
    query = compile_match(match, relation.columns)
    if query.order and relation.steps:
        raise refuse(match.at, "ORDER BY of more columns is supported directly on a table only")
    if select.group or select.having is not None:
        raise refuse(select.at, "GROUP BY and HAVING are not supported after MATCH_RECOGNIZE")
    scope = RowScope(query.columns, select.alias)
    keeps = None
    if select.where is not None:
        condition = bind_condition(select.where, scope, "the condition of WHERE")
        keeps = row_predicate(condition, select.where.at)
    projection = _projection(project(select, scope), select.at)
    return PatternPlan(relation.steps, query.plan, query.order, keeps, projection)


def _plain(select: syntax.Select, query: RowQuery, parameters: Parameters) -> PlainPlan:
    rearmed = _rearmed(query.condition, parameters.rearm_percent, query.at) if parameters.rearm_percent else None
    condition = row_predicate(query.condition, query.at)
    projection = _projection(query.projected, select.at)
    guard = guard_of(query.condition)
    return PlainPlan(query.relation.steps, condition, rearmed, query.filtered, projection, guard)


def _projection(projected: tuple[tuple[str, Typed], ...], at: TextPosition) -> Projection:
    columns = tuple(TypedColumn(name, value.type, slot) for slot, (name, value) in enumerate(projected))
    return Projection(columns, row_values([value for _, value in projected], at))


def _rearmed(condition: Typed, percent: float, at: TextPosition) -> Function:
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


def plain_value(value: Any) -> Any:
    """Return a value for an event: DECIMAL as text, everything else as it is."""
    return value if value is None or isinstance(value, int | float | str) else format(value, "f")
