"""A call with any number of request messages, which its handler reads as they come."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from grpc.aio import EOF

from dexorder_common.rpc.native.calls import Call, resolve
from dexorder_common.rpc.native.context import Head
from dexorder_common.rpc.native.framing import Deframer, Framed, expanded
from dexorder_common.rpc.native.line import Line
from dexorder_common.rpc.native.methods import Method


class StreamingCall(Call):
    """The call is also the iterator of its requests.

    Unread messages count against the stream's window, so a client can't send more than that.
    """

    def __init__(self, stream: int, head: Head, method: Method, line: Line, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream, head, method, line, loop)
        self._arrived: list[Framed] = []
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None

    def _take_first(self, body: bytes, *, ended: bool) -> None:
        self._deframer = Deframer(self._line.limits.max_message_bytes)
        self._take(body, ended=ended)
        self._begin(self)

    def _take(self, body: bytes, *, ended: bool) -> None:
        assert self._deframer is not None
        self._arrived += self._deframer.feed(body)
        self._hold(self._deframer.pending)
        if ended:
            self._deframer.finish()
            self._is_ended = True
        elif not self._arrived:  # the rest of a message may be larger than the stream's window
            self._line.consume(self._stream)
        if self._arrived or self._is_ended:
            resolve(self._reader)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._arrived:
            if self._is_ended:
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            await self._reader
        return self._next()

    async def read(self) -> Any:
        """Return the next request; `grpc.aio.EOF` after the last one."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            return EOF

    def _next(self) -> Any:
        message = expanded(self._arrived.pop(0), self._line.limits.max_message_bytes, is_gzip=self._is_gzip)
        if not self._arrived and not self._is_ended:
            self._line.consume(self._stream)
        deserialize = self._method.deserialize
        return deserialize(message) if deserialize else message
