"""Doors: peers of a bound ZMQ socket connect to us, and we connect to it, so that no connection breaks inside libzmq.

libzmq 4.3.5 ends its process when a connection breaks that it has stopped reading and a heartbeat of either side comes
up after that (docs/decisions/0018). Behind a door none breaks: bytes are carried as they are, and when a peer is gone
libzmq reads the last byte and then the end. Who sends faster than the other side takes has to wait, as without a door.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from asyncio import Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import uvloop
import zmq

from services.common.config import split_address

log = structlog.get_logger(__name__)
_INSIDE = "127.0.0.1"  # no Unix socket: there libzmq ends the process when it is out of file descriptors
_BACKLOG = 1_024
_KEEPALIVE_S = 5
_SILENT_S = 20
"""A peer whose host acknowledges nothing for so long is let go."""
_LAST_BYTES_S = 1.0
_PEER_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1_000),  # keepalive waits while bytes are under way
)


class Doors:
    """The doors of one process, served by a thread of their own; `open_doors` makes them."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._closing = asyncio.Event()
        self._ports: dict[str, int] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._peers: set[_Peer] = set()
        self._thread = threading.Thread(target=self._run, name="doors", daemon=True)
        self._thread.start()

    def bind(self, sock: zmq.Socket[Any], listen: str) -> str:
        """Let peers in at ``listen``, ``tcp://host:port``, and on to ``sock``; new ones only, if that door is open.

        Returns:
            Where they connect to; port 0 takes a free one.

        Raises:
            OSError: The address can't be bound.
        """
        sock.setsockopt(zmq.BACKLOG, _BACKLOG)
        port = sock.bind_to_random_port(f"tcp://{_INSIDE}")
        if listen in self._ports:
            self._ports[listen] = port
            return listen
        bound = _listening(listen)
        address = f"{listen.rpartition(':')[0]}:{bound.getsockname()[1]}"
        self._ports[address] = port
        asyncio.run_coroutine_threadsafe(self._serve(bound, address), self._loop).result()
        return address

    def close(self) -> None:
        """No more. The sockets are closed before; what they said last still goes out."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _serve(self, bound: socket.socket, address: str) -> None:
        made = await self._loop.create_server(lambda: _Peer(self._peers, lambda: self._ports[address]), sock=bound)
        self._servers.append(made)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._until_closed())
        finally:
            self._loop.close()

    async def _until_closed(self) -> None:
        await self._closing.wait()
        for server in self._servers:
            server.close()
        until_s = self._loop.time() + _LAST_BYTES_S
        while self._peers and self._loop.time() < until_s:  # noqa: ASYNC110 - libzmq lets them go, one by one
            await asyncio.sleep(0.01)
        for peer in self._peers:
            peer.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def open_doors() -> Iterator[Doors]:
    """Doors until the block ends; sockets and their context are closed inside of it."""
    doors = Doors()
    try:
        yield doors
    finally:
        doors.close()


def _listening(listen: str) -> socket.socket:
    try:
        host, port = split_address(listen)
        at = "0.0.0.0" if host == "*" else host, port  # noqa: S104 - where the settings permit it
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server(at, family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6)
    except (OSError, ValueError) as error:
        raise OSError(f"can't listen on {listen}: {error}") from error


class _End(asyncio.Protocol):
    """One of the two connections of a peer: what comes here goes out at the other one."""

    transport: Transport
    other: _End | None = None

    def data_received(self, data: bytes) -> None:
        if (way := self._way()) is not None:
            way.write(data)

    def pause_writing(self) -> None:
        if (way := self._way()) is not None:
            way.pause_reading()

    def resume_writing(self) -> None:
        if (way := self._way()) is not None:
            way.resume_reading()

    def _way(self) -> Transport | None:
        return None if self.other is None or self.other.transport.is_closing() else self.other.transport


class _Peer(_End):
    """The connection that a peer made.

    Args:
        port: Where libzmq listens.
    """

    def __init__(self, peers: set[_Peer], port: Callable[[], int]) -> None:
        self._peers = peers
        self._port = port
        self._early: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._peers.add(self)
        for level, option, value in _PEER_OPTIONS:
            transport.get_extra_info("socket").setsockopt(level, option, value)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: _Inside(self), _INSIDE, self._port())
        except OSError as error:
            log.warning("a peer is not let in", reason=str(error))
            self.transport.abort()

    def join(self, inside: _Inside) -> None:
        """The way is open."""
        self.other = inside
        inside.transport.writelines(self._early)
        self._early.clear()
        if self.transport.is_closing():
            inside.transport.write_eof()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            self.transport.pause_reading()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.discard(self)
        if (way := self._way()) is not None:
            way.write_eof()
            way.resume_reading()  # of what is read from now on nothing goes out


class _Inside(_End):
    """Our connection to libzmq. It ends when libzmq ends it: if we did, libzmq could end the process."""

    def __init__(self, peer: _Peer) -> None:
        self.other = self._peer = peer

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._peer.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.transport.close()
