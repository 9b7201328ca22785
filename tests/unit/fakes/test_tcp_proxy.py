"""The proxies' own rules, on plain sockets."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.fakes.tcp_proxy import CuttingProxy, StreamBytes, in_a_thread

SETTINGS, DATA = 4, 0


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload


SAID = frame(SETTINGS, 0, b"s" * 30) + frame(DATA, 1, b"a" * 10) + frame(DATA, 3, b"b" * 20) + frame(DATA, 1, b"c" * 10)
"""Streams 1 and 3 carry 20 bytes each; the payloads begin at 9, 48, 67 and 96."""


@pytest.mark.parametrize("chunk", [1, 7, 1_000])
@pytest.mark.parametrize(("limit", "passed"), [(1, 49), (10, 58), (11, 78), (20, 87), (21, None), (None, None)])
def test_only_the_body_of_one_stream_counts(limit: int | None, passed: int | None, chunk: int) -> None:
    seen, found = StreamBytes(), None
    for start in range(0, len(SAID), chunk):
        at = seen.count(SAID[start : start + chunk], limit)
        if found is None and at is not None:
            found = start + at
    assert found == passed
    assert seen.carried == {1: 20, 3: 20}


async def test_the_client_gets_what_comes_before_the_cut_and_no_more() -> None:
    ended = asyncio.Semaphore(0)

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SAID)
        with suppress(OSError):
            await reader.read()
        writer.close()
        ended.release()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    proxy = CuttingProxy(server.sockets[0].getsockname()[1])
    cuts_then: list[int] = []
    proxy.cut_after(15, lambda: cuts_then.append(proxy.cuts))
    async with server:
        with in_a_thread(proxy) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == SAID[: 67 + 15], "up to the fifteenth byte of stream 3"
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.readexactly(len(SAID)) == SAID, "the next one is whole"
            writer.close()
        for _ in range(2):
            await ended.acquire()
    assert (proxy.cuts, cuts_then) == (1, [0])


async def test_nobody_behind_the_proxy_ends_the_connection() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with in_a_thread(CuttingProxy(target)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
