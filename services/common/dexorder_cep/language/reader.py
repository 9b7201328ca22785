"""Position in a list of tokens, with the errors of a parser. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_cep.language.refusals import MAX_DEPTH, MAX_NODES, InvalidSql, TextPosition, refuse
from dexorder_cep.language.tokens import RESERVED, Token


class TokenReader:
    """Tokens of a text, read from the first to the last.

    It counts the nodes and the depth while reading, so that a text that is too large is refused before it is a tree.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._words = tuple(each.word for each in tokens)
        self._index = 0
        self._depth = 0
        self._nodes = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._index]

    @property
    def at(self) -> TextPosition:
        """Place of the next token."""
        return self.token.at

    def peek(self, ahead: int) -> Token:
        """Return a token after the next one; beyond the last token, the last one."""
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Return the next token and go to the one after it."""
        token = self.token
        if token.kind != "end":
            self._index += 1
        return token

    def sees(self, *words: str) -> bool:
        """Return whether the next tokens are these words or symbols."""
        return self._words[self._index : self._index + len(words)] == words

    def accept(self, *words: str) -> bool:
        """Take these words or symbols if they are next."""
        if not self.sees(*words):
            return False
        self._index += len(words)
        return True

    def expect(self, *words: str) -> TextPosition:
        """Take these words or symbols; return the place of the first."""
        at = self.at
        for word in words:
            if not self.accept(word):
                raise self.unexpected(word)
        return at

    def unexpected(self, *wanted: str) -> InvalidSql:
        """Return the error for the next token."""
        token = self.token
        found = "the end of the text" if token.kind == "end" else repr(token.text)
        return refuse(token.at, f"{found} is not accepted here; expected {' or '.join(wanted)}")

    def identifier(self, what: str, also: frozenset[str] = frozenset()) -> Token:
        """Take a name that is quoted or not reserved.

        Args:
            what: Purpose of the name, for the error.
            also: Reserved words that are accepted here without quotes.
        """
        token = self.token
        if token.kind not in ("name", "quoted"):
            raise self.unexpected(what)
        if token.kind == "name" and (word := token.text.upper()) in RESERVED and word not in also:
            raise refuse(
                token.at, f"{token.text!r} is a reserved word of Flink SQL: write `{token.text}` in back quotes"
            )
        return self.take()

    def count_node(self, at: TextPosition) -> None:
        """Count a node of the tree."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise refuse(at, f"the text has more than {MAX_NODES} operators, names and literals")

    def enter(self) -> None:
        """Count one more level of nesting."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise refuse(self.at, f"expressions are nested deeper than {MAX_DEPTH} levels")

    def leave(self, levels: int = 1) -> None:
        """Leave levels of nesting."""
        self._depth -= levels
