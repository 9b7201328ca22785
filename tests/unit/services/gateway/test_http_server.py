"""HTTP connections that send no whole request, or none any more, are closed; others are served."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress

import aiohttp
import pytest
from aiohttp import web

from dexorder_common.rpc.lifecycle import CannotListen
from dexorder_gateway import http_server as module
from dexorder_gateway.http_server import http_server


async def _hello(request: web.Request) -> web.Response:
    await asyncio.sleep(float(request.query.get("seconds", "0")))
    return web.Response(text="hello")


def app() -> web.Application:
    made = web.Application()
    made.router.add_get("/", _hello)
    return made


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: "], ids=["nothing", "line", "header"]
)
async def test_a_connection_without_a_whole_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    async with http_server(app(), ["127.0.0.1:0"], stop_seconds=1) as (address,):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(20):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_an_answer_may_take_longer_and_a_connection_is_kept_between_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.1)
    async with (
        http_server(app(), ["127.0.0.1:0"], stop_seconds=1) as (address,),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as client,
    ):
        for seconds in (1.0, 0.0):
            async with client.get(f"http://{address}/?seconds={seconds}") as answer:
                assert await answer.text() == "hello"
            await asyncio.sleep(0.5)


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEPALIVE_SECONDS", 0.2)
    async with http_server(app(), ["127.0.0.1:0"], stop_seconds=1) as (address,):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            assert b"hello" in await reader.read()
        writer.close()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{port}", "unix:/no/folder/s", "unix:/tmp/" + "x" * 150, "host.invalid:1"]
)
async def test_an_address_that_cannot_be_bound_is_named_with_the_reason(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        named = address.format(port=other.getsockname()[1])
        with pytest.raises(CannotListen) as caught:
            async with http_server(app(), [named], stop_seconds=1):
                raise AssertionError("it serves")
    assert re.match(f"can't listen on {re.escape(named)}: .", str(caught.value))
