"""The parts of a trigger that may be edited while its state is kept. Pure.

The state of a trigger consists of its windows, its columns with OVER and its unfinished matches. It is the state of the
edited trigger, too, if everything that it depends on is the same: the text after FROM, aggregates, calls with OVER, the
conditions before them, the pattern with its conditions, and the parameters that choose rows. The rest, for example a
condition of single rows, depends on the newest row only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from dexorder_cep.compile.functions import AGGREGATES, MORE_AGGREGATES
from dexorder_cep.compile.plans import PatternPlan, RowStep, Step
from dexorder_cep.compile.trigger import CompiledTrigger, read_text
from dexorder_cep.language import syntax
from dexorder_cep.language.refusals import TextPosition

_OF_MATCH = {
    "table": "FROM",
    "partition": "PARTITION BY",
    "order": "ORDER BY",
    "skip": "AFTER MATCH",
    "pattern": "PATTERN",
    "within": "WITHIN",
    "define": "DEFINE",
}
_OF_WINDOWS = AGGREGATES | MORE_AGGREGATES | {"FIRST_VALUE", "LAST_VALUE"}


def differences(old: CompiledTrigger, new: CompiledTrigger) -> tuple[str, ...]:
    """Return the names of differences between two triggers that keep one from continuing with the other's state."""
    before, after = (read_text(each.sql, each.given) for each in (old, new))
    found = dict.fromkeys(_of_rows(before, after))
    found |= dict.fromkeys(_of_parameters(old, new, conditions_differ=_bare(before.where) != _bare(after.where)))
    if not found and _skeleton(old) != _skeleton(new):
        found["types of columns"] = None  # the same text over columns that have other types by now
    return tuple(found)


def _of_rows(old: syntax.Select, new: syntax.Select) -> Iterator[str]:
    """Yield the differences in the rows that a trigger keeps."""
    if isinstance(old.source, syntax.Match) and isinstance(new.source, syntax.Match):
        for name, clause in _OF_MATCH.items():
            if _bare(getattr(old.source, name)) != _bare(getattr(new.source, name)):
                yield clause
        return
    if _bare(old.source) != _bare(new.source):
        yield "FROM"
        return
    is_windows = isinstance(old.source, syntax.WindowTable)
    calls = _aggregates if is_windows else _over
    kept = [[*calls(each)] for each in (old, new)]
    if kept[0] != kept[1]:
        yield "aggregates" if is_windows else "calls with OVER"
    if is_windows and _bare(old.group) != _bare(new.group):
        yield "GROUP BY"
    if (is_windows or any(kept)) and _bare(old.where) != _bare(new.where):
        yield "WHERE"
    if [*_crossing(old.where)] != [*_crossing(new.where)]:
        yield "values of CROSSES"


def _of_parameters(old: CompiledTrigger, new: CompiledTrigger, *, conditions_differ: bool) -> Iterator[str]:
    before, after = old.parameters, new.parameters
    if old.period_seconds != new.period_seconds:
        yield "period"
    if before.delay_ms != after.delay_ms:
        yield "delay_ms"
    if before.on != after.on:
        yield "on"
    elif before.on == "bar" and before.cooldown_ns != after.cooldown_ns:
        yield "cooldown, with on=bar"
    latched = [each.fire != "level" for each in (before, after)]
    if before.rearm_percent != after.rearm_percent:
        yield "rearm"
    elif before.rearm_percent and (conditions_differ or latched[0] != latched[1]):
        yield "the condition, with rearm"


def _crossing(where: syntax.Expression | None) -> Iterator[Any]:
    """Yield the values of CROSSES of which the one of the row before is kept: all but numbers."""
    for each in syntax.parts_of(where) if where is not None else ():
        if isinstance(each, syntax.Operation) and each.operator.startswith("CROSSES"):
            yield from (None if _is_number(value) else _bare(value) for value in each.operands)


def _is_number(value: syntax.Expression) -> bool:
    if isinstance(value, syntax.Operation) and value.operator == "NEGATE":
        return isinstance(value.operands[0], syntax.Number)
    return isinstance(value, syntax.Number)


def _over(select: syntax.Select) -> Iterator[Any]:
    return _calls(select, lambda call: call.over is not None)


def _aggregates(select: syntax.Select) -> Iterator[Any]:
    return _calls(select, lambda call: call.name in _OF_WINDOWS)


def _calls(select: syntax.Select, counts: Callable[[syntax.Call], bool]) -> Iterator[Any]:
    """Yield calls in HAVING and the SELECT list in the order in which they are compiled, each with its place."""
    expressions = [select.having, *(item.expression for item in select.items)]
    parts = (each for expression in expressions if expression is not None for each in syntax.parts_of(expression))
    yield from (_bare(each) for each in parts if isinstance(each, syntax.Call) and counts(each))


def _bare(node: Any) -> Any:
    """Return a part of a syntax tree without places in the text."""
    if isinstance(node, tuple):
        return tuple(_bare(each) for each in node if not isinstance(each, TextPosition))
    if is_dataclass(node):
        return (type(node).__name__, *(_bare(getattr(node, each.name)) for each in fields(node) if each.name != "at"))
    return node


def _skeleton(trigger: CompiledTrigger) -> Any:
    """Return everything that determines the state's form: steps, types of kept values, order and reach of a pattern."""
    plan = trigger.plan
    steps = [*map(_step, plan.steps)]
    if isinstance(plan, PatternPlan):
        return steps, trigger.order, plan.match.reach
    return steps, plan.filtered


def _step(step: Step) -> Any:
    if isinstance(step, RowStep):
        over = [(each.aggregate.function, each.aggregate.type, each.rows, each.lag) for each in step.over]
        return step.keeps is None, step.values is None, over, step.identity
    return step._replace(keeps=None, aggregates=()), [(each.function, each.type) for each in step.aggregates]
