"""How a protobuf message goes over ZMQ: ``[0x01][type byte + protobuf]``, for every port alike. Pure.

Each port gives the type bytes a meaning of its own, so each has its own table: ``broker_frames``, ``event_frames``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from services.common.model.errors import InvalidRequest

VERSION = b"\x01"
M = TypeVar("M", bound=Message)


class BadFrame(InvalidRequest):
    """Frames that are no message; ``reason`` is one of frame_count, version, type, undecodable."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class FrameCodec(Generic[M]):
    """The messages of one port."""

    def __init__(self, types: Mapping[int, type[M]]) -> None:
        """Made once a port.

        Args:
            types: The message of each type byte.
        """
        self._types = dict(types)
        self._type_of = {message: bytes([number]) for number, message in types.items()}
        self._span = f"{min(types):02x}-{max(types):02x}" if len(types) > 1 else f"{min(types):02x}"

    def encode(self, message: M) -> list[bytes]:
        """The two frames of a message."""
        return [VERSION, self._type_of[type(message)] + message.SerializeToString()]

    def check(self, frames: Sequence[bytes]) -> type[M]:
        """The kind of message in two frames (identity or topic already taken off), which is not parsed.

        Raises:
            BadFrame: Another frame count, version or type.
        """
        if len(frames) != 2:
            raise BadFrame("frame_count", f"{len(frames)} frames where version and message were expected")
        version, body = frames
        if version != VERSION:
            raise BadFrame("version", f"protocol version {version[:8].hex() or 'empty'} is not 01")
        if not body or body[0] not in self._types:
            raise BadFrame("type", f"message type {body[:1].hex() or 'missing'} is none of {self._span}")
        return self._types[body[0]]

    def decode(self, frames: Sequence[bytes]) -> M:
        """The message in two frames (identity or topic already taken off).

        Raises:
            BadFrame: Another frame count, version or type, or bytes that do not parse; drop and count it.
        """
        kind = self.check(frames)
        try:
            return kind.FromString(frames[1][1:])
        except DecodeError as error:
            number = frames[1][0]
            raise BadFrame("undecodable", f"message of type {number:02x} does not parse: {error}") from error
