"""HTTP listener of a service, next to its gRPC server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakSet

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from dexorder_common.config import split_address
from dexorder_common.rpc.lifecycle import listening_on, refuse_if_served
from dexorder_gateway.http1.limits import KEEPALIVE_SECONDS, REQUEST_SECONDS


def from_proxies(admits: Callable[[str], bool]) -> Middleware:
    """Return a middleware that forbids requests from other IP addresses."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not admits(request.remote or ""):
            raise web.HTTPForbidden(text="this address is not a proxy that may name a caller")
        return await handler(request)

    return check


def _noting(served: WeakSet[asyncio.BaseTransport]) -> Middleware:
    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None:
            served.add(request.transport)
        timer = asyncio.get_running_loop().call_later(REQUEST_SECONDS, _close_unfinished, request)
        try:
            return await handler(request)
        finally:
            timer.cancel()

    return note


def _close_unfinished(request: web.Request) -> None:
    """Close the connection of a request if its body has not arrived yet."""
    if request.transport is not None and not request.content.is_eof():
        request.transport.abort()


async def _close_silent(runner: web.AppRunner, served: WeakSet[asyncio.BaseTransport]) -> None:
    """Close connections without a whole first request; aiohttp itself limits only the time after a request."""
    known: WeakSet[asyncio.BaseTransport] = WeakSet()
    while True:
        await asyncio.sleep(REQUEST_SECONDS)
        server = runner.server
        transports = {each.transport for each in server.connections if each.transport} if server else set()
        for transport in transports - set(served):
            if transport in known:
                transport.abort()
            known.add(transport)


@asynccontextmanager
async def http_server(
    app: web.Application,
    addresses: Sequence[str],
    tls: ssl.SSLContext | None = None,
    *,
    stop_seconds: float,
) -> AsyncIterator[list[str]]:
    """Serve until the block ends.

    Args:
        addresses: ``host:port``, or ``unix:/path``, which is without TLS.
        stop_seconds: Longest time that running requests get at the end.

    Yields:
        The addresses with their actual ports.
    Raises:
        OSError: An address can't be bound.
    """
    served: WeakSet[asyncio.BaseTransport] = WeakSet()
    app.middlewares.insert(0, _noting(served))
    # no access log, which would show users' addresses
    runner = web.AppRunner(
        app,
        keepalive_timeout=KEEPALIVE_SECONDS,
        access_log=None,
        shutdown_timeout=stop_seconds,
        handle_signals=False,
    )
    await runner.setup()
    bound, sockets = [], []
    try:
        for address in addresses:
            if address.startswith("unix:"):
                path = Path(address.removeprefix("unix:"))
                with listening_on(address):
                    refuse_if_served(path)
                    await web.UnixSite(runner, path).start()
                sockets.append(path)
                bound.append(address)
            else:
                host, port = split_address(address)
                with listening_on(address):
                    await web.TCPSite(runner, host, port, ssl_context=tls).start()
                bound.append(f"{host}:{runner.addresses[-1][1]}")
        closing = asyncio.create_task(_close_silent(runner, served))
        try:
            yield bound
        finally:
            closing.cancel()
    finally:
        await runner.cleanup()
        for path in sockets:
            path.unlink(missing_ok=True)
