"""A call with any number of request messages, which its handler reads as they come."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from grpc.aio import EOF

from dexorder_common.rpc.native.calls import Call, resolve
from dexorder_common.rpc.native.context import Head
from dexorder_common.rpc.native.framing import Deframer, expanded
from dexorder_common.rpc.native.line import Line
from dexorder_common.rpc.native.methods import Method


class StreamingCall(Call):
    """The call is also the iterator of its requests.

    Unread messages count against the stream's window, so a client can't send more than that.
    """

    def __init__(self, stream: int, head: Head, method: Method, line: Line, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream, head, method, line, loop)
        self._deframer: Deframer = Deframer(line.limits.max_message_bytes)
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None

    def _take_first(self, body: bytes, *, ended: bool) -> None:
        self._take(body, ended=ended)
        self._begin(self)

    def _take(self, body: bytes, *, ended: bool) -> None:
        is_whole = self._deframer.feed(body)
        self._hold(self._deframer.pending)
        self._is_ended = ended
        if is_whole or ended:
            resolve(self._reader)
        else:  # the rest of a message may be larger than the stream's window
            self._line.consume(self._stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while (framed := self._deframer.take()) is None:
            if self._is_ended:
                self._deframer.finish()
                raise StopAsyncIteration
            self._line.consume(self._stream)
            self._reader = self._loop.create_future()
            await self._reader
        self._hold(self._deframer.pending)
        message = expanded(framed, self._line.limits.max_message_bytes, is_gzip=self._is_gzip)
        deserialize = self._method.deserialize
        return deserialize(message) if deserialize else message

    async def read(self) -> Any:
        """Return the next request; `grpc.aio.EOF` after the last one."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            return EOF
