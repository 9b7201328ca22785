"""Frames of the UDF protocol: an unsigned varint with the length of a message, then the message. Pure.

Frames lack a magic number, a version and a checksum, and the protocol does not limit their size. This reader does, so
that a wrong length can't make it allocate memory: it keeps at most one incomplete frame.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from dexorder_udf.errors import ProtocolError

DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024
MAX_VARINT_BYTES = 10
"""Bytes of the longest varint of 64 bits."""

_FIELD_1 = b"\x0a"  # tag of a field 1 with a length
_SHOWN_BYTES = 48
_TEXT = re.compile(rb"[\t\r\n -~]{5,}")
_SMALL = [bytes((n,)) for n in range(128)]


def encode_varint(value: int) -> bytes:
    """Return a number from 0 to 2^64 - 1 as a varint."""
    if value < 128:
        return _SMALL[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def frame(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return encode_varint(len(message)) + message


class FrameSplitter:
    """Divides a stream of bytes into messages.

    ``feed`` takes bytes in pieces of any size and returns the messages that are complete with them, in order. Messages
    before a wrong frame are returned, and the error is kept for `check`. After it the stream can't be read on.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES, first_bytes: Collection[int] | None = None) -> None:
        """Take the limits of messages.

        Args:
            limit_bytes: Largest size.
            first_bytes: First bytes that a message may have. Another one is an error before the message is complete,
                so that printed text is not waited for as a frame.
        """
        self.limit_bytes = limit_bytes
        self._first_bytes = first_bytes
        self._rest = bytearray()
        self._needed = 1  # bytes of the incomplete frame without which it can't be complete
        self._error: ProtocolError | None = None

    def check(self) -> None:
        """Raise the error of the frame after the last returned message.

        Raises:
            ProtocolError: Its length is larger than the limit or longer than 10 bytes, or it is not a message.
        """
        if self._error is not None:
            raise self._error

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that are complete now, possibly none. Call `check` after they are processed."""
        messages: list[bytes] = []
        try:
            self._split(piece, messages)
        except ProtocolError as error:
            self._error = error
        return messages

    def _split(self, piece: bytes, messages: list[bytes]) -> None:
        self.check()
        if self._rest:
            self._rest += piece
            if len(self._rest) < self._needed:
                return
            piece = bytes(self._rest)
            self._rest.clear()
        append = messages.append
        size, start = len(piece), 0
        while start < size:
            length = piece[start]
            body = start + 1
            if length > 127:
                # Nearly every point is shorter than 16 KiB, so two bytes are read without a loop.
                if body < size and piece[body] < 128:
                    length = (length & 127) | piece[body] << 7
                    body += 1
                else:
                    found = self._long_length(piece, start)
                    if found is None:
                        self._keep(piece, start, 1)
                        break
                    length, body = found
            end = body + length
            if end > size:
                if length > self.limit_bytes:
                    raise _too_long(length, self.limit_bytes, piece[start:])
                if self._first_bytes is not None and body < size and piece[body] not in self._first_bytes:
                    raise ProtocolError(f"bytes are not a message ({shown(piece[start:])}){text_hint(piece[start:])}")
                self._keep(piece, start, end - start)
                break
            if length > self.limit_bytes:
                raise _too_long(length, self.limit_bytes, piece[start:])
            append(piece[body:end])
            start = end

    @property
    def pending(self) -> bytes:
        """Return the start of the incomplete frame, its length included."""
        return bytes(self._rest[:_SHOWN_BYTES])

    def _keep(self, piece: bytes, start: int, needed: int) -> None:
        self._rest += piece[start:]
        self._needed = needed

    def _long_length(self, piece: bytes, start: int) -> tuple[int, int] | None:
        value = 0
        for index in range(MAX_VARINT_BYTES):
            at = start + index
            if at >= len(piece):
                return None
            byte = piece[at]
            value |= (byte & 127) << 7 * index
            if byte < 128:
                if value >= 1 << 64:
                    break
                return value, at + 1
            if value > self.limit_bytes:
                # The remaining bytes only add to it; do not wait for them.
                raise _too_long(value, self.limit_bytes, piece[start:], "at least ")
        raise ProtocolError(f"a frame length has more than 64 bits ({shown(piece[start:])})")


def wrap(messages: Iterable[bytes]) -> bytes:
    """Return messages as one with a repeated field 1: RunRequest or RunResponse of the gRPC service."""
    return b"".join([_FIELD_1 + encode_varint(len(each)) + each for each in messages])


def unwrap(message: bytes) -> bytes:
    """Return the frames of a RunRequest or RunResponse without parsing their content.

    Raises:
        ProtocolError: There is something else in it.
    """
    pieces: list[bytes] = []
    start, size = 0, len(message)
    while start < size:
        if message[start] != _FIELD_1[0]:
            raise ProtocolError(f"a gRPC message has other content than field 1 ({shown(message[start:])})")
        body, length, shift = start + 1, 0, 0
        while True:
            if body >= size or shift > 63:
                raise ProtocolError(f"a gRPC message has a wrong length ({shown(message[start:])})")
            byte = message[body]
            body += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        end = body + length
        if end > size:
            raise ProtocolError(f"a gRPC message has a wrong length ({shown(message[start:])})")
        pieces.append(message[start + 1 : end])
        start = end
    return b"".join(pieces)


def shown(data: bytes) -> str:
    """Return the start of bytes for an error: as quoted text if they start with text, else in hex."""
    text = _text_prefix(data)
    if text:
        more = "..." if len(data) > len(text) else ""
        return f'"{repr(text)[1:-1]}{more}"'
    head = data[:_SHOWN_BYTES]
    return head.hex(" ") + ("..." if len(data) > len(head) else "")


def text_hint(data: bytes) -> str:
    """Return a remark on the usual cause of undecodable frames, text printed on stdout; empty if it is not that."""
    if _text_prefix(data):
        return "; it looks like text: stdout carries the protocol, print to stderr instead"
    return ""


def _text_prefix(data: bytes) -> str:
    """Return the readable text with which bytes start, if it is too long for a coincidence."""
    found = _TEXT.match(data[:_SHOWN_BYTES])
    return found[0].decode("ascii") if found else ""


def _too_long(length: int, limit: int, data: bytes, qualifier: str = "") -> ProtocolError:
    return ProtocolError(
        f"a frame has {qualifier}{length:,} bytes, more than the limit of {limit:,} ({shown(data)}){text_hint(data)}"
    )
