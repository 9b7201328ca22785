"""A value that one coroutine waits for, in a Task and by hand; one callback settles many."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest

from dexorder_common.rpc.native.inline_task import InlineTask
from dexorder_gateway.kafkapixy.inline_future import InlineFuture


async def test_a_waiter_goes_on_inside_the_call_that_settles() -> None:
    loop = asyncio.get_running_loop()
    record, ended = InlineFuture[int](loop), list[Any]()

    async def wait() -> int:
        return 1 + await record

    def now() -> None:
        task = InlineTask(wait(), loop, copy_context(), lambda result, error: ended.append((result, error)))
        assert task.first() == (False, None)
        record.set_result(6)
        assert ended == [(7, None)]

    loop.call_soon(now)
    await asyncio.sleep(0)
    assert ended


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_task_gets_the_result_or_the_error(is_early: bool) -> None:
    loop = asyncio.get_running_loop()
    good, bad = InlineFuture[int](loop), InlineFuture[int](loop)

    async def wait(record: InlineFuture[int]) -> int:
        return await record

    def settle() -> None:
        good.set_result(3)
        bad.set_exception(ValueError("no"))

    if is_early:
        settle()
    tasks = [asyncio.create_task(wait(record)) for record in (good, bad)]
    if not is_early:
        loop.call_later(0.001, settle)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[0] == 3 and isinstance(found[1], ValueError)


async def test_a_waiter_that_is_cancelled_leaves_and_a_late_result_is_nobodys() -> None:
    record = InlineFuture[int](asyncio.get_running_loop())

    async def wait() -> int:
        return await record

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    assert record.done()  # its owner does not settle it any more
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not record.cancel()


async def test_a_timeout_around_it() -> None:
    record = InlineFuture[int](asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await record


async def test_a_waiter_that_fails_in_its_end_does_not_keep_others_from_theirs() -> None:
    """What a call does after its wait, such as writing its answer, runs in the callback that settles many."""
    loop = asyncio.get_running_loop()
    records, ended, told = [InlineFuture[int](loop) for _ in range(3)], list[Any](), list[Any]()
    loop.set_exception_handler(lambda _, facts: told.append(facts["exception"]))

    def end(result: Any, error: BaseException | None) -> None:
        if result == 1:
            raise ValueError("can't be written")
        ended.append(result)

    async def wait(record: InlineFuture[int]) -> int:
        return await record

    def now() -> None:
        for record in records:
            InlineTask(wait(record), loop, copy_context(), end).first()
        for number, record in enumerate(records):
            record.set_result(number)

    try:
        loop.call_soon(now)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert ended == [0, 2] and [str(error) for error in told] == ["can't be written"]
    with suppress(ValueError):
        records[1].result()
