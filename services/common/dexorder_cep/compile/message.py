"""Texts of a trigger's author for its firings: ``{{ticker}} at {{close}}``, filled from a row of the result. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dexorder_cep.compile.plans import ResultColumn
from dexorder_cep.language.refusals import InvalidSql
from dexorder_common.model.times import iso

MAX_TEMPLATE = 1_000
"""Largest number of characters of a template."""
MAX_MESSAGE = 2_000
"""Characters of a message; the rest is cut off."""
_PLACE = re.compile(r"\{\{\s*([^{}]{0,128}?)\s*\}\}")
_FACTS = ("ticker", "time", "trigger_id")
"""Facts of a firing that every template may have; a column of the result of the same name comes first."""


@dataclass(frozen=True, slots=True)
class Message:
    """Checked template: texts, and between them names of columns or facts."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    def of(self, columns: Sequence[ResultColumn], row: Sequence[Any], facts: Mapping[str, str]) -> str:
        """Return the message for a row of the result, with values as in an event."""
        known = dict(facts)
        for column, value in zip(columns, row, strict=True):
            known[column.name] = _shown(value, column.type)
        parts = [self.texts[0]]
        for name, text in zip(self.names, self.texts[1:], strict=True):
            parts += (known[name], text)
        message = "".join(parts)
        return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."


def check_message(template: str, columns: Sequence[ResultColumn]) -> Message:
    """Return a template, checked.

    Raises:
        InvalidSql: It is too long, or a placeholder is neither a column of the result nor a fact of every firing.
    """
    if len(template) > MAX_TEMPLATE:
        raise InvalidSql(0, 0, f"message: it has {len(template)} characters; at most {MAX_TEMPLATE} are allowed")
    parts = _PLACE.split(template)
    texts, names = tuple(parts[::2]), tuple(parts[1::2])
    if any("{{" in text or "}}" in text for text in texts):
        raise InvalidSql(0, 0, "message: '{{' and '}}' stand around the name of a column, as in {{close}}")
    known = [column.name for column in columns]
    for name in names:
        if name not in known and name not in _FACTS:
            accepted = ", ".join([*known[:20], *(each for each in _FACTS if each not in known)])
            raise InvalidSql(0, 0, f"message: {{{{{name[:60]}}}}} is not a column of the result; use {accepted}")
    return Message(texts, names)


def _shown(value: Any, kind: str) -> str:
    if value is None:
        return "NULL"
    if kind.startswith("TIMESTAMP"):
        return iso(value)
    if isinstance(value, bool):
        return str(value).upper()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
