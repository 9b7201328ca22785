"""Answers of exchanges: values at a place in one, and the error of one that cannot be used. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MS_NS = 1_000_000
Path = tuple[str | int, ...]
"""Keys and indexes from the top of an answer."""
MARKET = "{market}"
"""Stands in a path for the exchange's id of the queried market."""


class BadAnswer(Exception):
    """Answer that is not a valid list of rows of the queried window; the query is worth repeating.

    Attributes:
        kind: Kind of fault in one word, for metrics.
        opens: Open times of the faulty candles, if the answer is valid except for these.
    """

    def __init__(self, reason: str, *, kind: str = "shape", opens: Iterable[int] = ()) -> None:
        super().__init__(reason)
        self.kind = kind
        self.opens = tuple(opens)


def at(answer: Any, path: Path) -> Any:
    """Return the value at a path, or None if the answer lacks the place."""
    for key in path:
        if isinstance(key, int):
            answer = answer[key] if isinstance(answer, list) and key < len(answer) else None
        else:
            answer = answer.get(key) if isinstance(answer, dict) else None
    return answer
