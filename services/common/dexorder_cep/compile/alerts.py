"""Alerts: a trigger whose text differs from an earlier one in one number is made from the earlier one. Pure.

A shape is a text without its one number, with the parameters. The first trigger of a shape is compiled from its text.
If the number is in the condition alone, as a DOUBLE, later ones are copies with another number: their texts are not
parsed, and their code is the same. All other texts are compiled as they are.

A text with a number as a program writes it (``0.50``, not ``.5`` or ``007``) follows from its shape and the number, so
that a registration keeps the number alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple

from dexorder_cep.compile.parameters import NAMES
from dexorder_cep.compile.plans import PlainPlan, Plan, RowStep

_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
_IN_TEXT = re.compile(rf"(?<![\w.$])({_NUMBER})(?![\w.$])", re.ASCII)
_VALUE = re.compile(rf"(-?)({_NUMBER})", re.ASCII)
_OTHER = re.compile(r"['\"\\]|--|/\*|(?<![A-Za-z_\d])\d", re.ASCII)
"""Signs of texts, comments and other numbers; digits in a name follow a letter."""
_NAME = re.compile(r"[A-Za-z_]+", re.ASCII)
_MAX_TEXT = 400


class Shape(NamedTuple):
    """Text without its number.

    Attributes:
        before: Text before the number; the whole text, if the number is the value of a parameter.
        after: Text after it.
        decimals: Digits of the number after its point.
        name: Parameter with the number; empty if the text has it.
        given: Parameters; the one with the number has its sign alone.
    """

    before: str
    after: str
    decimals: int
    name: str
    given: tuple[tuple[str, str], ...]

    def text(self, number: float) -> tuple[str, dict[str, str]]:
        """Return the text and the parameters with a number."""
        written = self.written(number)
        if self.name:
            return self.before, {name: each + written if name == self.name else each for name, each in self.given}
        return f"{self.before}{written}{self.after}", dict(self.given)

    def written(self, number: float) -> str:
        """Return a number as a text of this shape has it."""
        return f"{number:.{self.decimals}f}"


class AlertText(NamedTuple):
    """Shape of a text, and its number, which is positive.

    Attributes:
        follows: Whether the text follows from both.
    """

    shape: Shape
    number: float
    follows: bool


def read_alert(sql: str, given: Mapping[str, str]) -> AlertText | None:
    """Return the shape and the number of a text; None unless it has exactly one number, or one value for a name."""
    if len(sql) > _MAX_TEXT or not sql.isascii():
        return None
    parts = _IN_TEXT.split(sql)
    quoted = sql.split("`")[1::2] if "`" in sql else []
    if len(parts) > 3 or any(_OTHER.search(each) for each in parts[::2]) or not all(map(_NAME.fullmatch, quoted)):
        return None
    names = given.keys() - NAMES if given else ()
    if len(parts) == 3 and not names:
        return _text(Shape(parts[0], parts[2], _decimals(parts[1]), "", tuple(given.items())), parts[1])
    if len(parts) == 1 and len(names) == 1 and sql.count(":") == 1:
        (name,) = names
        value = _VALUE.fullmatch(given[name])
        if value is not None:
            signs = tuple((each, value[1] if each == name else text) for each, text in given.items())
            return _text(Shape(sql, "", _decimals(value[2]), name, signs), value[2])
    return None


def _decimals(written: str) -> int:
    return len(written.partition(".")[2])


def _text(shape: Shape, written: str) -> AlertText | None:
    number = float(written)
    return AlertText(shape, number, shape.written(number) == written) if number > 0 else None


def sign_of(plan: Plan, number: float) -> float | None:
    """Return the sign of a text's one number in the condition; None unless it is there, and nowhere else."""
    if not isinstance(plan, PlainPlan) or plan.rearmed is not None:
        return None
    others: list[Any] = [plan.projection.values]
    for step in plan.steps:
        if not isinstance(step, RowStep) or step.keeps is not None or step.values is not None:
            return None
        others += [each.aggregate.argument for each in step.over]
    if any(each is not None and each.__defaults__ for each in others):
        return None
    constants = _constants(plan)
    if len(constants) != 1 or type(constants[0]) is not float or abs(constants[0]) != number:
        return None
    return 1.0 if constants[0] > 0 else -1.0


def with_number(plan: Plan, value: float) -> Plan:
    """Return a plan with another number in its condition."""
    assert isinstance(plan, PlainPlan)
    known: Any = plan.condition
    condition = FunctionType(known.__code__, known.__globals__, known.__name__, (value,))
    guard = plan.guard._replace(threshold=value) if plan.guard is not None else None
    return replace(plan, condition=condition, guard=guard)


def number_of(plan: Plan) -> float:
    """Return the number of a plan of a shape, with its sign."""
    assert isinstance(plan, PlainPlan)
    number: float = _constants(plan)[0]
    return number


def _constants(plan: PlainPlan) -> tuple[Any, ...]:
    condition: Any = plan.condition
    return condition.__defaults__ or ()
