"""HTTP listener of a service, beside its gRPC server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from dexorder_common.config import split_address
from dexorder_common.rpc.lifecycle import refuse_if_served


def server_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the TLS of a server; with ``client_ca`` clients need a certificate. OSError if a file can't be used."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    tls.load_cert_chain(certificate, key)
    if client_ca:
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


@asynccontextmanager
async def http_server(
    app: web.Application,
    addresses: Sequence[str],
    tls: ssl.SSLContext | None = None,
    *,
    stop_seconds: float,
    cancel_abandoned: bool = False,
) -> AsyncIterator[list[str]]:
    """Serve until the block ends.

    Args:
        addresses: ``host:port``, or ``unix:/path``, which has no TLS.
        stop_seconds: Longest time that running requests get at the end.
        cancel_abandoned: Whether a request is cancelled when its client disconnects.

    Yields:
        The addresses with their actual ports.
    Raises:
        OSError: An address can't be bound.
    """
    # no access log, which would show users' addresses
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=stop_seconds,
        handle_signals=False,
        handler_cancellation=cancel_abandoned,
    )
    await runner.setup()
    bound, sockets = [], []
    try:
        for address in addresses:
            if address.startswith("unix:"):
                path = Path(address.removeprefix("unix:"))
                refuse_if_served(path)
                await web.UnixSite(runner, path).start()
                sockets.append(path)
                bound.append(address)
            else:
                host, port = split_address(address)
                await web.TCPSite(runner, host, port, ssl_context=tls).start()
                bound.append(f"{host}:{runner.addresses[-1][1]}")
        yield bound
    finally:
        await runner.cleanup()
        for path in sockets:
            path.unlink(missing_ok=True)
