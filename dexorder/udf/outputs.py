"""Declared fields of a function's output: their types, and the check of each point that it returns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dexorder_udf.options import MOST_OUTPUTS, ValueType
from dexorder_udf.points import Point

VALUE_TYPES: dict[type, ValueType] = {
    bool: ValueType.BOOL,
    int: ValueType.INT,
    float: ValueType.DOUBLE,
    str: ValueType.STRING,
}
"""Types of fields, with their number on the wire."""


def check_outputs(name: str, outputs: Mapping[str, Any]) -> None:
    """Check a declaration.

    Raises:
        TypeError: A type is not one of a field, or there are too many.
    """
    if len(outputs) > MOST_OUTPUTS:
        raise TypeError(f"{name}: outputs declares {len(outputs)} fields; at most {MOST_OUTPUTS} are allowed")
    for field, kind in outputs.items():
        if not isinstance(field, str) or not 0 < len(field) <= MOST_OUTPUTS or kind not in VALUE_TYPES:
            raise TypeError(f"{name}: outputs: {field!r} of type {kind!r}; use a name, and bool, int, float or str")


def check_fields(point: Point, outputs: Mapping[str, type]) -> None:
    """Check the fields of a point that a function returns. A missing field stays without a value.

    A whole number in place of a float becomes one. Scalars of numpy and pandas have the type of their value.

    Raises:
        ValueError: A field is not declared, or its value is of another type.
    """
    for field, value in [*point.fields.items()]:
        wanted = outputs.get(field)
        if wanted is None:
            raise ValueError(f"field {field}: {value!r:.80} is not declared; outputs has {', '.join(outputs)}")
        if type(value) is wanted:
            continue
        plain: Any = value.item() if hasattr(value, "item") else value
        if wanted is float and type(plain) is int:
            point.fields[field] = float(plain)
        elif isinstance(plain, wanted) and not (wanted is int and isinstance(plain, bool)):
            point.fields[field] = wanted(plain)
        else:
            raise ValueError(f"field {field}: {value!r:.80} is not {_NAMED[wanted]}, as outputs declares")


_NAMED = {bool: "a bool", int: "an int", float: "a float", str: "a str"}
