"""Connections over real sockets: order, ends, limits of time and size, and clients that harm only themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from dexorder_gateway.http1.connection import HttpPeer
from dexorder_gateway.http1.limits import MAX_PIPELINED, HttpLimits
from dexorder_gateway.http1.messages import HttpAnswer, HttpRequest
from dexorder_gateway.http1.server import http1_server

LIMITS = HttpLimits(max_body_bytes=100_000, keepalive_seconds=30.0, request_seconds=30.0)
SHORT = replace(LIMITS, keepalive_seconds=0.3, request_seconds=0.3)
LARGE = 1_000_000
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@dataclass
class Handlers:
    """A path is its answer; ``wait`` waits for ``go``, ``large`` is large, ``fail`` fails."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list)
    ended: list[tuple[str, bool]] = field(default_factory=list)

    async def serve(self, request: HttpRequest, client: HttpPeer) -> HttpAnswer:
        name = request.path[1:]
        self.begun.append(name)
        request.on_end = lambda was_sent: self.ended.append((name, was_sent))
        if name == "wait":
            await self.go.wait()
        elif name == "fail":
            raise ValueError("of the handler")
        body = bytes(LARGE) if name == "large" else name.encode() + request.body
        return HttpAnswer(body, 413 if request.is_too_large else 200)


@asynccontextmanager
async def serving(handlers: Handlers, limits: HttpLimits = LIMITS, stop_seconds: float = 5.0) -> AsyncIterator[str]:
    async with (
        asyncio.timeout(60),
        http1_server(handlers.serve, ["127.0.0.1:0"], None, limits, stop_seconds=stop_seconds) as (address,),
    ):
        yield address


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def all_of(address: str, sent: bytes) -> bytes:
    """Return what the server sends until it closes the connection."""
    reader, writer = await connect(address)
    writer.write(sent)
    try:
        return await reader.read()
    finally:
        writer.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # of the tests alone
            await asyncio.sleep(0.01)


def bodies(answers: bytes) -> list[bytes]:
    return [each.partition(b"\r\n\r\n")[2] for each in answers.split(b"HTTP/1.1 ")[1:]]


async def test_answers_come_in_the_order_of_their_requests() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        answers = asyncio.ensure_future(all_of(address, GET % b"a" + GET % b"wait" + GET % b"b" + LAST % b"c"))
        await until(lambda: "wait" in handlers.begun)
        await asyncio.sleep(0.05)
        assert handlers.begun == ["a", "wait"]
        handlers.go.set()
        assert bodies(await answers) == [b"a", b"wait", b"b", b"c"]
    assert handlers.ended == [("a", True), ("wait", True), ("b", True), ("c", True)]


async def test_more_requests_than_may_wait_close_the_connection() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        reader, writer = await connect(address)
        writer.write(GET % b"wait")
        await until(lambda: handlers.begun == ["wait"])
        writer.write(GET % b"a" * (MAX_PIPELINED + 1))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert bodies(await all_of(address, GET % b"a" * (MAX_PIPELINED - 1) + LAST % b"b"))[-1] == b"b"
    assert handlers.ended[0] == ("wait", False)


async def test_a_client_that_leaves_ends_its_handler() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        _, writer = await connect(address)
        writer.write(GET % b"wait" + GET % b"after")
        await until(lambda: handlers.begun == ["wait"])
        writer.close()
        await until(lambda: handlers.ended == [("wait", False)])
        assert handlers.begun == ["wait"]


async def test_a_handler_that_fails_ends_its_connection_only(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        answer = await all_of(address, GET % b"fail" + GET % b"after")
        assert answer.startswith(b"HTTP/1.1 500 ") and b"of the handler" not in answer
        assert bodies(await all_of(address, LAST % b"a")) == [b"a"]
    assert "of the handler" in capsys.readouterr().out and handlers.begun == ["fail", "a"]


async def test_a_bad_request_is_answered_after_those_before_it() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        answers = asyncio.ensure_future(all_of(address, GET % b"wait" + b"NONSENSE\r\n\r\n" + GET % b"after"))
        await until(lambda: handlers.begun == ["wait"])
        handlers.go.set()
        first, second = (await answers).split(b"HTTP/1.1 ")[1:]
        assert first.startswith(b"200 ") and second.startswith(b"400 ")
        assert b"Connection: close" in second and b'{"error":"the request can\'t be read: ' in second
    assert handlers.begun == ["wait"]


async def test_a_client_that_waits_for_leave_to_send_gets_it_when_it_is_its_turn() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        reader, writer = await connect(address)
        writer.write(
            GET % b"wait" + b"POST /b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        await until(lambda: handlers.begun == ["wait"])
        handlers.go.set()
        assert b"200 OK" in await reader.readuntil(b"wait")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"xy" + LAST % b"c")
        assert bodies(await reader.read()) == [b"bxy", b"c"]
        writer.close()


async def test_a_body_that_is_too_large_is_answered_and_the_connection_goes_on() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        size = LIMITS.max_body_bytes + 1
        sent = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
        answers = (await all_of(address, sent + LAST % b"b")).split(b"HTTP/1.1 ")[1:]
        assert [each[:3] for each in answers] == [b"413", b"200"]


async def test_answers_that_a_client_does_not_read_stop_its_requests_and_then_its_connection() -> None:
    handlers = Handlers()
    async with serving(handlers, replace(LIMITS, keepalive_seconds=0.5)) as address:
        reader, writer = await connect(address)
        writer.write(GET % b"large" * MAX_PIPELINED)
        await until(lambda: len(handlers.begun) > 0)
        count = 0
        while len(handlers.begun) != count:
            count = len(handlers.begun)
            await asyncio.sleep(0.1)
        assert count < 20  # what the socket and one write buffer take
        await asyncio.sleep(1.0)
        assert bodies(await all_of(address, LAST % b"a")) == [b"a"]
        with suppress(ConnectionResetError):
            assert len(await reader.read()) < count * (LARGE + 1_000)
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", GET % b"a" + b"GET", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx", GET % b"a"],
    ids=["nothing", "line", "second line", "body", "nothing more"],
)
async def test_a_client_that_sends_no_whole_request_is_closed(sent: bytes) -> None:
    handlers = Handlers()
    async with serving(handlers, SHORT) as address:
        reader, writer = await connect(address)
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert len(bodies(await reader.read())) == len(handlers.ended)
        writer.close()


async def test_a_request_may_take_longer_than_its_bytes_and_the_connection_is_kept_after_it() -> None:
    handlers = Handlers()
    async with serving(handlers, SHORT) as address:
        reader, writer = await connect(address)
        writer.write(GET % b"wait")
        await until(lambda: handlers.begun == ["wait"])
        await asyncio.sleep(1.0)
        handlers.go.set()
        await reader.readuntil(b"wait")
        writer.write(LAST % b"b")
        assert bodies(await reader.read()) == [b"b"]
        writer.close()


async def test_one_connection_more_than_may_be_open_is_closed() -> None:
    handlers = Handlers()
    async with serving(handlers, replace(LIMITS, max_connections=2)) as address:
        kept = [await connect(address) for _ in range(2)]
        with suppress(ConnectionResetError):
            assert await all_of(address, LAST % b"a") == b""
        for reader, writer in kept:
            writer.write(LAST % b"b")
            assert bodies(await reader.read()) == [b"b"]
            writer.close()
        await until(lambda: len(handlers.ended) == 2)
        assert bodies(await all_of(address, LAST % b"c")) == [b"c"]


async def test_a_stop_ends_idle_connections_and_lets_running_requests_end() -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        idle, waiting = await connect(address), await connect(address)
        idle[1].write(GET % b"a")
        await idle[0].readuntil(b"\r\n\r\na")
        waiting[1].write(GET % b"wait" + GET % b"after")
        await until(lambda: "wait" in handlers.begun)
        asyncio.get_running_loop().call_later(0.2, handlers.go.set)
    assert await idle[0].read() == b""
    answer = await waiting[0].read()
    assert bodies(answer) == [b"wait"] and b"Connection: close" in answer
    for _, writer in (idle, waiting):
        writer.close()
    with pytest.raises(OSError):
        await connect(address)


async def test_a_stop_cancels_requests_that_take_too_long() -> None:
    handlers = Handlers()
    async with serving(handlers, stop_seconds=0.1) as address:
        reader, writer = await connect(address)
        writer.write(GET % b"wait")
        await until(lambda: handlers.begun == ["wait"])
    await until(lambda: handlers.ended == [("wait", False)])
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_nonsense_is_answered_or_closed_and_others_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    handlers, chance = Handlers(), random.Random(440)
    whole = [GET % b"a", b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"]

    async def attack(sent: bytes) -> None:
        reader, writer = await connect(address)
        with suppress(ConnectionError):
            writer.write(sent)
            writer.write_eof()
            answers = await reader.read()
            assert {each[:3] for each in answers.split(b"HTTP/1.1 ")[1:]} <= {b"200", b"400", b"100"}
        writer.close()

    async with serving(handlers) as address:
        for _ in range(300):
            sent = bytearray(b"".join(chance.choices(whole, k=2)))
            place = chance.randrange(len(sent))
            sent[place : place + chance.randint(0, 2)] = chance.randbytes(chance.randint(1, 3))
            await attack(bytes(sent))
        assert bodies(await all_of(address, LAST % b"c")) == [b"c"]
    assert "error" not in capsys.readouterr().out
