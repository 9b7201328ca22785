"""Streaming RPCs: helpers of their handlers, and the keep-alives by which a quiet stream differs from a dead one.

A proxy answers the pings of its client itself, so pings do not test the server behind it. The answers of an
endless stream therefore have a field ``keep_alive``: the server sets it in an answer that it sends after
`KEEP_ALIVE_SECONDS` without another one, and a reader gives a stream up after `SILENCE_SECONDS` without any.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

T = TypeVar("T")
KEEP_ALIVE_SECONDS = 20.0
"""Longest silence of a server in an endless stream, by default; below every proxy's idle timeout."""
SILENCE_SECONDS = 60.0
"""Time without any answer after which a reader opens an endless stream again."""
_HEADERS_SECONDS = 0.1
_FIELD = "keep_alive"


class StreamSilent(Exception):
    """An endless stream was silent, even without keep-alives: its server is frozen, or a proxy does not reach it."""


def keep_alive_answer(path: str) -> bytes | None:
    """Return the serialized keep-alive of a method ``/service/method``; None for a method without one."""
    try:
        answer = Default().FindMethodByName(path[1:].replace("/", ".")).output_type
    except KeyError:
        return None
    return GetMessageClass(answer)(**{_FIELD: True}).SerializeToString() if _FIELD in answer.fields_by_name else None


async def unless_silent(call: Any, seconds: float | None = None) -> AsyncGenerator[Any, None]:
    """Yield the answers of an endless stream without its keep-alives.

    Raises:
        StreamSilent: There was none for ``seconds``, by default `SILENCE_SECONDS`; the call is cancelled.
    """
    limit = SILENCE_SECONDS if seconds is None else seconds
    while True:
        try:
            async with asyncio.timeout(limit):
                answer = await call.read()
        except TimeoutError:
            raise StreamSilent(f"no answer for {limit:g} s") from None
        if answer is grpc.aio.EOF:
            return
        if not answer.keep_alive:
            yield answer


class KeptAlive:
    """Answers of one endless stream. grpcio takes one write at a time, so all go through `send`.

    Args:
        keep_alive: Message that is sent after ``seconds`` without an answer.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], keep_alive: bytes, seconds: float) -> None:
        self._context = context
        self._keep_alive = keep_alive
        self._seconds = seconds
        self._now = asyncio.get_running_loop().time
        self._last_s = self._now()
        self._is_first = True
        self._lock = asyncio.Lock()

    async def send(self, write: Callable[[], Awaitable[None]]) -> None:
        """Send an answer."""
        async with self._lock:
            self._is_first = False
            await write()
            self._last_s = self._now()

    async def run(self) -> None:
        """Send headers soon, and keep-alives, until cancelled or the caller has left."""
        try:
            await asyncio.sleep(_HEADERS_SECONDS)
            if self._is_first:
                await self.send(lambda: self._context.send_initial_metadata(()))
            while True:
                left_s = self._last_s + self._seconds - self._now()
                if left_s > 0:
                    await asyncio.sleep(left_s)
                elif self._lock.locked():  # a caller that does not read; its answer waits already
                    await asyncio.sleep(self._seconds)
                else:
                    await self.send(lambda: self._context.write(self._keep_alive))
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return  # the caller has left; the handler notices that by itself


async def until(closing: asyncio.Future[None], requests: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Yield the requests until the client has sent its last one or ``closing`` is done."""
    while not closing.done():
        request = asyncio.ensure_future(anext(requests))
        request.add_done_callback(retrieved)  # asyncio would log the failure of a request that is not awaited
        try:
            await asyncio.wait((request, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            request.cancel()  # no effect if it has arrived
        if not request.done() or request.cancelled():
            return
        try:
            message = request.result()
        except StopAsyncIteration:
            return
        yield message


def retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a future's failure as retrieved, so that asyncio does not log it; a done callback."""
    if not future.cancelled():
        future.exception()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` while the block lasts, which may be the body of a generator that is closed early.

    A failure in a TaskGroup would cancel the task that iterates over the generator. ``work`` therefore reports its
    failures itself.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
