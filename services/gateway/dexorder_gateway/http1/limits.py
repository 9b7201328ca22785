"""Limits of one HTTP connection, in size and time."""

from __future__ import annotations

from dataclasses import dataclass

KEEPALIVE_SECONDS = 15.0
"""Time without a request after which a connection is closed."""
REQUEST_SECONDS = 10.0
"""Time for the head of a request to arrive, and the same time for its body."""
MAX_HEAD_BYTES = 64 * 1_024
"""Bytes of a request that are not its body: request line, headers, trailers, sizes of chunks beyond 8 bytes a byte."""
MAX_PIPELINED = 100
"""Requests of a connection that wait for the answer to an earlier one."""
MAX_CONNECTIONS = 10_000
"""Open connections of a server; one more is closed at once."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of every connection of a server; ``max_body_bytes`` are those of one request."""

    max_body_bytes: int
    keepalive_seconds: float = KEEPALIVE_SECONDS
    request_seconds: float = REQUEST_SECONDS
    max_connections: int = MAX_CONNECTIONS
