"""Ids of dispatches: ``"{number}-{token}"``. Pure.

The relay issues the numbers, and a later dispatch always has a larger one. So a number orders what dispatches bring,
without any clock. The token is random: whoever knows the number of a dispatch cannot guess its id.

The token of a traced dispatch has ``MAX_TOKEN_LENGTH`` digits: the random ones, then the context of its trace. So the
context reaches every part that sees the id, through protocols that have no field for it.
"""

from __future__ import annotations

import re
import secrets

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.trace import CONTEXT_LENGTH, TraceContext, read_context

MAX_NUMBER = 2**62 - 1
MIN_TOKEN_LENGTH = 16
"""Hexadecimal digits of a token: 64 random bits."""
MAX_TOKEN_LENGTH = MIN_TOKEN_LENGTH + CONTEXT_LENGTH
_FORM = re.compile(rf"([1-9][0-9]{{0,18}})-[0-9a-f]{{{MIN_TOKEN_LENGTH},{MAX_TOKEN_LENGTH}}}", re.ASCII)


def new_dispatch_id(number: int, token: str) -> str:
    """Return the id of a dispatch; InvalidRequest if a part is not allowed."""
    dispatch_id = f"{number}-{token}"
    number_of(dispatch_id)
    return dispatch_id


def number_of(dispatch_id: str) -> int:
    """Return the number of a dispatch, 1 to ``MAX_NUMBER``; InvalidRequest if this is not the id of one."""
    form = _FORM.fullmatch(dispatch_id)
    if form is None or (number := int(form[1])) > MAX_NUMBER:
        raise InvalidRequest(
            f"job_id {dispatch_id[:64]!r} is not NUMBER-TOKEN with a number from 1 to {MAX_NUMBER} and "
            f"{MIN_TOKEN_LENGTH} to {MAX_TOKEN_LENGTH} hexadecimal digits"
        )
    return number


def trace_of(dispatch_id: str) -> TraceContext | None:
    """Return the context that an id carries; None for the id of a dispatch that is not traced."""
    _, _, token = dispatch_id.partition("-")
    return read_context(token[MIN_TOKEN_LENGTH:]) if len(token) == MAX_TOKEN_LENGTH else None


class DispatchNumbers:
    """Source of the numbers of dispatches and retractions, each larger than all before.

    Attributes:
        last: The last number that was issued.
    """

    def __init__(self) -> None:
        self.last = 0

    def restart(self, largest: int, *, wall_ns: int) -> None:
        """Continue above every number that was issued before, the largest known of which is ``largest``.

        Where a database older than the last dispatches was restored, those without a trace in the tables are not known.
        So a start also leaves out as many numbers as microseconds have passed since 1970, which is more than can have
        been issued. A wrong clock makes the gap longer or shorter; it never makes a number smaller.
        """
        self.last = max(self.last, largest, wall_ns // 1_000)

    def next(self) -> int:
        """Return a new number."""
        self.last += 1
        return self.last

    def new_id(self, context: str = "") -> str:
        """Return the id of a new dispatch, with the context of its trace as text, if it is traced."""
        return new_dispatch_id(self.next(), secrets.token_hex(MIN_TOKEN_LENGTH // 2) + context)
