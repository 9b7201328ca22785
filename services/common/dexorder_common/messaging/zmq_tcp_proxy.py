"""TCP proxy in front of a bound ZeroMQ socket: no connection breaks inside libzmq, and none fills the memory.

libzmq 4.3.5 aborts its process when a connection breaks that it has stopped reading and a heartbeat of either side
follows (docs/decisions/0018). Peers connect to the proxy, and the proxy connects to libzmq on loopback and copies bytes
in both directions. When a peer has gone, libzmq reads its last byte and then the end of the stream. A peer that sends
faster than libzmq reads has to wait, like without the proxy.

With `UnreadBytes`, a peer has to wait as well while too many of its bytes are unread. If they are not a complete
message, it would wait forever, so its connection is closed.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from asyncio import Transport
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import structlog
import uvloop
import zmq

from dexorder_common.config import split_address
from dexorder_common.messaging.unread_bytes import Connection, UnreadBytes

log = structlog.get_logger(__name__)
_INNER_HOST = "127.0.0.1"  # not a Unix socket: on one libzmq aborts when it is out of file descriptors
_BACKLOG = 1_024
_KEEPALIVE_S = 5
_SILENT_S = 20
"""Seconds without a TCP acknowledgement after which a peer's connection is closed."""
_DRAIN_SECONDS = 1.0
MAX_CONNECTIONS = 4_096
"""Connections of one port; each takes three file descriptors."""
STUCK_SECONDS = 5.0
"""Time after which a connection is closed that has to wait and of which the reading owner reads nothing."""
Admits = Callable[[str], bool]
"""Whether a peer with this IP address may connect."""
_PEER_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1_000),  # keepalive waits while bytes are in flight
)


class ZmqTcpProxy:
    """Proxy of any number of sockets of one process, served by its own thread; `zmq_tcp_proxy` creates it."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._closing = asyncio.Event()
        self._inner: dict[str, _Inner] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._peers: set[_PeerSide] = set()
        self._thread = threading.Thread(target=self._run, name="zmq-tcp-proxy", daemon=True)
        self._thread.start()

    def bind(
        self, sock: zmq.Socket[Any], listen: str, unread: UnreadBytes | None = None, admits: Admits | None = None
    ) -> str:
        """Accept peers at ``listen``, ``tcp://host:port``, and connect them to ``sock``.

        If this proxy listens there already, only peers that connect later reach ``sock``.

        Args:
            unread: Counts the bytes that the owner of ``sock`` has not read, and limits them.
            admits: Connections of other peers are closed; None takes any.

        Returns:
            The address that peers connect to; port 0 takes a free port.

        Raises:
            OSError: The address can't be bound.
        """
        sock.setsockopt(zmq.BACKLOG, _BACKLOG)
        inner_port = sock.bind_to_random_port(f"tcp://{_INNER_HOST}")
        if listen in self._inner:
            self._inner[listen] = inner_port, unread, admits
            return listen
        bound = _listening(listen)
        address = f"{listen.rpartition(':')[0]}:{bound.getsockname()[1]}"
        self._inner[address] = inner_port, unread, admits
        asyncio.run_coroutine_threadsafe(self._serve(bound, address), self._loop).result()
        return address

    def close(self) -> None:
        """Stop the proxy after its sockets are closed; bytes that they sent last still go out."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _serve(self, bound: socket.socket, address: str) -> None:
        peers: set[_PeerSide] = set()  # of this port
        server = await self._loop.create_server(lambda: _PeerSide(self._peers, peers, self._inner[address]), sock=bound)
        self._servers.append(server)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._until_closed())
        finally:
            self._loop.close()

    async def _until_closed(self) -> None:
        await self._closing.wait()
        for server in self._servers:
            server.close()
        deadline_s = self._loop.time() + _DRAIN_SECONDS
        while self._peers and self._loop.time() < deadline_s:  # noqa: ASYNC110 - libzmq closes them one by one
            await asyncio.sleep(0.01)
        for peer in self._peers:
            peer.transport.abort()
        await asyncio.sleep(0)


def zmq_tcp_proxy() -> closing[ZmqTcpProxy]:
    """Run a proxy until the block ends; its sockets and their context are closed inside the block."""
    return closing(ZmqTcpProxy())


def _listening(listen: str) -> socket.socket:
    try:
        host, port = split_address(listen)
        address = "0.0.0.0" if host == "*" else host, port  # noqa: S104 - the settings have to permit it
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6)
    except (OSError, ValueError) as error:
        raise OSError(f"can't listen on {listen}: {error}") from error


_Inner = tuple[int, UnreadBytes | None, Admits | None]


class _Side(asyncio.Protocol):
    """One of the two connections of a peer: it writes the bytes that arrive to the other one."""

    transport: Transport
    other: _Side | None = None

    def data_received(self, data: bytes) -> None:
        if (target := self._target()) is not None:
            target.write(data)

    def pause_writing(self) -> None:
        if (target := self._target()) is not None:
            target.pause_reading()

    def resume_writing(self) -> None:
        if (target := self._target()) is not None:
            target.resume_reading()

    def _target(self) -> Transport | None:
        return None if self.other is None or self.other.transport.is_closing() else self.other.transport


class _PeerSide(_Side):
    """The connection that a peer has opened.

    Args:
        all_peers: Peers of the proxy.
        peers: Peers of this port.
        inner: Port on which libzmq listens, the count of unread bytes, and which peers it takes.
    """

    def __init__(self, all_peers: set[_PeerSide], peers: set[_PeerSide], inner: _Inner) -> None:
        self._all_peers = all_peers
        self._peers = peers
        self._inner_port, self._unread, self._admits = inner
        self._counted: Connection | None = None
        self._early: list[bytes] = []
        self._is_inner_full = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        host = str(transport.get_extra_info("peername")[0])
        if self._admits is not None and not self._admits(host):
            log.warning("connection of a peer refused: it is not a proxy that may name a caller", peer=host)
            transport.abort()
            return
        if len(self._peers) >= MAX_CONNECTIONS:
            log.warning("connection of a peer refused: too many are open", limit=MAX_CONNECTIONS)
            transport.abort()
            return
        self._all_peers.add(self)
        self._peers.add(self)
        for level, option, value in _PEER_OPTIONS:
            transport.get_extra_info("socket").setsockopt(level, option, value)
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            if self._unread is not None:
                self._counted = self._unread.opened(lambda: self._loop.call_soon_threadsafe(self._go_on))
                with suppress(OSError):  # a system with a single loopback address: no limit
                    return await self._connect_from((self._counted.address, 0))
                self._forget()
            await self._connect_from(None)
        except OSError as error:
            log.warning("connection of a peer refused: the socket is not reachable", reason=str(error))
            self.transport.abort()

    async def _connect_from(self, local: tuple[str, int] | None) -> None:
        await self._loop.create_connection(lambda: _InnerSide(self), _INNER_HOST, self._inner_port, local_addr=local)

    def join(self, inner: _InnerSide) -> None:
        """Connect both sides and pass on the bytes that arrived early."""
        self.other = inner
        early, self._early = b"".join(self._early), []
        self._pass(early, inner.transport)
        if self.transport.is_closing():
            inner.transport.write_eof()
        else:
            self._read_or_wait()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            self.transport.pause_reading()
        elif (target := self._target()) is not None:
            self._pass(data, target)

    def _pass(self, data: bytes, target: Transport) -> None:
        target.write(data)
        counted = self._counted
        if counted is not None:
            counted.passed += len(data)
            if counted.is_full and not counted.is_waiting:
                counted.is_waiting = True
                self._close_if_stuck(None, 0)
                self._go_on()  # the owner may have read on before it could see that the connection waits
                self._read_or_wait()

    def _go_on(self) -> None:
        """Read from the peer again if enough has been read of it."""
        counted = self._counted
        if counted is not None and counted.is_waiting and not counted.is_full:
            counted.is_waiting = False
            self._read_or_wait()

    def _close_if_stuck(self, read: int | None, reads: int) -> None:
        """Close the connection if the owner has looked for messages since the last call and found none from it."""
        counted, unread = self._counted, self._unread
        if counted is None or unread is None or not counted.is_waiting:
            return
        if read == counted.read and unread.reads > reads + 1:
            log.warning("connection of a peer closed: it sends no complete message", unread_bytes=counted.unread)
            self.transport.abort()
        else:
            self._loop.call_later(STUCK_SECONDS, self._close_if_stuck, counted.read, unread.reads)

    def inner_is_full(self, is_full: bool) -> None:
        """Wait while libzmq does not read."""
        self._is_inner_full = is_full
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_inner_full or (self._counted is not None and self._counted.is_waiting):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all_peers.discard(self)
        self._peers.discard(self)
        if (target := self._target()) is not None:
            target.write_eof()
            target.resume_reading()  # bytes read from now on are dropped
        elif self.other is None:
            self._forget()

    def inner_lost(self) -> None:
        """Close the peer's connection: libzmq has closed ours."""
        self._forget()
        self.transport.close()

    def _forget(self) -> None:
        if self._counted is not None and self._unread is not None:
            self._unread.closed(self._counted)
            self._counted = None


class _InnerSide(_Side):
    """Our connection to libzmq. libzmq ends it; if we did, libzmq could abort the process."""

    def __init__(self, peer: _PeerSide) -> None:
        self.other = self._peer = peer

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._peer.join(self)

    def pause_writing(self) -> None:
        self._peer.inner_is_full(True)

    def resume_writing(self) -> None:
        self._peer.inner_is_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer.inner_lost()
