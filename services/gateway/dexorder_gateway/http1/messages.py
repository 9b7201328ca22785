"""Requests and answers as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dexorder_gateway.http1.remembered import remembered


def _ignore(was_sent: bool) -> None:
    """Do nothing at the end of a request."""


@dataclass(slots=True)
class HttpRequest:
    """A request that has arrived whole.

    Attributes:
        method: As it was sent, in upper case.
        target: Path and query, as they were sent.
        headers: Names in lower case; bytes of values that are not UTF-8 are lone surrogates.
        first: Values of the headers by name; the first one of a name counts.
        keeps_alive: Whether the client may send a further request.
        is_old: Whether the request is of HTTP/1.0.
        body: Empty if it ``is_too_large``.
        on_end: Called once with whether the whole answer was written.
    """

    method: str
    target: bytes
    headers: list[tuple[str, str]]
    first: Mapping[str, str]
    keeps_alive: bool
    is_old: bool
    body: bytes = b""
    is_too_large: bool = False
    on_end: Callable[[bool], None] = _ignore

    @property
    def path(self) -> str:
        """The target's path; clients of proxies send scheme and host before it."""
        path = self.target.partition(b"?")[0].decode("latin-1")
        return path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]

    @property
    def query(self) -> bytes:
        """The target after the first ``?``."""
        return self.target.partition(b"?")[2]

    @property
    def content_type(self) -> str:
        """The body's type in lower case without its parameters; as RFC 9110 has it where none is given."""
        return _type_of(self.first.get("content-type", "application/octet-stream"))


def _without_parameters(header: str) -> str:
    return header.partition(";")[0].strip().lower()


_type_of = remembered(_without_parameters, 64)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer with its whole body.

    Attributes:
        allow: Methods of the path, with status 405.
    """

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    allow: str = ""
