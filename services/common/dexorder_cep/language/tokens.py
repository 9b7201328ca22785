"""Tokens of a trigger's text. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dexorder_cep.language.refusals import MAX_TEXT_BYTES, MAX_TOKENS, Position, refuse

Kind = Literal["name", "quoted", "number", "text", "symbol", "end"]


class Token(NamedTuple):
    """Token with its place.

    Attributes:
        kind: ``name`` (not quoted), ``quoted`` (in back quotes), ``number``, ``text`` (a string), ``symbol``, ``end``.
        text: As written; of a quoted name or a string, the content.
    """

    kind: Kind
    text: str
    at: Position

    @property
    def word(self) -> str:
        """The name in upper case if it is not quoted, the symbol, otherwise the empty string."""
        return self.text.upper() if self.kind == "name" else self.text if self.kind == "symbol" else ""


_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_$]*)
  | `(?P<quoted>[^`]+)`
  | '(?P<text>(?:[^']|'')*)'
  | (?P<symbol><>|!=|<=|>=|\|\||\{-|-\}|[-+*/%=<>().,;{}?^$|\[\]:])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a text, ended by one of kind ``end``.

    Raises:
        InvalidSql: The text is too long or has a character that no token begins with.
    """
    start = Position(1, 1)
    if len(sql) > MAX_TEXT_BYTES or len(sql.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
        raise refuse(start, f"the text has more than {MAX_TEXT_BYTES} bytes")
    found: list[Token] = []
    line, line_start, index = 1, 0, 0
    while index < len(sql):
        at = Position(line, index - line_start + 1)
        match = _TOKEN.match(sql, index)
        if match is None:
            raise refuse(at, _unreadable(sql[index]))
        kind = match.lastgroup or ""
        if kind != "space":
            text = match[kind].replace("''", "'") if kind == "text" else match[kind]
            found.append(Token(kind, text, at))  # type: ignore[arg-type]
            if len(found) > MAX_TOKENS:
                raise refuse(at, f"the text has more than {MAX_TOKENS} words and symbols")
        breaks = match[0].count("\n")
        if breaks:
            line += breaks
            line_start = index + match[0].rindex("\n") + 1
        index = match.end()
    found.append(Token("end", "", Position(line, index - line_start + 1)))
    return found


def _unreadable(character: str) -> str:
    if character in "'`":
        return f"the {'string' if character == chr(39) else 'quoted name'} is not closed"
    if character == '"':
        return "a double quote is not accepted: strings have single quotes, names have back quotes (`close`)"
    return f"unexpected character {character!r}"
