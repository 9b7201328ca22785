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
    """Messages of one request as their bytes arrive; those that wait are kept as bytes, however small they are.

    Args:
        limit: Largest size of a message on the wire.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that have arrived and were not taken."""
        return len(self._buffer)

    def feed(self, data: bytes) -> bool:
        """Add bytes; return whether `take` has a message. Raises what `take` would raise."""
        self._buffer += data
        return 0 < self._first_size() <= len(self._buffer)

    def take(self) -> Framed | None:
        """Return the next message; None if it is not whole.

        Raises:
            Exhausted: It is too large; its prefix is enough to say so.
            InvalidRequest: Its prefix is none.
        """
        size = self._first_size()
        if not 0 < size <= len(self._buffer):
            return None
        message = Framed(bool(self._buffer[0]), bytes(self._buffer[PREFIX.size : size]))
        del self._buffer[:size]
        return message

    def finish(self) -> None:
        """Note the end of the request; InvalidRequest if it is inside a message."""
        if self._buffer:
            raise InvalidRequest(f"the request ends inside a message, after {len(self._buffer)} bytes of it")

    def _first_size(self) -> int:
        """Return the size of the first message with its prefix; 0 if the prefix is not whole."""
        if len(self._buffer) < PREFIX.size:
            return 0
        flag, size = PREFIX.unpack_from(self._buffer)
        if flag > 1:
            raise InvalidRequest(f"the first byte of a message is {flag}, not 0 or 1")
        if size > self._limit:
            raise too_large(size, self._limit)
        return PREFIX.size + int(size)


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
