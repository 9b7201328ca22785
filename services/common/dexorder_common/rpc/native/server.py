"""A gRPC server with the handlers and interceptors of `grpc.aio`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

from dexorder_common.rpc.native.connection import Connection
from dexorder_common.rpc.native.limits import Limits
from dexorder_common.rpc.native.listening import bound
from dexorder_common.rpc.native.methods import Interceptor, Methods

_CLOSE_SECONDS = 2.0
"""Time for the last answers of all connections to leave at the stop."""


class NativeServer:
    """Takes servicers as `grpc.aio.Server` does; its handlers must be coroutine functions or async generators."""

    def __init__(self, interceptors: Sequence[Interceptor], limits: Limits) -> None:
        self.limits = limits
        self.methods = Methods(interceptors)
        self._loop = asyncio.get_running_loop()
        self.context = copy_context().copy
        """Returns a new context for a handler: a copy of the server's context at its start."""
        self._bound: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._paths: list[Path] = []
        self._listeners: list[asyncio.Server] = []
        self._connections: set[Connection] = set()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """Add the handlers of a servicer."""
        self.methods.add(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Do nothing: generated code adds the same handlers as generic ones."""

    def bind(self, address: str, tls: ssl.SSLContext | None) -> int:
        """Bind ``host:port`` or ``unix:/path`` and return the port, 1 for a path; OSError if that is impossible."""
        sockets = bound(address)
        self._bound += [(each, tls) for each in sockets]
        if address.startswith("unix:"):
            self._paths.append(Path(address.removeprefix("unix:")))
            return 1
        port: int = sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Accept connections."""
        for each, tls in self._bound:
            is_unix = each.family == socket.AF_UNIX
            made = partial(Connection, self, self._loop, is_tls=tls is not None, is_unix=is_unix)
            seconds = self.limits.handshake_seconds if tls else None
            create = self._loop.create_unix_server if is_unix else self._loop.create_server
            self._listeners.append(await create(made, sock=each, ssl=tls, ssl_handshake_timeout=seconds))

    async def stop(self, grace: float) -> None:
        """Refuse new connections and calls, let running calls end for ``grace`` seconds, then cancel them."""
        self.close()
        for connection in self._connections:
            connection.leave()
        await self._until(grace, lambda: not any(each.calls for each in self._connections))
        for connection in list(self._connections):
            if connection.calls:
                connection.stop()
        # The others end by themselves once their clients have the last answers.
        await self._until(_CLOSE_SECONDS, lambda: not self._connections)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()
        for each, _ in self._bound:
            each.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()

    async def _until(self, seconds: float, holds: Any) -> None:
        deadline_s = self._loop.time() + seconds
        while not holds() and (left_s := deadline_s - self._loop.time()) > 0:  # noqa: ASYNC110  # at the stop alone
            await asyncio.sleep(min(left_s, 0.01))

    # ---- reports of connections

    def joined(self, connection: Connection) -> bool:
        """Note a new connection; False if there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self.limits.max_connections

    def lost(self, connection: Connection) -> None:
        """Note the end of a connection."""
        self._connections.discard(connection)
