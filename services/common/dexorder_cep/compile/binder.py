"""Check of names and types: syntax tree to typed tree. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Protocol

from dexorder_cep.compile.functions import AGGREGATES, MORE_AGGREGATES, SIGNATURES, Signature
from dexorder_cep.compile.typed import Apply, Constant, Typed
from dexorder_cep.compile.types import (
    BOOLEAN,
    DOUBLE,
    INTERVAL,
    NULL,
    SqlType,
    arithmetic_type,
    common_type,
    decimal,
)
from dexorder_cep.language import syntax
from dexorder_cep.language.refusals import TextPosition, refuse

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_TIME_ARITHMETIC = ("+", "-")
_NANOSECONDS = 1_000_000
_NOT_SUPPORTED = {
    "NEXT": "NEXT is not supported; a trigger knows no later rows",
    "CLASSIFIER": "CLASSIFIER is not supported",
    "MATCH_NUMBER": "MATCH_NUMBER is not supported",
}


class Scope(Protocol):
    """Names that an expression may use."""

    def column(self, name: syntax.Name) -> Typed:
        """Return the value of a name, or raise InvalidSql."""

    def call(self, call: syntax.Call) -> Typed | None:
        """Return the value of a function that only this scope has, or None if the function is a scalar one."""

    def crossing(self, node: syntax.Operation) -> Typed:
        """Return the value of CROSSES ABOVE or CROSSES BELOW, or raise InvalidSql."""


def bind(expression: syntax.Expression, scope: Scope) -> Typed:
    """Return the typed tree of an expression.

    Raises:
        InvalidSql: A name is unknown, or a type is not accepted.
    """
    match expression:
        case syntax.Number():
            return _number(expression)
        case syntax.Text():
            return Constant(expression.value, SqlType("CHAR", False, len(expression.value)))
        case syntax.Keyword():
            return Constant(expression.value, NULL if expression.value is None else BOOLEAN)
        case syntax.Interval():
            if expression.months:
                raise refuse(expression.at, "intervals of years and months are not supported in expressions")
            return Constant(expression.milliseconds * _NANOSECONDS, INTERVAL)
        case syntax.Timestamp():
            kind = SqlType("TIMESTAMP", False, expression.precision)
            return Constant(expression.milliseconds * _NANOSECONDS, kind)
        case syntax.Name():
            return scope.column(expression)
        case syntax.Call():
            return _call(expression, scope)
        case syntax.Operation():
            return _operation(expression, scope)


def bind_condition(expression: syntax.Expression, scope: Scope, what: str) -> Typed:
    """Return the typed tree of a condition, which must be BOOLEAN."""
    found = bind(expression, scope)
    if found.type.base not in ("BOOLEAN", "NULL"):
        raise refuse(expression.at, f"{what} must be BOOLEAN, not {found.type.flink_name()}")
    return found


def convert(value: Typed, to: SqlType) -> Typed:
    """Return a value converted to a type; its nullability stays."""
    if value.type.base == to.base and (to.base != "DECIMAL" or value.type.or_null(to.nullable) == to):
        return value
    if value.type.is_text and to.is_text:
        return value
    kind = to.or_null(value.type.nullable)
    if isinstance(value, Constant) and to.base == "DOUBLE" and isinstance(value.value, int | Decimal):
        return Constant(float(value.value), kind)
    if isinstance(value, Constant) and value.value is None:
        return Constant(None, to.or_null())
    return Apply("CAST", (value,), kind.or_null(kind.nullable or to.base == "DECIMAL"))


def _number(literal: syntax.Number) -> Constant:
    text = literal.text
    if "e" in text.lower():
        return Constant(float(text), DOUBLE)
    if "." not in text:
        if len(text.lstrip("0")) > 19 or int(text) >= 2**63:
            raise refuse(literal.at, f"{text[:30]} is outside the range of BIGINT")
        whole = int(text)
        return Constant(whole, SqlType("INT" if whole < 2**31 else "BIGINT", False))
    before, _, after = text.partition(".")
    digits = len(before.lstrip("0")) + len(after)
    if digits > 38:
        raise refuse(literal.at, f"{text[:30]} has more than 38 digits")
    value = Decimal(text)
    return Constant(value, SqlType("DECIMAL", False, max(digits, 1), len(after)))


def _operation(node: syntax.Operation, scope: Scope) -> Typed:
    operator = node.operator
    if operator.startswith("CROSSES"):
        return scope.crossing(node)
    operands = tuple(bind(each, scope) for each in node.operands)
    if operator in ("AND", "OR", "NOT"):
        for each, source in zip(operands, node.operands, strict=True):
            _require(each.type.base in ("BOOLEAN", "NULL"), source.at, f"{operator} takes BOOLEAN", each)
        return Apply(operator, operands, BOOLEAN.or_null(_any_null(operands)))
    if operator.startswith("IS"):
        if not operator.endswith("NULL"):
            _require(operands[0].type.base in ("BOOLEAN", "NULL"), node.at, f"{operator} takes BOOLEAN", operands[0])
        return Apply(operator, operands, BOOLEAN)
    if operator in _COMPARISONS:
        return comparison(operator, operands[0], operands[1], node.at)
    if operator == "BETWEEN":
        value, low, high = operands
        both = comparison(">=", value, low, node.at), comparison("<=", value, high, node.at)
        return Apply("AND", both, BOOLEAN.or_null(_any_null(both)))
    if operator == "IN":
        tests = tuple(comparison("=", operands[0], each, node.at) for each in operands[1:])
        return tests[0] if len(tests) == 1 else Apply("OR", tests, BOOLEAN.or_null(_any_null(tests)))
    if operator == "LIKE":
        for each in operands:
            _require(each.type.is_text, node.at, "LIKE takes strings", each)
        return Apply("LIKE", operands, BOOLEAN.or_null(_any_null(operands)))
    if operator == "||":
        for each in operands:
            _require(each.type.is_text, node.at, "'||' takes strings", each)
        kind = SIGNATURES["CONCAT"].result([each.type for each in operands])
        return Apply("||", operands, kind.or_null(_any_null(operands)))
    if operator == "NEGATE":
        return _negated(operands[0], node.at)
    if operator == "CASE":
        return _case(operands, node)
    if operator in ("CAST", "TRY_CAST"):
        assert node.type_name is not None
        return _cast(operands[0], node.type_name)
    return _arithmetic(operator, operands[0], operands[1], node.at)


def _any_null(operands: tuple[Typed, ...]) -> bool:
    return any(each.type.nullable for each in operands)


def _require(fits: bool, at: TextPosition, what: str, got: Typed) -> None:
    if not fits:
        raise refuse(at, f"{what}, not {got.type.flink_name()}")


def comparison(operator: str, left: Typed, right: Typed, at: TextPosition) -> Typed:
    """Return the typed tree of a comparison of two values."""
    nullable = left.type.nullable or right.type.nullable
    common = common_type([left.type, right.type])
    if common is None and left.type.is_time and right.type.is_time:
        common = left.type
    if common is None:
        raise refuse(at, f"cannot compare {left.type.flink_name()} with {right.type.flink_name()} by '{operator}'")
    if common.base == "BOOLEAN" and operator not in ("=", "<>"):
        raise refuse(at, f"cannot compare BOOLEAN values by '{operator}'")
    if common.base == "DOUBLE":
        left, right = convert(left, DOUBLE), convert(right, DOUBLE)
    return Apply(operator, (left, right), BOOLEAN.or_null(nullable))


def _negated(value: Typed, at: TextPosition) -> Typed:
    _require(value.type.is_number or value.type.base in ("INTERVAL", "NULL"), at, "'-' takes a number", value)
    if isinstance(value, Constant) and isinstance(value.value, int | float | Decimal):
        return Constant(-value.value, value.type)
    return Apply("NEGATE", (value,), value.type)


def _arithmetic(operator: str, left: Typed, right: Typed, at: TextPosition) -> Typed:
    nullable = left.type.nullable or right.type.nullable
    if "NULL" in (left.type.base, right.type.base):
        other = right if left.type.base == "NULL" else left
        if other.type.is_number or other.type.base == "NULL":
            return Constant(None, DOUBLE.or_null() if other.type.base == "NULL" else other.type.or_null())
    if operator in _TIME_ARITHMETIC and right.type.base == "INTERVAL" and (left.type.is_time or left.type == INTERVAL):
        return Apply(operator, (left, right), left.type.or_null(nullable))
    if operator == "+" and left.type.base == "INTERVAL" and right.type.is_time:
        return Apply(operator, (right, left), right.type.or_null(nullable))
    if operator == "-" and left.type.is_time and right.type.is_time:
        raise refuse(at, "times cannot be subtracted; compare them, as in a > b + INTERVAL '5' MINUTE")
    for each in (left, right):
        _require(each.type.is_number, at, f"'{operator}' takes numbers", each)
    kind = arithmetic_type(operator, left.type, right.type)
    if kind.base == "DECIMAL":
        return Apply(operator, (_exact(left), _exact(right)), kind.or_null())
    if operator == "%" and kind.base != "DOUBLE":
        return Apply("%", (left, right), kind)
    return Apply(operator, (convert(left, kind), convert(right, kind)), kind)


def _exact(value: Typed) -> Typed:
    """Return a whole number or DECIMAL as a DECIMAL of the same digits."""
    if value.type.base == "DECIMAL":
        return value
    digits = 10 if value.type.base == "INT" else 19
    if isinstance(value, Constant) and isinstance(value.value, int):
        return Constant(Decimal(value.value), SqlType("DECIMAL", False, digits, 0))
    return Apply("CAST", (value,), SqlType("DECIMAL", True, digits, 0))


def _case(operands: tuple[Typed, ...], node: syntax.Operation) -> Typed:
    conditions, values = operands[:-1:2], (*operands[1::2], operands[-1])
    for each in conditions:
        _require(each.type.base in ("BOOLEAN", "NULL"), node.at, "WHEN takes BOOLEAN", each)
    common = common_type([each.type for each in values])
    if common is None:
        names = ", ".join(dict.fromkeys(each.type.flink_name() for each in values))
        raise refuse(node.at, f"the values of CASE have different types: {names}; use CAST")
    converted = [convert(each, common) for each in values]
    parts = [part for pair in zip(conditions, converted, strict=False) for part in pair]
    return Apply("CASE", (*parts, converted[-1]), common)


_CAST_TARGETS = {
    "DOUBLE": SqlType("DOUBLE", False),
    "BIGINT": SqlType("BIGINT", False),
    "INT": SqlType("INT", False),
    "INTEGER": SqlType("INT", False),
    "BOOLEAN": SqlType("BOOLEAN", False),
    "STRING": SqlType("STRING", False),
    "VARCHAR": SqlType("STRING", False),
}


def _cast(value: Typed, to: syntax.TypeName) -> Typed:
    if to.name in ("DECIMAL", "DEC", "NUMERIC"):
        precision, scale = (*to.arguments, 10, 0)[:2] if len(to.arguments) != 1 else (to.arguments[0], 0)
        if not 1 <= precision <= 38 or scale > precision:
            raise refuse(to.at, f"DECIMAL({precision}, {scale}) is not a type; the precision is 1 to 38")
        target = decimal(precision, scale, False)
    elif to.name in _CAST_TARGETS and not to.arguments:
        target = _CAST_TARGETS[to.name]
    else:
        raise refuse(
            to.at, f"CAST to {to.name} is not supported; use DOUBLE, BIGINT, INT, DECIMAL(p, s), STRING or BOOLEAN"
        )
    kind = value.type
    numbers = kind.is_number and target.is_number
    to_text = target.base == "STRING" and (kind.is_number or kind.base == "BOOLEAN" or kind.is_text)
    if not (numbers or to_text or kind.base in (target.base, "NULL")):
        raise refuse(to.at, f"{kind.flink_name()} cannot be cast to {to.name} here")
    if kind.base == "NULL":
        return Constant(None, target.or_null())
    if target.base == kind.base != "DECIMAL":
        return value
    return Apply("CAST", (value,), target.or_null(kind.nullable or target.base == "DECIMAL"))


def _call(node: syntax.Call, scope: Scope) -> Typed:
    found = scope.call(node)
    if found is not None:
        return found
    name = node.name
    if name in _NOT_SUPPORTED:
        raise refuse(node.at, _NOT_SUPPORTED[name])
    if node.over is not None:
        raise refuse(node.over.at, "OVER is accepted in the SELECT list of a query over rows only")
    if name in AGGREGATES | MORE_AGGREGATES:
        raise refuse(node.at, f"the aggregate {name} is not accepted here")
    if name in ("PREV", "FIRST", "LAST", "LAG", "LEAD", "MATCH_ROWTIME"):
        raise refuse(node.at, f"{name} is not accepted here")
    if name == "MOD":
        if len(node.arguments) != 2:
            raise refuse(node.at, f"MOD takes 2 arguments, not {len(node.arguments)}")
        return _arithmetic("%", bind(node.arguments[0], scope), bind(node.arguments[1], scope), node.at)
    signature = SIGNATURES.get(name)
    if signature is None:
        raise refuse(node.at, f"the function {name} is not supported; docs/cep.md lists the functions")
    return _function(node, signature, scope)


def _function(node: syntax.Call, signature: Signature, scope: Scope) -> Typed:
    if node.star or node.distinct or not signature.least <= len(node.arguments) <= signature.most:
        wanted = f"{signature.least}" if signature.least == signature.most else f"{signature.least} to {signature.most}"
        raise refuse(node.at, f"{node.name} takes {wanted} arguments ({signature.accepts})")
    arguments = [bind(each, scope) for each in node.arguments]
    kinds = [each.type for each in arguments]
    if not signature.fits(kinds):
        got = ", ".join(kind.flink_name() for kind in kinds)
        raise refuse(node.at, f"{node.name} takes {signature.accepts}, not ({got})")
    targets = signature.argument_types(kinds)
    if targets is not None:
        arguments = [convert(each, to) for each, to in zip(arguments, targets, strict=True)]
    nullable = _any_null(tuple(arguments))
    if node.name in ("COALESCE", "IFNULL"):
        nullable = all(each.type.nullable for each in arguments)
    if node.name == "NULLIF":
        nullable = True
    return Apply(node.name, tuple(arguments), signature.result(kinds).or_null(nullable))
