"""Options of a UDF: given by users as text or values, checked against the UDF's declaration, before it starts. Pure.

A UDF declares for each option the types of its values, so their number too; ``flag`` options take none. Kapacitor
allows calling an option more than once; here, one use of an option gives all of its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from dexorder_udf.errors import UdfOptionError

Given = bool | int | float | str
"""A value as a user gives it; text is read as the type that the option has."""

MOST_OUTPUTS = 200
"""Fields of its output that a UDF may declare, and characters of each name."""
_UNITS_NS = {
    "ns": 1,
    "u": 10**3,
    "us": 10**3,
    "µ": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
_DURATION = re.compile(r"-?(?:\d+(?:ns|us|u|µs|µ|ms|s|m|h|d|w))+")
_DURATION_PART = re.compile(r"(\d+)(ns|us|u|µs|µ|ms|s|m|h|d|w)")
_INT64 = range(-(2**63), 2**63)


class ValueType(IntEnum):
    """Type of a value, with its number on the wire."""

    BOOL = 0
    INT = 1
    DOUBLE = 2
    STRING = 3
    DURATION = 4


_ACCEPTED = {
    ValueType.BOOL: "true or false",
    ValueType.INT: "a whole number of 64 bits",
    ValueType.DOUBLE: "a number",
    ValueType.STRING: "text",
    ValueType.DURATION: "a duration such as 10s, 500ms or 1h30m",
}


@dataclass(frozen=True)
class OptionValue:
    """A checked value; durations are nanoseconds."""

    type: ValueType
    value: bool | int | float | str


def parse_duration(text: str) -> int | None:
    """Return a duration in nanoseconds, or None if the text is none."""
    if not _DURATION.fullmatch(text):
        return None
    total = sum(int(number) * _UNITS_NS[unit] for number, unit in _DURATION_PART.findall(text))
    return -total if text.startswith("-") else total


def split_assignments(words: Iterable[str]) -> dict[str, list[Given]]:
    """Return options from ``name=value`` words; a repeated name appends a value, a bare name is a flag."""
    options: dict[str, list[Given]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        values = options.setdefault(name, [])
        if equals:
            values.append(value)
    return options


def check_options(
    udf: str, declared: Mapping[str, Sequence[ValueType]], given: Mapping[str, Given | Sequence[Given]]
) -> dict[str, tuple[OptionValue, ...]]:
    """Return the given options with the types that the UDF declares.

    Args:
        udf: Name of the UDF, for errors.
        declared: Types of the values of each option.
        given: One value, or the sequence of an option's values.
    Raises:
        UdfOptionError: An option is unknown, or has another number or type of values.
    """
    checked: dict[str, tuple[OptionValue, ...]] = {}
    for name, raw in given.items():
        types = declared.get(name)
        if types is None:
            known = ", ".join(sorted(declared)) or "none"
            raise UdfOptionError(udf, f'has no option "{name}"; its options: {known}')
        values = [raw] if isinstance(raw, bool | int | float | str) else list(raw)
        if len(values) != len(types):
            expected = ", ".join(each.name.lower() for each in types) or "no value"
            raise UdfOptionError(udf, f'option "{name}" takes {len(types)} values ({expected}), not {len(values)}')
        checked[name] = tuple(_typed(udf, name, each, value) for each, value in zip(types, values, strict=True))
    return checked


def _typed(udf: str, name: str, expected: ValueType, value: Given) -> OptionValue:
    found = _from_text(expected, value) if isinstance(value, str) else _from_value(expected, value)
    if found is None:
        raise UdfOptionError(udf, f'option "{name}": {value!r} is not {_ACCEPTED[expected]}')
    return OptionValue(expected, found)


def _from_text(expected: ValueType, text: str) -> bool | int | float | str | None:
    if expected is ValueType.STRING:
        return text
    if expected is ValueType.DURATION:
        return _int64(parse_duration(text))
    if expected is ValueType.BOOL:
        return {"true": True, "false": False}.get(text.lower())
    try:
        return _int64(int(text)) if expected is ValueType.INT else float(text)
    except ValueError:
        return None


def _from_value(expected: ValueType, value: bool | int | float) -> bool | int | float | None:
    if expected is ValueType.BOOL:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if expected is ValueType.INT:
        return _int64(value) if isinstance(value, int) else None
    return float(value) if expected is ValueType.DOUBLE else None


def _int64(value: int | None) -> int | None:
    return value if value is not None and value in _INT64 else None
