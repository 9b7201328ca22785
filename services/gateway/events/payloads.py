"""What can be read from a payload: one line of text a field, with nothing in it that could play tricks on a reader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

_MOST_VALUE, _MOST_LINES, _MOST_TEXT = 500, 40, 1500
_MOST_SHARE = 1000.0
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Control characters, line ends, those that turn the direction of the text around them, halves of pairs."""
_UPPER = re.compile(r"(?<=[a-z0-9])[A-Z]")
_TIMES: Final = frozenset({"start_time", "end_time"})
_SHARES: Final = frozenset({"win_rate", "max_drawdown"})


class Facts:
    """The fields of a payload under their names in the protocol, snake_case; protobuf's own JSON has camelCase."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = {_UPPER.sub(lambda letter: f"_{letter[0].lower()}", name): fields[name] for name in fields}

    def said(self, name: str) -> str:
        """The field's value for people; empty where there is none."""
        value = self._fields.get(name)
        if name in _TIMES:
            return moment(value) or shown(value)
        return _percent(value) if name in _SHARES else shown(value)


def read_facts(payload: bytes) -> Facts:
    """Of a JSON object; anything else has no fields."""
    found = _parsed(payload)
    return Facts(found if isinstance(found, dict) else {})


def generic_lines(payload: bytes) -> list[str]:
    """A payload of no known form: an object's fields, one a line, or all of it as one."""
    found = _parsed(payload)
    if not isinstance(found, dict):
        text = shown(payload.decode(errors="replace") if found is None else found)
        return [text] if text not in ("", "null") else []
    lines = [f"{shown(name)}: {shown(value)}" for name, value in list(found.items())[:_MOST_LINES] if shown(value)]
    return "\n".join(lines)[:_MOST_TEXT].splitlines()


def moment(milliseconds: object) -> str:
    """A time since the epoch in UTC; empty where there is none, or none that a calendar has."""
    try:
        seconds = int(milliseconds) / 1000  # type: ignore[call-overload]
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if seconds > 0 else ""
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def shown(value: object) -> str:
    """A JSON value as one line of bounded length; empty for what says nothing."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else _dumped(value)
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
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
