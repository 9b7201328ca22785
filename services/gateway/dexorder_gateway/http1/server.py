"""Listeners of an HTTP/1.1 server."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from contextvars import copy_context
from email.utils import formatdate
from functools import partial
from pathlib import Path

from dexorder_common.config import split_address
from dexorder_common.rpc.lifecycle import listening_on, refuse_if_served
from dexorder_common.rpc.native.listening import bound
from dexorder_gateway.http1.connection import HttpConnection, Serve
from dexorder_gateway.http1.limits import HttpLimits

_POLL_SECONDS = 0.01


def server_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the TLS of a server; with ``client_ca`` clients need a certificate. OSError if a file can't be used."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    tls.load_cert_chain(certificate, key)
    if client_ca:
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


class Http1Server:
    """Connections of one server, and what they share."""

    def __init__(self, serve: Serve, limits: HttpLimits) -> None:
        self.serve = serve
        self.limits = limits
        self.context = copy_context().copy
        """Returns a new context for a handler: a copy of the server's context at its start."""
        self.connections: set[HttpConnection] = set()
        self._dated = (0, "")

    def date(self) -> str:
        """Return the time in the form of RFC 9110, which has seconds."""
        now_s = int(time.time())
        if now_s != self._dated[0]:
            self._dated = now_s, formatdate(now_s, usegmt=True)
        return self._dated[1]

    def joined(self, connection: HttpConnection) -> bool:
        """Note a new connection; False if there are too many."""
        self.connections.add(connection)
        return len(self.connections) <= self.limits.max_connections

    def lost(self, connection: HttpConnection) -> None:
        """Note the end of a connection."""
        self.connections.discard(connection)

    async def stop(self, seconds: float) -> None:
        """Let running requests end for this time, then cancel them."""
        for connection in list(self.connections):
            connection.leave()
        until_s = time.monotonic() + seconds
        while self.connections and time.monotonic() < until_s:  # noqa: ASYNC110  # at the stop alone
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(self.connections):
            connection.stop()
        await asyncio.sleep(0)


@asynccontextmanager
async def http1_server(
    serve: Serve, addresses: Sequence[str], tls: ssl.SSLContext | None, limits: HttpLimits, *, stop_seconds: float
) -> AsyncIterator[list[str]]:
    """Serve until the block ends.

    Args:
        serve: Answers one request; it is cancelled when its client disconnects.
        addresses: ``host:port``, or ``unix:/path``, which is without TLS.
        stop_seconds: Longest time that running requests get at the end.

    Yields:
        The addresses with their actual ports.
    Raises:
        OSError: An address can't be bound.
    """
    server, loop = Http1Server(serve, limits), asyncio.get_running_loop()
    listeners, shown = list[asyncio.Server](), list[str]()
    with ExitStack() as left:
        try:
            for address in addresses:
                with listening_on(address):
                    sockets = _bound(address)
                if address.startswith("unix:"):
                    left.callback(Path(address.removeprefix("unix:")).unlink, missing_ok=True)
                for each in sockets:
                    listeners.append(await _listen(server, loop, each, tls))
                shown.append(_shown(address, sockets[0]))
            yield shown
        finally:
            for listener in listeners:
                listener.close()
            await server.stop(stop_seconds)


def _bound(address: str) -> list[socket.socket]:
    if address.startswith("unix:"):
        refuse_if_served(Path(address.removeprefix("unix:")))
    return bound(address)


def _shown(address: str, listener: socket.socket) -> str:
    """Return an address with the port that was given to it."""
    if address.startswith("unix:"):
        return address
    return f"{split_address(address)[0]}:{listener.getsockname()[1]}"


async def _listen(
    server: Http1Server, loop: asyncio.AbstractEventLoop, made: socket.socket, tls: ssl.SSLContext | None
) -> asyncio.Server:
    if made.family == socket.AF_UNIX:
        return await loop.create_unix_server(partial(HttpConnection, server, loop, is_unix=True), sock=made)
    seconds = server.limits.request_seconds if tls else None
    factory = partial(HttpConnection, server, loop, is_unix=False)
    return await loop.create_server(factory, sock=made, ssl=tls, ssl_handshake_timeout=seconds)
