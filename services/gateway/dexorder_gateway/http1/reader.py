"""Requests out of the bytes of one connection. No I/O, no clock.

httptools refuses what proxies and servers could read in two ways (RFC 9112, section 11.2): two lengths, a length beside
chunks, line ends without CR, spaces before a colon, folded headers.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from dexorder_gateway.http1.limits import MAX_HEAD_BYTES
from dexorder_gateway.http1.messages import HttpRequest
from dexorder_gateway.http1.remembered import remembered

_CHUNK_OVERHEAD = 8
"""Bytes of chunked coding for each byte of a body; a chunk of one byte has 5 beside it."""
_OF_THE_CONNECTION = frozenset({b"connection", b"upgrade", b"http2-settings"})


class BadRequest(Exception):
    """Bytes that are no request, with the answer's status; nothing after them can be read."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Part(Enum):
    """What the next bytes belong to."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    END = auto()
    """Nothing more is read."""


class RequestReader:
    """Reads one connection.

    Attributes:
        part: Part of a request that the next bytes belong to.
        awaits_continue: Whether the client sends the body only after status 100; whoever sends that clears it.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.part = Part.NOTHING
        self.awaits_continue = False
        self._max_body_bytes = max_body_bytes
        self._parser: Any = HttpRequestParser(self)
        self._whole: list[HttpRequest] = []
        self._refused: BadRequest | None = None
        self._request: HttpRequest | None = None
        self._fed = 0
        self._start()

    def feed(self, data: bytes) -> list[HttpRequest]:
        """Take the next bytes; return the requests that they complete.

        Raises:
            BadRequest: The rest can't be read; `taken` has the requests before.
        """
        if self.part is Part.END:
            return []
        self._fed += len(data)
        try:
            self._parse(data)
        except HttpParserError as error:
            self.part = Part.END
            raise self._refused or BadRequest(400, f"the request can't be read: {error}") from error
        if self.part is not Part.NOTHING and self._fed - _CHUNK_OVERHEAD * self._size > MAX_HEAD_BYTES:
            self.part = Part.END
            raise _too_long()
        return self.taken()

    def taken(self) -> list[HttpRequest]:
        """Return the requests that were completed, once."""
        whole, self._whole = self._whole, []
        return whole

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            # Java's client asks for HTTP/2 with each request, and goes on without it. The parser takes what follows
            # the head for the other protocol; for us it is the body.
            head = self._whole.pop()
            if head.method == "CONNECT":
                raise HttpParserError("CONNECT is a request to a proxy") from None
            self._parser = HttpRequestParser(self)
            self._parse(_without_upgrade(head, self._raw) + data[upgrade.args[0] :])

    # ---- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.part = Part.HEAD
        self._start()

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which follow the body, are left out."""
        if self.part is Part.HEAD:
            self._raw.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the end of the head."""
        if self._fed > MAX_HEAD_BYTES and len(self._target) + _size_of(self._raw) > MAX_HEAD_BYTES:
            self._refused = _too_long()
            raise self._refused
        headers = [(_lower(name), value.decode("utf-8", "surrogateescape")) for name, value in self._raw]
        first = dict(headers)
        if len(first) < len(headers):
            first = dict(reversed(headers))
        parser = self._parser
        method, is_old = parser.get_method().decode(), parser.get_http_version() == "1.0"
        self._request = HttpRequest(method, self._target, headers, first, parser.should_keep_alive(), is_old)
        self.part = Part.BODY
        self.awaits_continue = not is_old and first.get("expect", "").lower() == "100-continue"

    def on_body(self, part: bytes) -> None:
        """Take a part of the body. One that is too large is read to its end: clients read no answer before."""
        self._size += len(part)
        if self._size <= self._max_body_bytes:
            self._body += part
        else:
            self._body.clear()

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        request = self._request
        assert request is not None
        request.body, request.is_too_large = bytes(self._body), self._size > self._max_body_bytes
        self._whole.append(request)
        self._fed = 0
        self.awaits_continue = False
        self.part = Part.NOTHING if request.keeps_alive else Part.END

    def _start(self) -> None:
        self._target = b""
        self._raw: list[tuple[bytes, bytes]] = []
        self._request = None
        self._body = bytearray()
        self._size = 0


def _lowered(name: bytes) -> str:
    return name.decode().lower()


_lower = remembered(_lowered, 256)


def _size_of(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) + len(": \r\n") for name, value in headers)


def _too_long() -> BadRequest:
    return BadRequest(431, f"a request has more than {MAX_HEAD_BYTES} bytes beside its body")


def _without_upgrade(head: HttpRequest, raw: list[tuple[bytes, bytes]]) -> bytes:
    """Return a head as if its client had not asked for another protocol."""
    version = b"1.0" if head.is_old else b"1.1"
    connection = (b"Connection", b"keep-alive" if head.keeps_alive else b"close")
    kept = [each for each in raw if each[0].lower() not in _OF_THE_CONNECTION]
    lines = [b"%s %s HTTP/%s" % (head.method.encode(), head.target, version)]
    lines += [b"%s: %s" % each for each in (*kept, connection)]
    return b"\r\n".join((*lines, b"", b""))
