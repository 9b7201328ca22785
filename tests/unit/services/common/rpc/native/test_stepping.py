"""A coroutine that runs at once and becomes a Task where it waits behaves as in a Task from its start."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from dexorder_common.rpc.native.stepping import begin

value: ContextVar[str] = ContextVar("value", default="outside")


async def started(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, asyncio.Task[Any] | None]:
    """Begin a coroutine in a callback of the loop, where no task runs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def now() -> None:
        try:
            done.set_result(begin(coroutine, loop, copy_context()))
        except (Exception, asyncio.CancelledError) as error:
            done.set_exception(ExceptionGroup("", [error]) if isinstance(error, Exception) else error)

    loop.call_soon(now)
    return await done  # type: ignore[no-any-return]


async def test_what_does_not_wait_needs_no_task() -> None:
    async def answer() -> int:
        return 7

    assert await started(answer()) == (7, None)


async def test_what_waits_goes_on_in_a_task_with_its_own_context() -> None:
    go = asyncio.Event()

    async def answer() -> str:
        value.set("inside")
        await go.wait()
        await asyncio.sleep(0)
        return value.get()

    _, task = await started(answer())
    assert task is not None and value.get() == "outside"
    go.set()
    assert await task == "inside"


async def test_an_error_before_the_first_wait_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ExceptionGroup) as caught:
        await started(fail())
    assert isinstance(caught.value.exceptions[0], ValueError)


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_cancelling_reaches_the_coroutine_even_before_the_tasks_first_step(turns: int) -> None:
    left = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # a clean-up may wait too
            left.append(1)

    _, task = await started(wait())
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert left == [1] and task.cancelled()


async def test_timeouts_and_task_groups_that_begin_before_the_first_wait_work() -> None:
    async def with_timeout() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "?"

    async def with_group() -> str:
        async def fail() -> None:
            raise ValueError("no")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except ExceptionGroup:
            return "failed"
        return "?"

    for coroutine, expected in ((with_timeout(), "timed out"), (with_group(), "failed")):
        _, task = await started(coroutine)
        assert task is not None
        assert await asyncio.wait_for(task, 60) == expected


async def test_a_future_that_is_done_before_the_task_looks_at_it() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> int:
        return await future

    _, task = await started(wait())
    future.set_result(3)
    assert task is not None and await task == 3
