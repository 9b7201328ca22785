"""Limits of one connection, in size and time; beyond them only the call or the connection ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

MAX_STREAMS = 1_000
"""Calls of a connection at the same time, including reset calls with handlers that are still ending."""
MAX_HEADER_BYTES = 16 * 1_024
"""Headers of a call, each with 32 bytes more as HTTP/2 counts; above it the answer is HTTP 431."""
STREAM_WINDOW = 512 * 1_024
"""Bytes that a client may send on a stream while its handler does not read."""
CONNECTION_WINDOW = 16 * 1_024 * 1_024
"""The same of a connection, so one slow handler does not stop the others."""
MAX_RESETS, RESETS_PER_SECOND = 20_000, 1_000
"""Calls that a client may cancel at once, and for how many more a second the connection stays."""
MAX_CONNECTIONS = 10_000
"""Open connections of a server; one more is closed at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of every connection of a server.

    Attributes:
        max_message_bytes: Largest message, both ways.
        idle_seconds: Time without a call after which a connection is ended.
        handshake_seconds: Time for TLS, and for the client's preface after it.
        ping_seconds: Time without a byte from the client after which it is pinged.
        pong_seconds: Time for its answer.
        leave_seconds: Time for it to leave after it was asked to, without calls.
        request_seconds: Time for a unary request to arrive whole.
    """

    max_message_bytes: int = 4 * 1_024 * 1_024
    max_streams: int = MAX_STREAMS
    max_header_bytes: int = MAX_HEADER_BYTES
    max_connections: int = MAX_CONNECTIONS
    idle_seconds: float = 300.0
    handshake_seconds: float = 10.0
    ping_seconds: float = 60.0
    pong_seconds: float = 20.0
    leave_seconds: float = 5.0
    request_seconds: float = 60.0

    @property
    def max_unfinished_bytes(self) -> int:
        """Bytes of requests that have not arrived whole, on one connection."""
        return max(64 * 1_024 * 1_024, 4 * self.max_message_bytes)

    @property
    def max_unread_bytes(self) -> int:
        """Bytes of answers on one connection that wait for their client."""
        return max(64 * 1_024 * 1_024, 4 * self.max_message_bytes)


class ResetBucket:
    """Count of a client's resets: `MAX_RESETS` at once, `RESETS_PER_SECOND` without end."""

    __slots__ = ("_left", "_since_s")

    def __init__(self, now_s: float) -> None:
        self._left = float(MAX_RESETS)
        self._since_s = now_s

    def take(self, now_s: float) -> bool:
        """Count one reset; False if it is too many."""
        earned = (now_s - self._since_s) * RESETS_PER_SECOND
        self._left = min(float(MAX_RESETS), self._left + earned) - 1.0
        self._since_s = now_s
        return self._left >= 0.0


class Due(Enum):
    """Next step that a connection needs."""

    NOTHING = auto()
    PING = auto()
    LEAVE = auto()
    ABORT = auto()


@dataclass(slots=True)
class Signs:
    """Signs of life of a connection, by the event loop's clock."""

    last_read_s: float
    """Time of the last bytes; at first the time of the connection."""
    is_open: bool = False
    """Whether the client's preface has come."""
    has_calls: bool = False
    idle_since_s: float | None = None
    """Time when it was first seen without calls since the last one."""
    pinged_s: float | None = None
    """Time of a ping that is not answered yet."""
    left_s: float | None = None
    """Time when it was asked to leave."""


def due(signs: Signs, now_s: float, limits: Limits) -> tuple[Due, float]:
    """Return the step that a connection needs now, and the seconds after which to ask again.

    Bytes after a ping are as good as its answer, except that a client which was asked to leave has to.
    """
    if not signs.is_open:
        left_s = signs.last_read_s + limits.handshake_seconds - now_s
        return (Due.NOTHING, left_s) if left_s > 0 else (Due.ABORT, 0.0)
    again_s = min(limits.leave_seconds, limits.idle_seconds)
    if signs.has_calls:
        signs.idle_since_s = None
    elif signs.idle_since_s is None:
        signs.idle_since_s = now_s
    if signs.left_s is not None and not signs.has_calls and now_s >= signs.left_s + limits.leave_seconds:
        return Due.ABORT, 0.0
    if signs.pinged_s is not None and signs.last_read_s < signs.pinged_s:
        left_s = signs.pinged_s + limits.pong_seconds - now_s
        return (Due.NOTHING, left_s) if left_s > 0 else (Due.ABORT, 0.0)
    if signs.idle_since_s is not None and signs.left_s is None and now_s >= signs.idle_since_s + limits.idle_seconds:
        return Due.LEAVE, limits.leave_seconds
    silent_s = signs.last_read_s + limits.ping_seconds - now_s
    return (Due.NOTHING, min(silent_s, again_s)) if silent_s > 0 else (Due.PING, min(limits.pong_seconds, again_s))
