"""Values of a trigger's parameters in the place of ``:name`` in its text. Pure.

A value becomes one literal before the text is parsed, so it is checked as a literal in its place is, and no value can
be anything else: a number as SQL writes it, ``true`` or ``false``, or else a text. A value in single quotes is always a
text, even if it looks like a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dexorder_cep.language.refusals import InvalidSql, TextPosition, refuse
from dexorder_cep.language.tokens import Token

_NUMBER = re.compile(r"([+-]?)((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TEXT_FOLLOWS = ("INTERVAL", "TIMESTAMP")
"""Words that make the next literal a text, even if it looks like a number."""
_SHOWN = 40


def with_values(tokens: Sequence[Token], values: Mapping[str, str], reserved: Sequence[str]) -> list[Token]:
    """Return tokens with the values of parameters in the place of their names.

    Args:
        tokens: Tokens of a text.
        values: Values by name.
        reserved: Names of parameters that every trigger has.

    Raises:
        InvalidSql: A name lacks a value, or a value is not used in the text.
    """
    found: list[Token] = []
    used: set[str] = set()
    index = 0
    while index < len(tokens):
        token = tokens[index]
        name = _name_behind(token, tokens[min(index + 1, len(tokens) - 1)])
        if name is None:
            found.append(token)
            index += 1
            continue
        if name in reserved:
            raise refuse(token.at, f":{name} is a parameter of every trigger ({', '.join(reserved)}); use another name")
        if name not in values:
            given = f"; parameters has {', '.join(sorted(values))}" if values else ""
            raise refuse(token.at, f":{name} has no value: parameters lacks {name!r}{given}")
        used.add(name)
        is_text = bool(found) and found[-1].word in _TEXT_FOLLOWS
        found += _literal(values[name], token.at, is_text)
        index += 2
    for name in sorted(values.keys() - used):
        raise InvalidSql(
            0, 0, f"parameters: {name[:60]!r} is not a parameter, and the text has no :{name[:60]}; accepted are "
            f"{', '.join(reserved)}, and the names in the text"
        )  # fmt: skip
    return found


def _name_behind(token: Token, following: Token) -> str | None:
    if (
        token.kind != "symbol"
        or token.text != ":"
        or following.kind != "name"
        or _NAME.fullmatch(following.text) is None
    ):
        return None
    is_next = following.at == TextPosition(token.at.line, token.at.column + 1)
    return following.text if is_next else None


def _literal(value: str, at: TextPosition, is_text: bool) -> list[Token]:
    number = _NUMBER.fullmatch(value)
    if number is not None and not is_text:
        sign = [Token("symbol", "-", at)] if number[1] == "-" else []
        return [*sign, Token("number", number[2], at)]
    if value.lower() in ("true", "false") and not is_text:
        return [Token("name", value, at)]
    is_quoted = len(value) >= 2 and value[0] == value[-1] == "'"
    return [Token("text", value[1:-1].replace("''", "'") if is_quoted else value, at)]


def described(values: Mapping[str, str]) -> str:
    """Return the values of a text for an error about it."""
    return ", ".join(f":{name} = {_kind(value)}" for name, value in sorted(values.items()))


def _kind(value: str) -> str:
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    kinds: dict[str, str] = {"number": "number", "symbol": "number", "name": "BOOLEAN", "text": "text"}
    return f"{kinds[_literal(value, TextPosition(0, 0), False)[0].kind]} {shown!r}"
