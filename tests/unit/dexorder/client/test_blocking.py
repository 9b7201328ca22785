"""The blocking client, without a relay."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator

import pytest

from dexorder import AsyncClient, Client


def test_ctrl_c_ends_an_iteration_whose_generator_takes_its_time_to_end() -> None:
    ended = []

    async def values() -> AsyncGenerator[int, None]:
        yield 1
        try:
            await asyncio.sleep(0.1)  # Python may lose a signal that comes while the main thread begins to wait
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.05)
            ended.append("generator")

    # A shell starts a process in the background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Client("127.0.0.1:1") as client, pytest.raises(KeyboardInterrupt):
            for each in client._loop.iterate(values()):
                ended.append(f"value {each}")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["value 1", "generator"]


PARTS = ("requests", "rows", "receipts", "series", "realtime", "triggers", "udfs")


async def test_the_blocking_client_has_each_method_of_the_async_one() -> None:
    async with AsyncClient("127.0.0.1:1") as theirs:
        with Client("127.0.0.1:1") as ours:
            assert public(ours) == public(theirs)
            for part in PARTS:
                left = public(getattr(theirs, part)) - public(getattr(ours, part))
                assert left <= {"source"}, f"{part}: {left}"


def public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}
