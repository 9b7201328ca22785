"""Helpers of handlers of streaming RPCs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


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
