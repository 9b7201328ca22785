"""Handover of messages between the threads of an ingestor."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dexorder_ingestor.exchange.socket_thread import Handover, Received, SocketThread


async def test_every_message_of_the_thread_arrives_once_in_order() -> None:
    thread, handover, found = SocketThread("test"), Handover(max_messages=10_000), list[int]()

    async def send() -> None:
        for number in range(2_000):
            handover.put(Received(number, []))
            if number % 7 == 0:
                await asyncio.sleep(0)

    sending = asyncio.ensure_future(thread.run(send()))
    async with asyncio.timeout(60):
        while len(found) < 2_000:
            found += [message.received_ns for message in await handover.take()]
        await sending
    assert found == list(range(2_000))
    await thread.close()
    assert "test" not in {each.name for each in threading.enumerate()}


async def test_a_failure_comes_behind_the_messages_and_the_handover_can_be_used_again() -> None:
    handover = Handover(max_messages=10)
    handover.put(Received(1, []))
    handover.fail(ValueError("lost"))
    assert await handover.take() == [Received(1, [])]
    with pytest.raises(ValueError, match="lost"):
        await handover.take()
    handover.put(Received(2, []))
    assert await handover.take() == [Received(2, [])]


async def test_messages_beyond_the_limit_are_dropped_and_counted() -> None:
    handover = Handover(max_messages=3)
    for number in range(5):
        handover.put(Received(number, []))
    assert [message.received_ns for message in await handover.take()] == [0, 1, 2]
    assert handover.dropped == 2


async def test_other_tasks_run_while_messages_never_end() -> None:
    """A task that takes messages from a full queue never waits for them."""
    handover, turns = Handover(max_messages=100_000), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for number in range(1_000):
        handover.put(Received(number, []))
    task, taken = asyncio.create_task(other()), 0
    while taken < 1_000:
        taken += len(await handover.take())
    task.cancel()
    assert turns >= 50


async def test_what_the_thread_raises_is_raised_to_the_caller() -> None:
    thread = SocketThread("test")

    async def fail() -> None:
        raise ValueError("in the thread")

    with pytest.raises(ValueError, match="in the thread"):
        await thread.run(fail())
    await thread.close()
