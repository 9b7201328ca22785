"""Length-prefixed messages of gRPC: one byte that says whether it is compressed, four bytes of length, the message."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from dexorder_common.model.errors import Code, Exhausted, InvalidRequest, SuiteError

PREFIX = struct.Struct(">BI")
IDENTITY, GZIP = "identity", "gzip"
ENCODINGS = (IDENTITY, GZIP)
"""Compressions of requests that are understood; answers are never compressed."""
_GZIP_FORMAT = 31


class UnknownEncoding(SuiteError):
    """A compression that this server does not know."""

    code = Code.UNIMPLEMENTED


class Framed(NamedTuple):
    """One message as it was sent, maybe compressed."""

    is_compressed: bool
    data: bytes


def frame(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return PREFIX.pack(0, len(message)) + message


def frames(messages: Iterable[bytes]) -> bytes:
    """Return messages one after the other, each with its prefix."""
    pack = PREFIX.pack
    return b"".join([part for message in messages for part in (pack(0, len(message)), message)])


def only_message(body: bytes, limit: int) -> bytes | None:
    """Return the message of a body that is exactly one without compression; None for any other body."""
    size = len(body) - PREFIX.size
    if not 0 <= size <= limit or PREFIX.unpack_from(body) != (0, size):
        return None
    return body[PREFIX.size :]


class Deframer:
    """Messages of one request as their bytes arrive.

    Args:
        limit: Largest size of a message on the wire.
    """

    __slots__ = ("_limit", "_parts", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes of a message that has not arrived whole."""
        return self._size

    def feed(self, data: bytes) -> list[Framed]:
        """Return the messages that are whole now.

        Raises:
            Exhausted: A message is too large; its prefix is enough to say so.
            InvalidRequest: A prefix is none.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted():
            return []
        buffer = b"".join(self._parts)
        messages, start = [], 0
        while (whole := _whole(buffer, start, self._limit)) is not None:
            messages.append(whole)
            start += PREFIX.size + len(whole.data)
        self._parts = [buffer[start:]]
        self._size = len(buffer) - start
        return messages

    def _wanted(self) -> int:
        """Return the bytes to wait for, so that a long message in small pieces is joined once."""
        if len(first := self._parts[0]) < PREFIX.size:
            return PREFIX.size
        size: int = PREFIX.unpack_from(first)[1]
        return PREFIX.size + (size if size <= self._limit else 0)

    def finish(self) -> None:
        """Note the end of the request; InvalidRequest if it is inside a message."""
        if self._size:
            raise InvalidRequest(f"the request ends inside a message, after {self._size} bytes of it")


def _whole(buffer: bytes, start: int, limit: int) -> Framed | None:
    """Return the message that starts in a buffer; None if a part of it is missing."""
    if len(buffer) - start < PREFIX.size:
        return None
    flag, size = PREFIX.unpack_from(buffer, start)
    if flag > 1:
        raise InvalidRequest(f"the first byte of a message is {flag}, not 0 or 1")
    if size > limit:
        raise too_large(size, limit)
    first = start + PREFIX.size
    return Framed(bool(flag), buffer[first : first + size]) if len(buffer) >= first + size else None


def check_encoding(encoding: bytes | None) -> bool:
    """Return whether messages of a call may be compressed; UnknownEncoding for another way than gzip."""
    if encoding is None or encoding == IDENTITY.encode():
        return False
    if encoding == GZIP.encode():
        return True
    raise UnknownEncoding(f"grpc-encoding {encoding[:64]!r} is not supported; use gzip")


def expanded(message: Framed, limit: int, *, is_gzip: bool) -> bytes:
    """Return a message without its compression.

    Raises:
        Exhausted: It is larger than the limit; the rest was not expanded.
        InvalidRequest: It is not compressed as the call's headers say.
    """
    if not message.is_compressed:
        return message.data
    if not is_gzip:
        raise InvalidRequest("a message is compressed, but grpc-encoding names no compression")
    expander = zlib.decompressobj(_GZIP_FORMAT)
    try:
        data = expander.decompress(message.data, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"a message is not in gzip format: {error}") from None
    if len(data) > limit:
        raise too_large(len(data), limit)
    if not expander.eof or expander.unused_data:
        raise InvalidRequest("a message is not one whole gzip stream")
    return data


def too_large(size: int, limit: int) -> Exhausted:
    """Return the error of a message that is over the limit."""
    return Exhausted(f"the message has {size} bytes or more; at most {limit} are allowed")
