"""Clients that break the rules, or use them against the server: each costs itself only."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest

from dexorder_common.rpc.native import limits
from dexorder_common.rpc.native.framing import frame
from dexorder_common.rpc.native.limits import STREAM_WINDOW, Limits
from tests.unit.services.common.rpc.native import NEEDS_MODULE
from tests.unit.services.common.rpc.native.rig import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RESET,
    SERVICE,
    SETTINGS,
    WINDOW_UPDATE,
    Handlers,
    RawClient,
    block,
    call,
    connected,
    packed,
    server_of,
    serving,
    until,
)

pytestmark = NEEDS_MODULE
CANCEL = (8).to_bytes(4)
STATUS_431 = b"H\x83i\x90\xff"
"""``:status: 431`` by RFC 7541: name 8 of the static table, three characters in Huffman's code."""
NO_WINDOW = b"\0\x04\0\0\0\0"
"""A setting: streams of the server may send nothing."""


async def still_serves(client: RawClient, stream: int) -> bool:
    """Return whether a unary call on the same connection is answered."""
    client.send(call(stream, "echo", b"alive"))
    return await client.ended(stream)


async def test_a_lost_connection_cancels_its_calls() -> None:
    handlers = Handlers()
    async with serving(handlers) as address, connected(address) as client:
        client.send(call(1, "wait"))
        await handlers.entered.wait()
        client.writer.transport.abort()
        await until(lambda: not handlers.running)
    assert handlers.outcomes == [(False, True)]


async def test_a_reader_that_stalls_delays_nobody_and_holds_little() -> None:
    """Its window is shut: 200 MB of answers are not made, and calls beside it are answered."""
    tracemalloc.start()
    try:
        async with serving(Handlers()) as address, connected(address, NO_WINDOW) as client:
            for stream in (1, 3, 5):
                client.send(call(stream, "many", b"2000 100000 0"))
            client.send(call(7, "echo"))  # has to wait as well: it is 5 bytes long
            found = await client.until((HEADERS,))
            assert found is not None and not found[1] & END_STREAM
            client.send(packed(WINDOW_UPDATE, 0, 7, (100).to_bytes(4)))
            assert await client.ended(7)
            assert tracemalloc.get_traced_memory()[1] < 30_000_000
            client.send(packed(RESET, 0, 1, CANCEL), packed(RESET, 0, 3, CANCEL), packed(RESET, 0, 5, CANCEL))
    finally:
        tracemalloc.stop()


async def test_a_client_that_reads_its_socket_late_gets_all_answers() -> None:
    """Its windows are wide, so the answers fill the socket; what it sends meanwhile is served later, none is lost."""
    wide = b"\0\x04" + (2**31 - 1).to_bytes(4)
    async with serving(Handlers()) as address, connected(address, wide) as client:
        client.send(packed(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4)))
        for stream in range(1, 41, 2):
            client.send(call(stream, "many", b"10 100000 1"))
        for stream in range(41, 1_041, 2):
            client.send(call(stream, "echo", b"x" * 1_000))
            if stream % 100 == 1:
                await asyncio.sleep(0)  # the server reads, and fills its side
        ended = set[int]()
        while len(ended) < 520:
            found = await client.frame()
            assert found is not None
            ended |= {found[2]} if found[0] in (DATA, HEADERS) and found[1] & END_STREAM else set()
        assert ended == set(range(1, 1_041, 2))


async def test_bytes_that_come_while_the_socket_is_full_are_kept() -> None:
    """A loop may pass on what it has read before it was told to pause."""
    from dexorder_common.rpc.native.connection import Connection  # deferred as in `rig`

    written: list[bytes] = []
    transport = MagicMock(**{"is_closing.return_value": False, "get_extra_info.return_value": None})
    transport.write.side_effect = written.append
    server = server_of(Handlers())
    line = Connection(server, asyncio.get_running_loop(), is_tls=False, is_unix=False)
    line.connection_made(transport)
    loop = asyncio.get_running_loop()
    loop.call_soon(line.data_received, PREFACE + packed(SETTINGS, 0, 0))
    loop.call_soon(line.pause_writing)
    loop.call_soon(line.data_received, call(1, "echo", b"kept"))
    loop.call_soon(line.resume_writing)
    await asyncio.sleep(0.01)
    assert b"kept" in b"".join(written)
    line.connection_lost(None)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_as_many_resets_are_as_many_ends(count: int) -> None:
    handlers = Handlers()
    async with serving(handlers) as address, connected(address) as client:
        for first in range(1, 2 * count, 200):
            for stream in range(first, first + 200, 2):
                client.send(call(stream, "wait"))
            await client.writer.drain()
            await until(lambda: handlers.running == 100)
            client.send(*(packed(RESET, 0, stream, CANCEL) for stream in range(first, first + 200, 2)))
            await client.writer.drain()
            await until(lambda: not handlers.running)
        assert len(handlers.outcomes) == count and set(handlers.outcomes) == {(False, True)}
        assert await still_serves(client, 2 * count + 1)


async def test_resets_without_end_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_RESETS", 50)
    monkeypatch.setattr(limits, "RESETS_PER_SECOND", 0)
    handlers = Handlers()
    async with serving(handlers) as address, connected(address) as client, connected(address) as other:
        for stream in range(1, 103, 2):
            handlers.entered.clear()
            client.send(call(stream, "wait"))
            await handlers.entered.wait()
            client.send(packed(RESET, 0, stream, CANCEL))
        found = await client.until((GOAWAY,))
        assert found is not None and int.from_bytes(found[3][4:8]) == 11  # ENHANCE_YOUR_CALM
        assert await client.until(()) is None
        assert await still_serves(other, 1)


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\0\xa5"])
async def test_a_connection_without_a_preface_ends(sent: bytes) -> None:
    async with serving(Handlers(), Limits(handshake_seconds=0.3)) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(60):
            try:
                while await reader.read(1_000):
                    pass
            except ConnectionError:
                pass
        writer.close()


async def test_a_connection_over_the_limit_is_closed() -> None:
    async with serving(Handlers(), Limits(max_connections=1)) as address, connected(address) as client:
        async with connected(address) as other:
            assert await other.until(()) is None
        assert await still_serves(client, 1)


async def test_a_request_that_trickles_is_ended() -> None:
    async with serving(Handlers(), Limits(request_seconds=0.3)) as address, connected(address) as client:
        client.send(packed(HEADERS, END_HEADERS, 1, block(f"/{SERVICE}/echo")), packed(DATA, 0, 1, b"\0\0\0\0\x05a"))
        assert await client.ended(1)
        assert await still_serves(client, 3)


async def test_handlers_are_as_few_as_streams_even_if_their_calls_were_reset() -> None:
    handlers = Handlers()
    async with serving(handlers, Limits(max_streams=10)) as address, connected(address) as client:
        for first in range(1, 201, 20):
            client.send(*(call(stream, "wait") for stream in range(first, first + 20, 2)))
            client.send(*(packed(RESET, 0, stream, CANCEL) for stream in range(first, first + 20, 2)))
        assert await still_serves(client, 201)
        assert handlers.most_running <= 10


async def test_a_stream_over_the_limit_is_refused_and_the_others_go_on() -> None:
    handlers = Handlers()
    async with serving(handlers, Limits(max_streams=10)) as address, connected(address) as client:
        client.send(*(call(stream, "wait") for stream in range(1, 23, 2)))
        found = await client.until((RESET,))
        assert found is not None and (found[2], int.from_bytes(found[3])) == (21, 7)  # REFUSED_STREAM
        handlers.release.set()
        ended = set[int]()
        while len(ended) < 10:
            found = await client.until((HEADERS,))
            assert found is not None
            ended |= {found[2]} if found[1] & END_STREAM else set()
        assert ended == set(range(1, 21, 2))


async def test_headers_over_the_limit_end_their_call() -> None:
    async with serving(Handlers()) as address, connected(address) as client:
        more = [(f"k{number}", "v" * 100) for number in range(200)]
        head = block(f"/{SERVICE}/echo", *more)
        client.send(packed(HEADERS, END_STREAM, 1, head[:16_000]), packed(9, END_HEADERS, 1, head[16_000:]))
        found = await client.until((HEADERS,))
        assert found is not None and (found[1] & END_STREAM, found[2:]) == (END_STREAM, (1, STATUS_431))
        assert await still_serves(client, 3)


async def test_headers_without_end_end_the_connection() -> None:
    async with serving(Handlers()) as address, connected(address) as client:
        client.send(packed(HEADERS, 0, 1, block(f"/{SERVICE}/echo")))
        with_any = packed(9, 0, 1, b"\0\x01a\x01b" * 3_000)
        for _ in range(100):
            client.send(with_any)
            if client.writer.transport.is_closing():
                break
            await asyncio.sleep(0)
        found = await client.until((GOAWAY,))
        assert found is None or found[0] == GOAWAY


async def test_a_handler_that_does_not_read_holds_one_window() -> None:
    handlers = Handlers()
    async with serving(handlers) as address, connected(address) as client:
        client.send(packed(HEADERS, END_HEADERS, 1, block(f"/{SERVICE}/unread")))
        message, sent = frame(b"x" * 8_187), 0
        while sent + len(message) <= STREAM_WINDOW:
            client.send(packed(DATA, 0, 1, message))
            sent += len(message)
        assert await still_serves(client, 3)  # no window was given back before the handler read
        client.send(packed(DATA, 0, 1, message))  # more than the window
        assert await client.until((RESET, GOAWAY)) is not None


async def test_unfinished_requests_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "max_unfinished_bytes", 100_000)
    async with serving(Handlers()) as address, connected(address) as client:
        for stream in range(1, 23, 2):
            client.send(packed(HEADERS, END_HEADERS, stream, block(f"/{SERVICE}/echo")))
            client.send(packed(DATA, 0, stream, frame(b"x" * 10_100)[:10_000]))
        found = await client.until((HEADERS,))
        assert found is not None and found[1] & END_STREAM
        whole = next(stream for stream in (1, 3) if stream != found[2])
        client.send(packed(DATA, END_STREAM, whole, b"x" * 105))
        found = await client.until((HEADERS,))  # the other ten are not refused
        assert found is not None and found[2] == whole and not found[1] & END_STREAM
        assert await still_serves(client, 23)


async def test_answers_that_nobody_reads_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole answers of unary calls wait for windows that are shut; more than they may is refused, until some leave."""
    monkeypatch.setattr(Limits, "max_unread_bytes", 100_000)
    async with serving(Handlers()) as address, connected(address, NO_WINDOW) as client:
        for stream in range(1, 21, 2):
            client.send(call(stream, "echo", b"x" * 9_990))
        client.send(call(21, "echo", b"x" * 9_990), call(23, "many", b"1 9990 0"), call(25, "many", b"1 9990 1"))
        refused = set[int]()
        while len(refused) < 3:
            found = await client.until((HEADERS,))
            assert found is not None
            refused |= {found[2]} if found[1] & END_STREAM else set()
        assert refused == {21, 23, 25}
        client.send(packed(WINDOW_UPDATE, 0, 1, (20_000).to_bytes(4)), packed(RESET, 0, 3, CANCEL))
        assert await client.ended(1)
        client.send(call(27, "echo", b"x" * 9_990), packed(WINDOW_UPDATE, 0, 27, (20_000).to_bytes(4)))
        assert await client.ended(27)


async def test_wide_windows_of_a_client_that_reads_nothing_are_not_filled() -> None:
    """Windows of 2 GiB, a socket that is not read: each handler makes as much as its stream keeps, and waits."""
    from dexorder_http2 import SEND_BUFFER  # deferred as in `rig`

    wide = b"\0\x04" + (2**31 - 1).to_bytes(4)
    handlers = Handlers()
    async with serving(handlers) as address, connected(address, wide) as client:
        client.send(packed(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4)))
        client.send(*(call(stream, "many", b"1000 10000 0") for stream in range(1, 401, 2)))
        async with connected(address) as other:
            before, stream = -1, 1
            while handlers.made < 200 or handlers.made != before:
                before, stream = handlers.made, stream + 2
                assert await still_serves(other, stream)
                await asyncio.sleep(0.1)
        in_sockets = 16_000_000
        assert handlers.made * 10_000 < 200 * (SEND_BUFFER + 20_000) + in_sockets


async def test_a_compressed_bomb_is_refused() -> None:
    async with serving(Handlers()) as address, connected(address) as client:
        bomb = gzip.compress(b"\0" * 20_000_000, 1)
        body = b"\x01" + len(bomb).to_bytes(4) + bomb
        client.send(packed(HEADERS, END_HEADERS, 1, block(f"/{SERVICE}/echo", ("grpc-encoding", "gzip"))))
        for start in range(0, len(body), 16_000):
            client.send(packed(DATA, END_STREAM if start + 16_000 >= len(body) else 0, 1, body[start : start + 16_000]))
        assert await client.ended(1)
        assert await still_serves(client, 3)


def mutated(chance: random.Random) -> bytes:
    """Return bytes of a connection with some of them changed, left out, doubled or put elsewhere."""
    more = [("grpc-timeout", "5S"), ("k-bin", "AP8"), ("grpc-encoding", "gzip")]
    frames = [packed(SETTINGS, 0, 0)]
    for stream in range(1, 9, 2):
        name = chance.choice(["echo", "status", "many", "collect", "chat", "none"])
        body = chance.choice([b"", b"5 no", b"3 10 1", b"x" * 100])
        frames.append(call(stream, name, body, *chance.sample(more, chance.randrange(4))))
    frames.append(packed(WINDOW_UPDATE, 0, 0, (1_000).to_bytes(4)))
    frames.append(packed(RESET, 0, 3, CANCEL))
    if chance.random() < 0.3:
        chance.shuffle(frames)
    data = bytearray(b"".join(frames))
    for _ in range(chance.randrange(1, 6)):
        place, size = chance.randrange(len(data)), chance.randrange(1, 12)
        kind = chance.randrange(4)
        if kind == 0:
            data[place] = chance.randrange(256)
        elif kind == 1:
            del data[place : place + size]
        elif kind == 2:
            data[place:place] = data[place : place + size]
        else:
            data[place : place + size] = chance.randbytes(size)
        if not data:
            return PREFACE
    return (PREFACE if chance.random() < 0.95 else PREFACE[: chance.randrange(24)]) + bytes(data)


async def attack(address: str, seeds: range, errors: list[object]) -> None:
    host, _, port = address.rpartition(":")
    for seed in seeds:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(mutated(random.Random(seed)))
            async with asyncio.timeout(60):
                with suppress(OSError):  # the server may have closed it before the end is written
                    writer.write_eof()
                    while data := await reader.read(65_536):
                        assert b"\x0bgrpc-status\x0213" not in data, seed  # INTERNAL
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    assert not errors, errors[:3]


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3_000)])])
async def test_mutated_connections_harm_nobody(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error of ours, no INTERNAL, calls of others go on, and nothing of the connections stays."""
    errors: list[object] = []
    monkeypatch.setattr(
        "dexorder_common.rpc.native.connection.log.error", lambda *found, **more: errors.append((found, more))
    )
    async with (
        serving(Handlers(), Limits(handshake_seconds=1.0)) as address,
        grpc.aio.insecure_channel(address) as good,
    ):
        echo: Any = good.unary_unary(f"/{SERVICE}/echo")
        parts = [range(first, count, 8) for first in range(8)]
        attacks = asyncio.gather(*(attack(address, part, errors) for part in parts))
        try:
            while not attacks.done():
                assert await echo(b"good", timeout=60) == b"good"
                await asyncio.sleep(0.05)
            await attacks
        finally:
            attacks.cancel()
            await asyncio.wait([attacks])
