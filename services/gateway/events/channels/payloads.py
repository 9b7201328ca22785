"""What can be read from a payload: one line of text a field, with nothing in it that could play tricks on a reader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

_MOST_VALUE, _MOST_LINES, _MOST_TEXT = 500, 40, 1500
_MOST_SHARE = 1000.0
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Control characters, line ends, those that turn the direction of the text around them, halves of pairs."""
_BEYOND_64_BITS = re.compile(rb"\d{19}")
"""A number that may be, of which orjson would make a double."""
_JSON = json.JSONEncoder(ensure_ascii=False)  # made for people: orjson leaves no room between things
_TIMES: Final = frozenset({"start_time", "end_time"})
_SHARES: Final = frozenset({"win_rate", "max_drawdown"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a payload says to people.

    Attributes:
        told: Of the fields that were asked for, the text of each that says something.
        others: The other fields as they came, one a line and so many at most; or all of what is no object.
    """

    told: Mapping[str, str]
    others: Sequence[str]


def read_facts(payload: bytes, names: Mapping[str, str]) -> Facts:
    """Of any bytes.

    Args:
        names: The fields to ask for: each way to write one, and its name in the protocol.
    """
    found = _parsed(payload)
    if not isinstance(found, dict):
        text = shown(payload.decode(errors="replace") if found is None else found)
        return Facts({}, [text] if text not in ("", "null") else [])
    told: dict[str, str] = {}
    others: list[tuple[str, Any]] = []
    for name, value in found.items():
        if (known := names.get(name)) is None:
            others.append((name, value))
        elif said := _said(known, value):
            told[known] = said
    return Facts(told, _listed(others) if others else ())


def _listed(fields: Sequence[tuple[str, Any]]) -> list[str]:
    lines = [f"{shown(name)}: {said}" for name, value in fields[:_MOST_LINES] if (said := shown(value))]
    return "\n".join(lines)[:_MOST_TEXT].splitlines()


def _said(name: str, value: object) -> str:
    if name in _TIMES:
        return moment(value) or shown(value)
    return _percent(value) if name in _SHARES else shown(value)


def moment(milliseconds: object) -> str:
    """A time since the epoch in UTC; empty where there is none, or none that a calendar has."""
    try:
        seconds = int(milliseconds) / 1000  # type: ignore[call-overload]
        if seconds <= 0:
            return ""
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def shown(value: object) -> str:
    """A JSON value as one line of bounded length; empty for what says nothing."""
    text = value if isinstance(value, str) else _written(value)
    text = text[: _MOST_VALUE + 1]
    text = (text if text.isprintable() else _UNSHOWN.sub(" ", text)).strip()  # nothing unshown is printable
    return text if len(text) <= _MOST_VALUE else f"{text[: _MOST_VALUE - 1]}…"


def _percent(value: object) -> str:
    try:
        share = float(str(value))
    except ValueError:
        return shown(value)
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + " %" if abs(share) <= _MOST_SHARE else shown(value)


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload) if _BEYOND_64_BITS.search(payload) else orjson.loads(payload)
    except (ValueError, RecursionError):
        return None


def _written(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    try:
        return str(value) if isinstance(value, int | float) else _JSON.encode(value)
    except (ValueError, RecursionError):
        return ""
