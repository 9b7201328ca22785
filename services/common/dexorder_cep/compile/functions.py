"""Scalar functions of a trigger: their names, arguments and types. Pure.

``dexorder_cep.compile.code`` says how each is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from dexorder_cep.compile.types import BIGINT, DOUBLE, INT, STRING, SqlType, as_decimal, common_type

Kinds = list[SqlType]


class Signature(NamedTuple):
    """A function's arguments and result.

    Attributes:
        least: Fewest arguments.
        most: Most arguments.
        accepts: Meaning of the arguments, for errors.
        fits: Whether the arguments' types are accepted.
        argument_types: Types to which the arguments are converted; None keeps them.
        result: Type of the result, without regard to NULL arguments.
    """

    least: int
    most: int
    accepts: str
    fits: Callable[[Kinds], bool]
    argument_types: Callable[[Kinds], Kinds | None]
    result: Callable[[Kinds], SqlType]


def _numbers(kinds: Kinds) -> bool:
    return all(kind.is_number or kind.base == "NULL" for kind in kinds)


def _texts(kinds: Kinds) -> bool:
    return all(kind.is_text or kind.base == "NULL" for kind in kinds)


def _doubles(least: int, most: int) -> Signature:
    return Signature(least, most, "numbers", _numbers, lambda kinds: [DOUBLE] * len(kinds), lambda _: DOUBLE)


def _same_number(kinds: Kinds) -> SqlType:
    return kinds[0] if kinds[0].base in ("INT", "BIGINT", "DECIMAL") else DOUBLE


def _whole(kinds: Kinds) -> SqlType:
    if kinds[0].base == "DECIMAL":
        return SqlType("DECIMAL", False, kinds[0].precision, 0)
    return _same_number(kinds)


def _common(kinds: Kinds) -> SqlType:
    found = common_type(kinds)
    assert found is not None
    return found


def _alike(kinds: Kinds) -> bool:
    return common_type(kinds) is not None


def _compared(kinds: Kinds) -> Kinds:
    """Return the types in which NULLIF compares: the first value stays as it is, and is the result."""
    return [kinds[0], DOUBLE if kinds[0].base == "DOUBLE" and kinds[1].is_number else kinds[1]]


def _text_and_numbers(kinds: Kinds) -> bool:
    return _texts(kinds[:1]) and all(kind.base in ("INT", "BIGINT") for kind in kinds[1:])


def _times(kinds: Kinds) -> bool:
    return all(kind.is_time for kind in kinds)


def _rounds(kinds: Kinds) -> bool:
    return _numbers(kinds[:1]) and all(kind.base == "INT" for kind in kinds[1:])


def _part(kinds: Kinds) -> SqlType:
    """Return the type of a part of a string."""
    return replace(kinds[0], varying=True) if kinds[0].base == "CHAR" else STRING


def _joined(kinds: Kinds) -> SqlType:
    if all(kind.base == "CHAR" for kind in kinds):
        length = sum(kind.precision for kind in kinds)
        return SqlType("CHAR", False, length, varying=any(kind.varying for kind in kinds))
    return STRING


_MANY = 100
_TEXT = Signature(1, 1, "a string", _texts, lambda _: None, lambda kinds: kinds[0])
_LARGEST = Signature(
    1, _MANY, "values of one type", _alike, lambda kinds: [_common(kinds)] * len(kinds), lambda kinds: _common(kinds)
)
_WHOLE = Signature(1, 1, "a number", _numbers, lambda kinds: [_same_number(kinds)], _whole)
_TIME_PART = Signature(1, 1, "a time", _times, lambda _: None, lambda _: BIGINT)

SIGNATURES: Mapping[str, Signature] = {
    "ABS": Signature(1, 1, "a number", _numbers, lambda kinds: [_same_number(kinds)], _same_number),
    "SIGN": Signature(1, 1, "a number", _numbers, lambda kinds: [_same_number(kinds)], _same_number),
    "FLOOR": _WHOLE,
    "CEIL": _WHOLE,
    "CEILING": _WHOLE,
    "ROUND": Signature(1, 2, "a DOUBLE and a number of digits", _rounds, lambda k: [DOUBLE, *k[1:]], lambda _: DOUBLE),
    "SQRT": _doubles(1, 1),
    "EXP": _doubles(1, 1),
    "LN": _doubles(1, 1),
    "LOG10": _doubles(1, 1),
    "POWER": _doubles(2, 2),
    "GREATEST": _LARGEST,
    "LEAST": _LARGEST,
    "COALESCE": _LARGEST,
    "IFNULL": _LARGEST._replace(least=2, most=2),
    "NULLIF": Signature(2, 2, "values of one type", _alike, _compared, lambda kinds: kinds[0]),
    "UPPER": _TEXT,
    "LOWER": _TEXT,
    "TRIM": _TEXT._replace(result=_part),
    "CHAR_LENGTH": _TEXT._replace(result=lambda _: INT),
    "CHARACTER_LENGTH": _TEXT._replace(result=lambda _: INT),
    "SUBSTRING": Signature(2, 3, "a string, a start and a length", _text_and_numbers, lambda _: None, _part),
    "CONCAT": Signature(1, _MANY, "strings", _texts, lambda _: None, _joined),
    "YEAR": _TIME_PART,
    "MONTH": _TIME_PART,
    "DAYOFMONTH": _TIME_PART,
    "DAYOFWEEK": _TIME_PART,
    "HOUR": _TIME_PART,
    "MINUTE": _TIME_PART,
    "SECOND": _TIME_PART,
}
"""Functions of one row, by name. MOD is the operator ``%``."""

AGGREGATES = frozenset({"COUNT", "SUM", "AVG", "MIN", "MAX"})
"""Aggregates of patterns, windows and OVER."""
MORE_AGGREGATES = frozenset({"STDDEV_POP", "STDDEV_SAMP", "STDDEV", "VAR_POP", "VAR_SAMP", "VARIANCE"})
"""Aggregates of windows and OVER only."""


def aggregate_type(name: str, kind: SqlType, may_be_empty: bool) -> SqlType:
    """Return the type of an aggregate over values of a type.

    Args:
        name: Its name.
        kind: Type of the argument; of COUNT any.
        may_be_empty: Whether there may be no row at all.
    """
    nullable = kind.nullable or may_be_empty
    if name == "COUNT":
        return BIGINT
    if name in ("MIN", "MAX", "FIRST_VALUE", "LAST_VALUE", "LAG"):
        return kind.or_null(nullable)
    if kind.base == "DECIMAL":
        exact = as_decimal(kind)
        scale = max(6, exact.scale) if name == "AVG" or name in MORE_AGGREGATES else exact.scale
        return SqlType("DECIMAL", nullable, 38, scale)
    return kind.or_null(nullable)
