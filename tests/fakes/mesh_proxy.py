"""What proxies of a mesh do to calls: reset a stream after a message, and repeat a call whose answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import grpc

from tests.fakes.tcp_proxy import TcpProxy

_HEAD_BYTES, _DATA = 9, 0
_INTERNAL_ERROR = 2
ATTEMPTS = "x-envoy-attempt-count"
"""Header in which Envoy numbers the attempts of a call, from 1 on."""


@dataclass
class _Frames:
    """HTTP/2 frames of one connection, from the server; and messages to a stream's reset, 0 for one that was."""

    rest: bytes = b""
    left: dict[int, int] = field(default_factory=dict)

    def add(self, data: bytes) -> Iterable[tuple[int, int, bytes]]:
        """Yield kind, stream and bytes of each frame that is complete."""
        self.rest += data
        while len(self.rest) >= _HEAD_BYTES:
            size = _HEAD_BYTES + int.from_bytes(self.rest[:3])
            if len(self.rest) < size:
                return
            frame, self.rest = self.rest[:size], self.rest[size:]
            yield frame[3], int.from_bytes(frame[5:9]) & 0x7FFF_FFFF, frame


class ResettingProxy(TcpProxy):
    """Resets streams after a message to the client: a proxy can do nothing else once a stream has had one.

    Attributes:
        after: Messages after which each of the next streams is reset.
        resets: Streams reset so far.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.after: list[int] = []
        self.resets = 0
        self._frames: WeakKeyDictionary[asyncio.StreamWriter, _Frames] = WeakKeyDictionary()

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        """Pass frames on, except messages of a stream that was reset."""
        frames = self._frames.setdefault(client, _Frames())
        for kind, stream, frame in frames.add(data):
            if kind != _DATA:
                client.write(frame)
                continue
            if stream not in frames.left and self.after:
                frames.left[stream] = self.after.pop(0)
            if left := frames.left.get(stream, -1):
                client.write(frame)
                frames.left[stream] = left - 1
            if left == 1:
                self.resets += 1
                client.write(b"\0\0\4\3\0" + stream.to_bytes(4) + _INTERNAL_ERROR.to_bytes(4))
        await client.drain()
        return True


class RepeatingProxy(grpc.GenericRpcHandler):
    """Passes unary calls on; of a call that is to be lost the answer is dropped and the call made again.

    Args:
        targets: Servers, used in turn, as a proxy that balances calls does.
    Attributes:
        lost: Calls whose first answer is still to be lost.
        loses_all: Whether each call loses its first answer.
        marks: Whether it numbers the attempts, as Envoy does.
        answers: Answers, or statuses, that the servers gave, the lost ones among them.
    """

    def __init__(self, *targets: str, marks: bool = True) -> None:
        self.lost = 0
        self.loses_all = False
        self.marks = marks
        self.answers: list[Any] = []
        self._channels = [grpc.aio.insecure_channel(target) for target in targets]
        self._turn = 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return a handler for any method."""

        async def call(request: bytes, context: Any) -> bytes:
            given = [each for each in context.invocation_metadata() or () if not each[0].startswith("grpc-")]
            attempt = 1
            while True:
                metadata = [*given, (ATTEMPTS, str(attempt))] if self.marks else given
                lose = self.lost > 0 or (self.loses_all and attempt == 1)
                self.lost -= self.lost > 0
                try:
                    method: Any = self._next().unary_unary(details.method)
                    answer: bytes = await method(request, metadata=metadata)
                    self.answers.append(answer)
                except grpc.aio.AioRpcError as error:
                    self.answers.append(error.code())
                    if not lose:
                        await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
                else:
                    if not lose:
                        return answer
                attempt += 1

        return grpc.unary_unary_rpc_method_handler(call)

    def _next(self) -> grpc.aio.Channel:
        self._turn += 1
        return self._channels[self._turn % len(self._channels)]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve until the block ends; gives the address."""
        server = grpc.aio.server(handlers=[self])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)
            for channel in self._channels:
                await channel.close()
