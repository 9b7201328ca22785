"""Types of Flink SQL that a trigger's values have, and the types that its arithmetic gives. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Base = Literal[
    "DOUBLE", "BIGINT", "INT", "DECIMAL", "STRING", "CHAR", "BOOLEAN", "TIMESTAMP_LTZ", "TIMESTAMP", "INTERVAL", "NULL"
]
MAX_PRECISION = 38
_DIGITS = {"INT": 10, "BIGINT": 19}
_RANK = {"INT": 0, "BIGINT": 1, "DECIMAL": 2, "DOUBLE": 3}


@dataclass(frozen=True, slots=True)
class SqlType:
    """Type of a value.

    Attributes:
        base: Its family. CHAR is the type of string literals and has a length; STRING is unlimited.
        nullable: Whether the value may be NULL.
        precision: Of DECIMAL the digits, of CHAR the length, of timestamps the digits of a second.
        scale: Of DECIMAL the digits after the point.
    """

    base: Base
    nullable: bool = True
    precision: int = 0
    scale: int = 0
    varying: bool = False

    @property
    def is_number(self) -> bool:
        """True if arithmetic applies."""
        return self.base in _RANK

    @property
    def is_text(self) -> bool:
        """True if it is a string."""
        return self.base in ("STRING", "CHAR")

    @property
    def is_time(self) -> bool:
        """True if it is a point in time."""
        return self.base in ("TIMESTAMP", "TIMESTAMP_LTZ")

    def or_null(self, nullable: bool = True) -> SqlType:
        """Return the same type with another nullability."""
        return self if self.nullable == nullable else replace(self, nullable=nullable)

    def flink_name(self) -> str:
        """Return Flink's name of the type, without NOT NULL."""
        if self.base == "DECIMAL":
            return f"DECIMAL({self.precision}, {self.scale})"
        if self.base == "CHAR":
            return f"{'VARCHAR' if self.varying else 'CHAR'}({self.precision})"
        if self.base in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            return f"{self.base}({self.precision})"
        if self.base == "INTERVAL":
            return "INTERVAL SECOND(3)"
        return self.base


DOUBLE = SqlType("DOUBLE", nullable=False)
BIGINT = SqlType("BIGINT", nullable=False)
INT = SqlType("INT", nullable=False)
STRING = SqlType("STRING", nullable=False)
BOOLEAN = SqlType("BOOLEAN", nullable=False)
ROWTIME = SqlType("TIMESTAMP_LTZ", nullable=False, precision=3)
WINDOW_TIME = SqlType("TIMESTAMP", nullable=False, precision=3)
INTERVAL = SqlType("INTERVAL", nullable=False)
NULL = SqlType("NULL")


def as_decimal(kind: SqlType) -> SqlType:
    """Return the DECIMAL that holds every value of an exact type."""
    return kind if kind.base == "DECIMAL" else SqlType("DECIMAL", kind.nullable, _DIGITS[kind.base], 0)


def decimal(precision: int, scale: int, nullable: bool) -> SqlType:
    """Return a DECIMAL of at most 38 digits, by Flink's rule: at least 6 of the digits after the point are kept."""
    if precision <= MAX_PRECISION:
        return SqlType("DECIMAL", nullable, precision, scale)
    before = precision - scale
    return SqlType("DECIMAL", nullable, MAX_PRECISION, max(MAX_PRECISION - before, min(scale, 6)))


def arithmetic_type(operator: str, left: SqlType, right: SqlType) -> SqlType:
    """Return the type of ``left operator right`` for two numbers and one of ``+ - * / %``."""
    nullable = left.nullable or right.nullable
    wider = left if _RANK[left.base] >= _RANK[right.base] else right
    if operator == "%" and "DECIMAL" not in (left.base, right.base) and wider.base != "DOUBLE":
        return right.or_null(nullable)  # as Flink: the remainder has the divisor's type
    if wider.base != "DECIMAL":
        return wider.or_null(nullable)
    a, b = as_decimal(left), as_decimal(right)
    if operator == "*":
        return decimal(a.precision + b.precision + 1, a.scale + b.scale, nullable)
    if operator == "/":
        scale = max(6, a.scale + b.precision + 1)
        return decimal(a.precision - a.scale + b.scale + scale, scale, nullable)
    scale = max(a.scale, b.scale)
    before = a.precision - a.scale, b.precision - b.scale
    if operator == "%":
        return decimal(min(before) + scale, scale, nullable)
    return decimal(max(before) + scale + 1, scale, nullable)


def common_type(kinds: list[SqlType]) -> SqlType | None:
    """Return the type that all values of CASE, COALESCE or IN have after conversion, or None."""
    found: SqlType | None = None
    for kind in kinds:
        found = kind if found is None else _merge(found, kind)
        if found is None:
            return None
    return found


def _merge(a: SqlType, b: SqlType) -> SqlType | None:
    nullable = a.nullable or b.nullable
    if a.base == "NULL" or b.base == "NULL":
        return (b if a.base == "NULL" else a).or_null()
    if a.is_number and b.is_number:
        if "DECIMAL" in (a.base, b.base) and "DOUBLE" not in (a.base, b.base):
            x, y = as_decimal(a), as_decimal(b)
            scale = max(x.scale, y.scale)
            return decimal(max(x.precision - x.scale, y.precision - y.scale) + scale, scale, nullable)
        return (a if _RANK[a.base] >= _RANK[b.base] else b).or_null(nullable)
    if a.is_text and b.is_text:
        if "STRING" in (a.base, b.base):
            return STRING.or_null(nullable)
        varying = a.varying or b.varying or a.precision != b.precision
        return SqlType("CHAR", nullable, max(a.precision, b.precision), varying=varying)
    if a.base == b.base:
        return a.or_null(nullable)
    return None
