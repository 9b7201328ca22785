"""TCP proxies on loopback for tests: one that loses answers, one that cuts a stream at a byte, one that stalls."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from weakref import WeakKeyDictionary

_CHUNK = 65_536
_WAIT_SECONDS = 60.0
_HEAD_BYTES, _DATA = 9, 0
"""Of an HTTP/2 frame: the size of its header, and the type that carries a body (RFC 9113, 4.1 and 6.1)."""


class TcpProxy:
    """From a port of loopback to another one; a subclass says what becomes of the server's answers."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._connections: set[asyncio.Task[None]] = set()

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        """Pass on what the server said; False ends the connection, on both sides."""
        client.write(data)
        await client.drain()
        return True

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[int]:
        """Serve until the block ends; gives the port, which is a free one for 0."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._connect(client_reader, client)
        finally:
            self._connections.discard(task)
            client.transport.abort()

    async def _connect(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # nobody listens; the client sees its connection end
            return
        pumps = {
            asyncio.create_task(self._pass_questions(client_reader, server)),
            asyncio.create_task(self._pass_answers(server_reader, client)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.transport.abort()  # before any await: this may be cancelled while the client leaves
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pass_questions(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            server.write(data)
            await server.drain()

    async def _pass_answers(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while (data := await reader.read(_CHUNK)) and await self.answer(data, client):
            pass


class LossyProxy(TcpProxy):
    """Drops what the server says at times, and the connection with it.

    Attributes:
        cuts: Answers lost so far.
        loses: Whether it loses any now; each with ``odds``.
    """

    def __init__(self, target_port: int, odds: float, seed: int = 1) -> None:
        super().__init__(target_port)
        self.cuts = 0
        self.loses = False
        self._odds = odds
        self._random = Random(seed)

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        """Pass it on, or lose it."""
        if self.loses and self._random.random() < self._odds:
            self.cuts += 1
            return False
        return await super().answer(data, client)


class StallingProxy(TcpProxy):
    """Holds back what the server says while it stalls, as a machine without a free core does.

    Attributes:
        connections: Connections accepted so far.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.connections = 0
        self._flows = threading.Event()
        self._flows.set()

    def stall(self) -> None:
        """Hold back every answer from now on, of new connections too; from any thread."""
        self._flows.clear()

    def resume(self) -> None:
        """Pass on what was held back, where the connection is still open, and all that follows; from any thread."""
        self._flows.set()

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        """Pass it on once nothing is held back."""
        await asyncio.to_thread(self._flows.wait, _WAIT_SECONDS)
        return await super().answer(data, client)

    async def _connect(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        await super()._connect(client_reader, client)


class DetectingProxy(TcpProxy):
    """Waits for a line end before it connects to the server, as a proxy that detects protocols does.

    Args:
        seconds: How long it waits at most; Linkerd's default is 10.
    """

    def __init__(self, target_port: int, seconds: float) -> None:
        super().__init__(target_port)
        self._seconds = seconds
        self._first: WeakKeyDictionary[asyncio.StreamReader, bytes] = WeakKeyDictionary()

    async def _connect(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        first = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while b"\n" not in first and (data := await client_reader.read(_CHUNK)):
                    first += data
        self._first[client_reader] = first
        await super()._connect(client_reader, client)

    async def _pass_questions(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        server.write(self._first[reader])
        await super()._pass_questions(reader, server)


@dataclass
class StreamBytes:
    """How much body each HTTP/2 stream of one connection has carried to the client."""

    carried: Counter[int] = field(default_factory=Counter)
    _head: bytes = b""
    _left: int = 0
    """Bytes of the frame's payload still to come."""
    _stream: int | None = None
    """Whose body the frame carries; None if it carries none."""

    def count(self, data: bytes, limit: int | None) -> int | None:
        """Go on with what the server says.

        Args:
            limit: Bytes of one stream's body that are looked for.
        Returns:
            How much of ``data`` had passed when a stream had carried ``limit`` bytes or more; None if none has.
        """
        at, found = 0, None
        while at < len(data):
            if not self._left:
                taken = min(_HEAD_BYTES - len(self._head), len(data) - at)
                self._begin(data[at : at + taken])
            else:
                taken = min(self._left, len(data) - at)
                self._left -= taken
                if self._stream is not None:
                    over = -1 if limit is None else self.carried[self._stream] + taken - limit
                    self.carried[self._stream] += taken
                    if over >= 0 and found is None:
                        found = at + max(0, taken - over)
            at += taken
        return found

    def _begin(self, part: bytes) -> None:
        self._head += part
        if len(self._head) == _HEAD_BYTES:
            self._left = int.from_bytes(self._head[:3])
            self._stream = int.from_bytes(self._head[5:]) & 0x7FFF_FFFF if self._head[3] == _DATA else None
            self._head = b""


class CuttingProxy(TcpProxy):
    """Cuts a connection when one of its HTTP/2 streams has carried so much body to the client.

    Attributes:
        cuts: Connections cut so far.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.cuts = 0
        self._armed: tuple[int, Callable[[], None]] | None = None
        self._seen: WeakKeyDictionary[asyncio.StreamWriter, StreamBytes] = WeakKeyDictionary()

    def cut_after(self, count: int, then: Callable[[], None] = lambda: None) -> None:
        """Cut the next stream that carries ``count`` bytes behind them; from any thread.

        Args:
            then: Called in the proxy's thread when these bytes have gone out; the client sees the cut after that.
        """
        self._armed = count, then

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        """Pass it on up to the cut, if there is one to make."""
        armed = self._armed
        seen = self._seen.setdefault(client, StreamBytes())
        cut = seen.count(data, armed[0] if armed else None)
        if armed is None or cut is None:
            return await super().answer(data, client)
        self._armed = None
        await super().answer(data[:cut], client)
        armed[1]()
        client.close()
        with suppress(OSError):
            await client.wait_closed()  # what was written before it is out
        self.cuts += 1
        return False


@contextmanager
def in_a_thread(proxy: TcpProxy, port: int = 0) -> Iterator[int]:
    """Let it listen, in a thread of its own; gives the port."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    try:
        serving = stack.enter_async_context(proxy.listening(port))
        yield asyncio.run_coroutine_threadsafe(serving, loop).result(_WAIT_SECONDS)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(_WAIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_WAIT_SECONDS)
        loop.close()
