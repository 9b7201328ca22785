"""A native server on a free port with handlers for every kind of call, and a client that writes frames by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client import CollectorRegistry

from dexorder_common.metrics import CallMetrics
from dexorder_common.rpc.native.framing import frame
from dexorder_common.rpc.native.limits import Limits
from dexorder_common.rpc.server_interceptor import PolicyInterceptor

if TYPE_CHECKING:
    from dexorder_common.rpc.native.server import NativeServer

SERVICE = "test.Service"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4


class Handlers:
    """Handlers that do what their names say; messages are bytes."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.running = 0
        self.most_running = 0
        self.made = 0
        """Answers of `many`."""
        self.outcomes: list[tuple[bool, bool]] = []

    async def echo(self, request: bytes, context: Any) -> bytes:
        for key, value in context.invocation_metadata():
            if key == "x-grpc-test-echo-initial":
                await context.send_initial_metadata(((key, value),))
            if key == "x-grpc-test-echo-trailing-bin":
                context.set_trailing_metadata(((key, value),))
        return request

    async def wait(self, request: bytes, context: Any) -> bytes:
        context.add_done_callback(lambda done: self.outcomes.append((done.done(), done.cancelled())))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.entered.set()
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        return request

    async def status(self, request: bytes, context: Any) -> bytes:
        number, _, text = request.decode().partition(" ")
        code = next(each for each in grpc.StatusCode if each.value[0] == int(number))
        await context.abort(code, text, (("k", "v"),))
        raise AssertionError("abort returns")

    async def many(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        count, size, grouped = map(int, request.split())
        if grouped:
            yield [b"x" * size] * count
            return
        for _ in range(count):
            self.made += 1
            yield b"x" * size

    async def collect(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"%d" % sum([len(each) async for each in requests])

    async def chat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for each in requests:
            yield each

    async def unread(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await self.release.wait()
        return b"%d" % sum([len(each) async for each in requests])


def server_of(handlers: Handlers, limits: Limits | None = None) -> NativeServer:
    """Return a server with the suite's policy."""
    made: dict[str, Any] = {
        **{name: grpc.unary_unary_rpc_method_handler(getattr(handlers, name)) for name in ("echo", "wait", "status")},
        "many": grpc.unary_stream_rpc_method_handler(handlers.many),
        "collect": grpc.stream_unary_rpc_method_handler(handlers.collect),
        "unread": grpc.stream_unary_rpc_method_handler(handlers.unread),
        "chat": grpc.stream_stream_rpc_method_handler(handlers.chat),
    }
    from dexorder_common.rpc.native.server import NativeServer  # deferred: without the module its tests are skipped

    server = NativeServer([PolicyInterceptor(CallMetrics(CollectorRegistry()))], limits or Limits())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, made),))
    return server


@asynccontextmanager
async def serving(handlers: Handlers, limits: Limits | None = None, stop_seconds: float = 0.0) -> AsyncIterator[str]:
    """Run a server; yield its address."""
    server = server_of(handlers, limits)
    port = server.bind("127.0.0.1:0", None)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(stop_seconds)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition of handlers."""
    while not holds():  # noqa: ASYNC110  # whatever a handler does may fulfil it
        await asyncio.sleep(0.005)


def packed(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def block(path: str, *more: tuple[str, str]) -> bytes:
    """Return the header block of a call: POST and http by the static table, the rest as literals."""
    fields = [(":path", path), ("content-type", "application/grpc"), ("te", "trailers"), *more]
    return b"\x83\x86" + b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def call(stream: int, name: str, message: bytes = b"", *more: tuple[str, str]) -> bytes:
    """Return the frames of a whole unary call."""
    head = packed(HEADERS, END_HEADERS, stream, block(f"/{SERVICE}/{name}", *more))
    return head + packed(DATA, END_STREAM, stream, frame(message))


class RawClient:
    """A connection that sends any bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        """Send bytes."""
        self.writer.write(b"".join(frames))

    async def frame(self) -> tuple[int, int, int, bytes] | None:
        """Return the next frame as kind, flags, stream, payload; None at the end of the connection."""
        try:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return head[3], head[4], int.from_bytes(head[5:]), payload

    async def until(self, kinds: Iterable[int]) -> tuple[int, int, int, bytes] | None:
        """Return the next frame of these kinds, or None."""
        while (found := await self.frame()) is not None and found[0] not in kinds:
            pass
        return found

    async def ended(self, stream: int) -> bool:
        """Return whether a stream ends before the connection does."""
        while (found := await self.frame()) is not None:
            if found[2] == stream and (found[0] == RESET or (found[0] in (DATA, HEADERS) and found[1] & END_STREAM)):
                return True
        return False


@asynccontextmanager
async def connected(address: str, settings: bytes = b"") -> AsyncIterator[RawClient]:
    """Yield a client that has exchanged prefaces."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = RawClient(reader, writer)
    client.send(PREFACE, packed(SETTINGS, 0, 0, settings), packed(SETTINGS, ACK, 0))
    await client.until((WINDOW_UPDATE,))  # the server's windows are open
    try:
        yield client
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
