"""The request side of streaming RPCs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def until(closing: asyncio.Future[None], requests: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The requests, until the client has no more or ``closing`` is done."""
    while not closing.done():
        request = asyncio.ensure_future(anext(requests))
        request.add_done_callback(retrieved)  # one that came too late to be taken is no error to be logged
        try:
            await asyncio.wait((request, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            request.cancel()  # nothing if it is there
        if not request.done() or request.cancelled():
            return
        try:
            message = request.result()
        except StopAsyncIteration:
            return
        yield message


def retrieved(future: asyncio.Future[Any]) -> None:
    """A done callback that marks a failure as seen, whether anybody waits for it or not."""
    if not future.cancelled():
        future.exception()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run this as long as the block lasts, which may be a generator's that is ended early.

    A TaskGroup would, on a failure, cancel the task that happens to iterate over the generator. So ``work`` must tell
    of its failures itself.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
