"""INTERVAL and TIMESTAMP literals. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

from dexorder_cep.language.reader import TokenReader
from dexorder_cep.language.refusals import TextPosition, refuse
from dexorder_cep.language.syntax import Interval, Timestamp
from dexorder_cep.language.tokens import Token

_UNITS: Mapping[str, int] = {
    "DAY": 86_400_000,
    "HOUR": 3_600_000,
    "MINUTE": 60_000,
    "SECOND": 1_000,
}
_ORDER = tuple(_UNITS)
_MONTHS = ("YEAR", "QUARTER", "MONTH")
_SEPARATORS = {"HOUR": " ", "MINUTE": ":", "SECOND": ":"}
_LEADING_DIGITS = 2
"""Digits of the first field unless the unit says more, as ``DAY(3)``."""


def parse_interval(reader: TokenReader) -> Interval:
    """Read an INTERVAL literal; its first word is next.

    Units are DAY, HOUR, MINUTE, SECOND and ranges of them, as ``INTERVAL '1 12' DAY TO HOUR``. The first field has two
    digits unless the unit says more: ``SECOND(3)``.
    """
    at = reader.expect("INTERVAL")
    negative = reader.accept("-")
    if reader.token.kind != "text":
        raise reader.unexpected("a string with the length of the interval, as '10'")
    text = reader.take()
    first = _unit(reader)
    digits = _precision(reader) or _LEADING_DIGITS
    last = first
    if reader.accept("TO"):
        last = _unit(reader)
        _precision(reader)
    if first in _MONTHS:
        return Interval(0, True, at)
    if last in _MONTHS or _ORDER.index(last) < _ORDER.index(first):
        raise refuse(at, f"an interval of {first} TO {last} does not exist")
    total = _milliseconds(text, _ORDER[_ORDER.index(first) : _ORDER.index(last) + 1], digits)
    return Interval(-total if negative else total, False, at)


def _unit(reader: TokenReader) -> str:
    word = reader.token.word
    unit = word.removesuffix("S")
    if unit not in _UNITS and unit not in _MONTHS:
        raise reader.unexpected("DAY", "HOUR", "MINUTE", "SECOND")
    reader.take()
    return unit


def _precision(reader: TokenReader) -> int | None:
    if not reader.accept("("):
        return None
    if reader.token.kind != "number" or not reader.token.text.isdigit():
        raise reader.unexpected("a number of digits")
    token = reader.take()
    digits = int(token.text) if len(token.text) < 3 else 99
    if reader.accept(","):
        reader.take()
    reader.expect(")")
    if not 1 <= digits <= 10:
        raise refuse(token.at, f"{token.text} is not a number of digits from 1 to 10")
    return digits


def _milliseconds(text: Token, units: tuple[str, ...], digits: int) -> int:
    pattern = r"(-?)(\d+)" + "".join(re.escape(_SEPARATORS[unit]) + r"(\d{1,2})" for unit in units[1:])
    if units[-1] == "SECOND":
        pattern += r"(?:\.(\d{1,9}))?"
    found = re.fullmatch(pattern, text.text.strip(), re.ASCII)
    if found is None:
        raise refuse(
            text.at, f"'{text.text}' is not an interval of {' TO '.join(dict.fromkeys((units[0], units[-1])))}"
        )
    fields = found.groups()[1:]
    if len(fields[0]) > digits:
        raise refuse(
            text.at,
            f"the interval's first field has more than {digits} digits: write {units[0]}({len(fields[0])}), "
            "or a larger unit",
        )
    total = sum(int(field) * _UNITS[unit] for field, unit in zip(fields, units, strict=False))
    if units[-1] == "SECOND" and fields[-1]:
        total += int(fields[-1].ljust(9, "0")) // 1_000_000
    return -total if found[1] else total


def parse_timestamp(text: Token, at: TextPosition) -> Timestamp:
    """Return the value of a TIMESTAMP literal: ``'2024-01-31 12:00:00'``, with up to nine decimals, in UTC."""
    found = re.fullmatch(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?", text.text, re.ASCII)
    try:
        if found is None:
            raise ValueError
        moment = datetime.datetime.fromisoformat(found[1]).replace(tzinfo=datetime.UTC)
    except ValueError:
        raise refuse(text.at, f"'{text.text}' is not a timestamp; write '2024-01-31 12:00:00'") from None
    decimals = found[2] or ""
    return Timestamp(int(moment.timestamp()) * 1_000 + int(decimals.ljust(9, "0")[:3]), len(decimals), at)
