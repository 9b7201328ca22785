"""Slowloris at each HTTP server: requests that arrive byte by byte are closed in time, and others are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from dexorder_common import metrics
from dexorder_gateway import http_server
from dexorder_gateway.http1.connection import HttpPeer
from dexorder_gateway.http1.limits import HttpLimits
from dexorder_gateway.http1.messages import HttpAnswer, HttpRequest
from dexorder_gateway.http1.server import http1_server

Serve = Callable[[pytest.MonkeyPatch], AbstractAsyncContextManager[str]]
SLOW = 8
"""Slow connections at a time; a metrics port takes few."""
HEAD = b"POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
REQUESTS = {
    "head": HEAD + b"X: " + b"x" * 10_000,
    "body": HEAD + b"Content-Length: 10000\r\n\r\n" + b"x" * 9_999,
    "chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2000\r\n" + b"x" * 9_999,
    "second head": HEAD.replace(b"close", b"keep-alive")
    + b"Content-Length: 0\r\n\r\nGET / HTTP/1.1\r\nX: "
    + b"x" * 9_999,
}
AT_ONCE = {"head": 0, "body": len(HEAD) + 25, "chunk": len(HEAD) + 30, "second head": len(HEAD) + 20}
"""Bytes of each request that are sent at once; the rest drips."""


@asynccontextmanager
async def page(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The server of the page of events."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "KEEPALIVE_SECONDS", 0.3)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read() or b"nothing")

    app = web.Application()
    app.router.add_route("*", "/metrics", answer)
    async with http_server.http_server(app, ["127.0.0.1:0"], stop_seconds=0.1) as (address,):
        yield address


@asynccontextmanager
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The server of Kafka-Pixy's HTTP API."""

    async def answer(request: HttpRequest, client: HttpPeer) -> HttpAnswer:
        return HttpAnswer(request.body or b"nothing")

    limits = HttpLimits(max_body_bytes=1_000_000, keepalive_seconds=0.3, request_seconds=0.3)
    async with http1_server(answer, ["127.0.0.1:0"], None, limits, stop_seconds=0.1) as (address,):
        yield address


@asynccontextmanager
async def metrics_port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setattr(metrics, "MAX_CONNECTION_SECONDS", 0.3)
    with metrics.metrics_endpoint("127.0.0.1:0", CollectorRegistry()) as address:
        yield address


async def drip(address: str, request: bytes, at_once: int) -> None:
    """Send a request slowly until the connection is closed."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request[:at_once])
    closed = asyncio.ensure_future(reader.read())
    with suppress(OSError):
        for place in range(at_once, len(request)):
            if closed.done():
                break
            writer.write(request[place : place + 1])
            await asyncio.wait({closed}, timeout=0.02)
        await writer.drain()
    assert closed.done(), "it has taken the whole request"
    with suppress(OSError):
        await closed
    writer.close()


async def answered(address: str) -> bool:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    found = await reader.read()
    writer.close()
    return b" 200 OK" in found


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("serve", [page, api, metrics_port], ids=["page", "API", "metrics"])
async def test_slow_requests_are_closed_and_others_answered(
    serve: Serve, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(monkeypatch) as address, asyncio.timeout(60):
        slow = [asyncio.ensure_future(drip(address, REQUESTS[kind], AT_ONCE[kind])) for _ in range(SLOW)]
        await asyncio.sleep(0.1)
        assert await answered(address), "beside the slow ones"
        await asyncio.gather(*slow)
        assert await answered(address)
