"""Arithmetic and functions of SQL as Flink computes them; generated code calls them. Pure.

Null operands never reach these functions: generated code tests for them. A result of None is NULL.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import TypeAlias

Number: TypeAlias = int | float | Decimal
_EXACT = decimal.Context(prec=120, rounding=decimal.ROUND_HALF_UP)
_QUOTIENT = decimal.Context(prec=38, rounding=decimal.ROUND_HALF_UP)


class TriggerFailed(Exception):
    """An error at run time that ends a Flink job; here it suspends the trigger."""


def wrap32(value: int) -> int:
    """Return an INT after overflow, as Java."""
    return (value + 0x80000000) % 0x100000000 - 0x80000000


def wrap64(value: int) -> int:
    """Return a BIGINT after overflow, as Java."""
    return (value + 0x8000000000000000) % 0x10000000000000000 - 0x8000000000000000


def divide_integers(a: int, b: int) -> int:
    """Return the quotient without its fraction."""
    if b == 0:
        raise TriggerFailed("integer division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder_of_integers(a: int, b: int) -> int:
    """Return the remainder with the sign of the dividend."""
    if b == 0:
        raise TriggerFailed("remainder of a division by zero")
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def divide_doubles(a: float, b: float) -> float:
    """Return the quotient; by zero it is infinite or not a number."""
    try:
        return a / b
    except ZeroDivisionError:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def remainder_of_doubles(a: float, b: float) -> float:
    """Return the remainder with the sign of the dividend."""
    try:
        return math.fmod(a, b)
    except ValueError:
        return math.nan


def fit(value: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return a DECIMAL rounded half up to its scale, or NULL if it has more digits than its type."""
    rounded = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return rounded if abs(rounded) < Decimal(10) ** (precision - scale) else None


def add_decimals(a: Decimal, b: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the sum as DECIMAL(precision, scale)."""
    return fit(_EXACT.add(a, b), precision, scale)


def subtract_decimals(a: Decimal, b: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the difference as DECIMAL(precision, scale)."""
    return fit(_EXACT.subtract(a, b), precision, scale)


def multiply_decimals(a: Decimal, b: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the product as DECIMAL(precision, scale)."""
    return fit(_EXACT.multiply(a, b), precision, scale)


def divide_decimals(a: Decimal, b: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the quotient as DECIMAL(precision, scale)."""
    if b == 0:
        raise TriggerFailed("decimal division by zero")
    return fit(_QUOTIENT.divide(a, b), precision, scale)


def remainder_of_decimals(a: Decimal, b: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the remainder as DECIMAL(precision, scale)."""
    if b == 0:
        raise TriggerFailed("remainder of a decimal division by zero")
    return fit(_EXACT.remainder(a, b), precision, scale)


def to_bigint(value: float | int | Decimal) -> int:
    """Return a number without its fraction; a number outside the type becomes its limit, as Java casts."""
    if isinstance(value, float):
        if value != value:
            return 0
        if math.isinf(value):
            return 2**63 - 1 if value > 0 else -(2**63)
    return max(-(2**63), min(2**63 - 1, int(value)))


def to_int(value: float | int | Decimal) -> int:
    """Return a number without its fraction as INT: doubles are limited, longer integers wrap, as Java casts."""
    if isinstance(value, float):
        return max(-(2**31), min(2**31 - 1, to_bigint(value)))
    return wrap32(int(value))


def to_decimal(value: float | int | Decimal, precision: int, scale: int) -> Decimal | None:
    """Return a number as DECIMAL, or NULL if it does not fit."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return fit(Decimal(repr(value)), precision, scale)
    return fit(Decimal(value), precision, scale)


def double_text(value: float) -> str:
    """Return a DOUBLE as Java writes it."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else text + ".0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    return f"{'-' if sign else ''}{written[0]}.{written[1:] or '0'}E{exponent + len(digits) - 1}"


def round_double(value: float, digits: int = 0) -> float:
    """Return a DOUBLE rounded half up at a decimal digit."""
    if not math.isfinite(value) or not -300 < digits < 300:
        return value
    return float(
        Decimal(repr(value)).quantize(
            Decimal(1).scaleb(-digits), rounding=decimal.ROUND_HALF_UP, context=decimal.Context(prec=700)
        )
    )


def power(a: float, b: float) -> float:
    """Return ``a`` to the power of ``b``; outside the real numbers it is not a number, as Java."""
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        return math.inf if a == 0 else math.nan


def logarithm(value: float) -> float:
    """Return the natural logarithm."""
    return math.log(value) if value > 0 else -math.inf if value == 0 else math.nan


def logarithm_10(value: float) -> float:
    """Return the decimal logarithm."""
    return math.log10(value) if value > 0 else -math.inf if value == 0 else math.nan


def exponential(value: float) -> float:
    """Return e to the power of the value."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def root(value: float) -> float:
    """Return the square root."""
    return math.sqrt(value) if value >= 0 else math.nan


def sign(value: Number) -> Number:
    """Return -1, 0 or 1 of the value's type."""
    if isinstance(value, float):
        return 0.0 if value == 0 else math.copysign(1.0, value)
    return type(value)((value > 0) - (value < 0))


def floor(value: Number) -> Number:
    """Return the largest whole number of the value's type that is not larger."""
    return value if not math.isfinite(value) else type(value)(math.floor(value))


def ceiling(value: Number) -> Number:
    """Return the smallest whole number of the value's type that is not smaller."""
    return value if not math.isfinite(value) else type(value)(math.ceil(value))


def and3(*values: bool | None) -> bool | None:
    """Return the AND of three-valued logic."""
    return False if False in values else None if None in values else True


def or3(*values: bool | None) -> bool | None:
    """Return the OR of three-valued logic."""
    return True if True in values else None if None in values else False
