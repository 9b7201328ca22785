"""Ids of dispatches: ``"{number}-{token}"``. Pure.

The relay issues the numbers, and a later dispatch always has a larger one. So the numbers order the pages of dispatches
without a clock. The token is random: the id cannot be guessed from the number of a dispatch.

The token of a traced dispatch has ``MAX_TOKEN_LENGTH`` digits: the random ones, then the context of its trace. So the
context reaches every part that sees the id, through protocols without a field for it. A context exists only for
recorded traces; its ids are the ids of W3C Trace Context (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dexorder_common.model.errors import InvalidRequest

CONTEXT_LENGTH = 48
"""Hexadecimal digits of a context as text: 32 of the trace, 16 of the span."""
_CONTEXT = re.compile(rf"[0-9a-f]{{{CONTEXT_LENGTH}}}", re.ASCII)


class TraceContext(NamedTuple):
    """A span that is recorded: 32 hexadecimal digits of its trace, and 16 of the span."""

    trace_id: str
    span_id: str

    @property
    def text(self) -> str:
        """The context as ``read_context`` takes it."""
        return self.trace_id + self.span_id

    @property
    def traceparent(self) -> str:
        """Value of the header ``traceparent``, with the flag "sampled"."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    def derived(self, name: str) -> TraceContext:
        """Return the context of the span with a name in this trace, the same in every process and after a restart."""
        digest = hashlib.sha256(f"{self.trace_id} {name}".encode()).hexdigest()
        return TraceContext(self.trace_id, digest[: CONTEXT_LENGTH - len(self.trace_id)])


def read_context(text: str) -> TraceContext | None:
    """Return the context in a text; None if it is not one. Ids of zeros only are invalid."""
    if not _CONTEXT.fullmatch(text):
        return None
    context = TraceContext(text[:32], text[32:])
    return context if context.trace_id.strip("0") and context.span_id.strip("0") else None


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

    def __init__(self, new_token: Callable[[], str] | None = None) -> None:
        """Take the source of tokens; by default they are secret."""
        self.last = 0
        self._new_token = new_token or partial(secrets.token_hex, MIN_TOKEN_LENGTH // 2)

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
        """Return the id of a new dispatch, with the context of its trace as text, if it is traced.

        The number before it is left out, for a retraction of the claims that the dispatch replaces.
        """
        self.next()
        return new_dispatch_id(self.next(), self._new_token() + context)
