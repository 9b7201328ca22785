"""Rows as the lines of a CSV file, byte for byte as pyarrow writes them. Pure.

Text is in quotes, null is empty, a time has the digits of its unit and ``Z``, a number its shortest digits.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from math import isfinite

import orjson
from arro3.core import DataType

from dexorder.rows.columns import Column
from dexorder.rows.table import Rows

_EXPONENTS = (-6, 10)
"""A number with an exponent in this half-open range is written without it."""
_LEAST, _MOST = 1e-5, 1e10
"""Numbers between them have no exponent here nor in JSON."""
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits of a fraction of a second in each unit."""


def csv_header(names: list[str]) -> bytes:
    """Return the first line."""
    return (",".join(map(_quoted, names)) + "\n").encode()


def csv_lines(rows: Rows) -> bytes:
    """Return the lines of the rows; an empty text without rows."""
    columns = [_texts(column) for column in rows.columns]
    return "".join(f"{','.join(line)}\n" for line in zip(*columns, strict=True)).encode()


def _texts(column: Column) -> list[str]:
    kind = column.type
    if DataType.is_floating(kind):
        return _numbers(column.to_pylist())
    if DataType.is_integer(kind):
        return _integers(column.to_pylist())
    if DataType.is_timestamp(kind):
        return _times(column)
    if DataType.is_boolean(kind):
        return ["" if value is None else str(value).lower() for value in column.to_pylist()]
    is_text = DataType.is_string(kind) or DataType.is_large_string(kind)
    to_text = cache(_quoted) if is_text else str  # a column of tickers has few values
    return ["" if value is None else to_text(value) for value in column.to_pylist()]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _integers(values: list[int | None]) -> list[str]:
    return orjson.dumps(values).decode()[1:-1].replace("null", "").split(",") if values else []


def _numbers(values: list[float | None]) -> list[str]:
    # JSON has the shortest digits too, several times faster than repr, and in plain chunks all else is the same.
    text = orjson.dumps(values).decode()[1:-1]
    known = [value for value in values if value is not None]
    is_plain = "e" not in text and text.count("null") + len(known) == len(values)
    if known and is_plain and min(known) > -_MOST and max(known) < _MOST:
        return f"{text},".replace(".0,", ",").replace("null", "").split(",")[:-1]
    return [
        each.removesuffix(".0") if value is not None and _LEAST <= abs(value) < _MOST else _number(value)
        for each, value in zip(text.split(",") if values else [], values, strict=True)
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if not value or not isfinite(value):
        return str(value).removesuffix(".0")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    scientific = len(digits) + exponent - 1
    if _EXPONENTS[0] <= scientific < _EXPONENTS[1]:
        return f"{Decimal((sign, digits, exponent)):f}"
    first, *others = map(str, digits)
    return f"{'-' * sign}{first}{'.' * bool(others)}{''.join(others)}e{scientific:+}"


def _times(column: Column) -> list[str]:
    unit, suffix = column.type.time_unit or "us", "" if column.type.tz is None else "Z"
    utc = column.cast(DataType.timestamp(unit, tz="UTC")).cast(DataType.timestamp(unit))
    digits = _DIGITS[unit]
    texts = utc.cast(DataType.string()).to_pylist()  # 2024-01-01T00:00:00, with a fraction that is not zero behind it
    return ["" if text is None else _time(text, digits) + suffix for text in texts]


def _time(text: str, digits: int) -> str:
    whole = f"{text[:10]} {text[11:19]}"
    return f"{whole}.{text[20:].ljust(digits, '0')}" if digits else whole
