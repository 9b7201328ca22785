"""A coroutine that is driven by the callbacks of what it waits for behaves as in a Task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest

from dexorder_common.rpc.native.inline_task import InlineTask

value: ContextVar[str] = ContextVar("value", default="outside")
Drive = Callable[[Coroutine[Any, Any, Any], Callable[[Any], object]], Coroutine[Any, Any, Any]]


async def as_steps(coroutine: Coroutine[Any, Any, Any], act: Callable[[Any], object] = lambda task: None) -> Any:
    """Run a coroutine in a callback of the loop, as a connection does; ``act`` gets the InlineTask once it waits."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def ended(result: Any, error: BaseException | None) -> None:
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(_Raised(error))

    def now() -> None:
        task = InlineTask(coroutine, loop, copy_context(), ended)
        try:
            is_done, result = task.first()
        except (Exception, asyncio.CancelledError) as error:
            ended(None, error)
            return
        assert is_done is task.done()
        if is_done:
            ended(result, None)
        else:
            act(task)

    loop.call_soon(now)
    try:
        return await asyncio.wait_for(done, 60)
    except _Raised as raised:
        raise raised.error from None


class _Raised(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def as_task(coroutine: Coroutine[Any, Any, Any], act: Callable[[Any], object] = lambda task: None) -> Any:
    """Run a coroutine in a Task of asyncio: what `as_steps` is compared with."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    act(task)
    return await asyncio.wait_for(task, 60)


both = pytest.mark.parametrize("drive", [as_steps, as_task])


@both
async def test_a_result_without_a_wait(drive: Drive) -> None:
    async def answer() -> int:
        return 7

    assert await drive(answer(), lambda _: None) == 7


@both
async def test_waits_of_every_kind_keep_the_context_of_the_call(drive: Drive) -> None:
    loop = asyncio.get_running_loop()

    async def answer() -> list[Any]:
        value.set("inside")
        future = loop.create_future()
        loop.call_soon(future.set_result, 1)
        event = asyncio.Event()
        loop.call_soon(event.set)
        done = loop.create_future()
        done.set_result(2)
        return [
            await future,
            await done,
            await event.wait(),
            await asyncio.sleep(0, 3),
            await asyncio.sleep(0.001, 4),
            await asyncio.to_thread(lambda: 5),
            await asyncio.gather(asyncio.sleep(0, 6), asyncio.sleep(0, 7)),
            value.get(),
        ]

    assert await drive(answer(), lambda _: None) == [1, 2, True, 3, 4, 5, [6, 7], "inside"]
    assert value.get() == "outside"


@both
@pytest.mark.parametrize("waits", [0, 1, 2])
async def test_an_error_after_so_many_waits(drive: Drive, waits: int) -> None:
    async def fail() -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await drive(fail(), lambda _: None)


@both
async def test_an_error_of_what_is_awaited_is_raised_at_its_await(drive: Drive) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        try:
            await future
        except ValueError as error:
            return str(error)
        return "?"

    assert await drive(wait(), lambda _: future.set_exception(ValueError("theirs"))) == "theirs"


@both
async def test_cancelling_reaches_the_coroutine_and_its_clean_up_may_wait(drive: Drive) -> None:
    left = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.append(1)

    with pytest.raises(asyncio.CancelledError):
        await drive(wait(), lambda running: running.cancel())
    assert left == [1]


@both
async def test_a_cancel_between_the_result_and_the_coroutine_wins(drive: Drive) -> None:
    """The future has its result, the coroutine has not seen it yet."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> int:
        return await future

    def act(running: Any) -> None:
        future.set_result(3)
        assert running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await drive(wait(), act)


@both
async def test_a_cancel_that_is_caught_lets_the_coroutine_go_on(drive: Drive) -> None:
    async def wait() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
        return 5

    assert await drive(wait(), lambda running: running.cancel()) == 5


@both
@pytest.mark.parametrize("before", [True, False], ids=["before it waits", "before it ends"])
async def test_a_coroutine_that_cancels_itself(drive: Drive, before: bool) -> None:
    async def wait() -> str:
        if not before:
            await asyncio.sleep(0)
        task: Any = asyncio.current_task()
        task.cancel()
        if before:
            await asyncio.Event().wait()
        return "?"

    with pytest.raises(asyncio.CancelledError):
        await drive(wait(), lambda _: None)


@both
async def test_what_has_ended_is_not_cancelled(drive: Drive) -> None:
    kept = list[Any]()

    async def wait() -> int:
        await asyncio.sleep(0)
        return 1

    assert await drive(wait(), kept.append) == 1
    assert kept[0].done() and not kept[0].cancel()


@both
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
async def test_timeouts_and_task_groups(drive: Drive, waits: bool) -> None:
    async def with_timeout() -> str:
        if waits:
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            task: Any = asyncio.current_task()
            return f"timed out, {task.cancelling()} left"
        return "?"

    async def with_group() -> str:
        if waits:
            await asyncio.sleep(0)

        async def fail() -> None:
            raise ValueError("no")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except ExceptionGroup:
            return "failed"
        return "?"

    assert await drive(with_timeout(), lambda _: None) == "timed out, 0 left"
    assert await drive(with_group(), lambda _: None) == "failed"


async def test_a_deadline_around_everything_and_a_cancel_from_outside_at_once() -> None:
    """Both cancel; the deadline takes back its own only, so the call ends as cancelled."""

    async def wait() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    for drive in (as_steps, as_task):
        with pytest.raises(asyncio.CancelledError):
            await drive(wait(), lambda running: (running.cancel(), running.cancel()))


async def test_what_is_no_future_is_an_error_at_its_await() -> None:
    class Wrong:
        def __await__(self) -> Any:
            yield "nothing to wait for"

    async def wait() -> None:
        await Wrong()

    with pytest.raises(RuntimeError, match="which is not a future"):
        await as_steps(wait())


async def test_no_task_runs_beside_the_coroutine() -> None:
    """A callback that drives it leaves asyncio's own account as it was."""
    seen: list[Any] = []
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        seen.append(asyncio.current_task())
        await future
        seen.append(asyncio.current_task())

    tasks = asyncio.all_tasks()

    def act(task: Any) -> None:
        seen.append(asyncio.current_task())
        assert asyncio.all_tasks() - tasks == set()
        asyncio.get_running_loop().call_soon(future.set_result, None)

    running = partial(as_steps, wait(), act)
    await running()
    assert seen[0] is seen[2] and isinstance(seen[0], InlineTask) and seen[1] is None
