"""DEALER sockets to port 5567 of the relay, each for one connection.

A monitor watches each socket, because a DEALER that reconnects by itself keeps its identity, and frames that the broker
sent to the dead connection are lost without notice.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, Self

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from dexorder_common.messaging.curve import curve_client
from dexorder_common.messaging.handshake import CLIENT_EVENTS, REFUSED, explain_refusal
from dexorder_ingestor.config import IngestorSettings

_MAX_FRAME_BYTES = 1 << 20
_LINGER_MS = 1_000


class HandshakeRefused(Exception):
    """The handshake with the broker failed; says what to check. The socket does not try again by itself."""


class BrokerSocket(Protocol):
    """A socket that connects by itself, once."""

    async def connected(self) -> None:
        """Wait until the broker has accepted the connection; HandshakeRefused if it refuses."""

    async def lost(self) -> None:
        """Wait until the connection is lost."""

    async def send(self, frames: list[bytes]) -> None:
        """Send a message, or keep it until it can be sent."""

    async def receive(self) -> list[bytes]:
        """Wait for the next message."""


class BrokerSockets(Protocol):
    """Source of sockets while its block lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def open(self) -> AbstractAsyncContextManager[BrokerSocket]:
        """Open a socket with its own identity, until its block ends."""


class ZmqSockets:
    """Sockets to the broker that the settings name."""

    def __init__(self, settings: IngestorSettings) -> None:
        self._settings = settings

    def __enter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BrokerSocket]:
        """Open a socket."""
        socket, monitor = self._context.socket(zmq.DEALER), None
        try:
            socket.set(zmq.IDENTITY, uuid.uuid4().bytes)
            socket.set(zmq.IMMEDIATE, 1)  # do not queue for a connection that does not exist
            socket.set(zmq.LINGER, _LINGER_MS)
            socket.set(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
            socket.set(zmq.RCVHWM, 0)  # our offers bound it; a limit would endanger heartbeats: decision 0018
            socket.set(zmq.RECONNECT_IVL, 200)
            socket.set(zmq.RECONNECT_IVL_MAX, 2_000)
            socket.set(zmq.HEARTBEAT_IVL, 2_000)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 6_000)
            socket.set(zmq.HEARTBEAT_TTL, 10_000)
            socket.set(zmq.HANDSHAKE_IVL, int(self._settings.broker_handshake_seconds * 1_000))
            if self._settings.broker_curve_key and self._settings.broker_curve_server:
                curve_client(socket, self._settings.broker_curve_key, self._settings.broker_curve_server)
            monitor = socket.get_monitor_socket(CLIENT_EVENTS)
            socket.connect(self._settings.broker)
            yield _ZmqSocket(socket, monitor, curve=self._settings.broker_curve_key is not None)
        finally:
            if monitor is not None:
                socket.disable_monitor()
                monitor.close(linger=0)
            socket.close()


class _ZmqSocket:
    def __init__(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, *, curve: bool) -> None:
        self._socket = socket
        self._monitor = monitor
        self._curve = curve

    async def connected(self) -> None:
        event = await self._next(zmq.EVENT_HANDSHAKE_SUCCEEDED | REFUSED)
        if event & REFUSED:
            raise HandshakeRefused(explain_refusal(event, curve=self._curve))

    async def lost(self) -> None:
        await self._next(zmq.EVENT_DISCONNECTED)

    async def send(self, frames: list[bytes]) -> None:
        await self._socket.send_multipart(frames)

    async def receive(self) -> list[bytes]:
        frames: list[bytes] = await self._socket.recv_multipart()
        return frames

    async def _next(self, events: int) -> int:
        """Return the next event that is one of ``events``."""
        while True:
            event: int = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            if event & events:
                return event
