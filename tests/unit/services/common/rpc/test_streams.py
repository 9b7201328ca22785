"""Helpers of streaming handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dexorder_common.rpc.streams import beside, until


class Requests:
    """Requests of a client from a queue: None for its half-close, an exception to raise."""

    def __init__(self, *sent: object) -> None:
        self.queue: asyncio.Queue[object] = asyncio.Queue()
        for each in sent:
            self.queue.put_nowait(each)

    async def __aiter__(self) -> AsyncIterator[object]:
        while (found := await self.queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found


async def test_requests_end_with_the_client() -> None:
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert [each async for each in until(closing, aiter(Requests(1, 2, None)))] == [1, 2]


async def test_requests_end_when_the_server_closes() -> None:
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen = []
    async for each in until(closing, aiter(Requests(1, 2))):
        seen.append(each)
        if each == 2:
            asyncio.get_running_loop().call_soon(closing.set_result, None)
    assert seen == [1, 2]
    assert [each async for each in until(closing, aiter(Requests(1)))] == []


async def test_error_of_the_requests_is_raised() -> None:
    closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(ValueError, match="bad"):
        [each async for each in until(closing, aiter(Requests(1, ValueError("bad"))))]


async def test_work_beside_a_generator_ends_with_it() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def answers() -> AsyncIterator[int]:
        async with beside(work()):
            yield 1
            yield 2

    generator = answers()
    assert await anext(generator) == 1
    await asyncio.sleep(0)
    await generator.aclose()  # type: ignore[attr-defined]  # an async generator
    assert ended.is_set()
