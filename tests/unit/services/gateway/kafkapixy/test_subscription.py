"""Waiting callers are served by events, not by the next tick. Without Kafka: the reader's thread is not started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from dexorder_common.kafka.group_member import GroupMember
from dexorder_common.model.errors import Exhausted
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig
from dexorder_gateway.kafkapixy.metrics import ClusterMetrics
from dexorder_gateway.kafkapixy.subscription import PixySubscription

WAIT_SECONDS = 30.0


class Reading:
    """Subscription with records added by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rules: ConsumeConfig) -> None:
        monkeypatch.setattr("dexorder_gateway.kafkapixy.subscription._MAX_TICK_SECONDS", 3_600.0)
        self.member = GroupMember("g", {}, commit_seconds=1.0)
        monkeypatch.setattr(self.member, "read", lambda reading: True)
        rules = replace(rules, ack_timeout_seconds=86_400.0, subscription_timeout_seconds=86_400.0)
        self.of = PixySubscription(
            ClusterConfig("c", "", consume=rules), "g", "t", ClusterMetrics(), lambda *_, **__: None
        )
        self.of._queue.assign(0, (0, ""), new_group=False)
        assert self.of.start(self.member)

    def fetch(self, *offsets: int) -> None:
        """Add records as the thread does, with the lock held."""
        records: Any = [(offset, b"v") for offset in offsets]
        with self.member.lock:
            self.of._queue.fetched(0, records)
            self.of._wake()


@pytest.fixture
async def reading(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    made = Reading(monkeypatch, ConsumeConfig(max_pending_messages=1, long_polling_timeout_ms=3_600_000))
    yield made
    made.of.leave()


async def waiting(reading: Reading) -> asyncio.Task[int]:
    """Start a call that waits; the task returns its offset."""

    async def offset() -> int:
        return (await reading.of.consume()).offset

    task = asyncio.create_task(offset())
    await asyncio.sleep(0)
    assert reading.of.waiting == 1
    return task


async def test_fetched_record_goes_to_the_waiting_caller(reading: Reading) -> None:
    task = await waiting(reading)
    reading.fetch(0)
    assert await asyncio.wait_for(task, WAIT_SECONDS) == 0


async def test_more_callers_than_the_limit_are_refused_and_take_nothing_from_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(monkeypatch, ConsumeConfig(channel_buffer_size=2, long_polling_timeout_ms=3_600_000))
    calls = [asyncio.create_task(reading.of.consume()) for _ in range(50)]
    await asyncio.sleep(0)
    refused = [each for each in calls if each.done()]
    assert len(refused) == 48 and reading.of.waiting == 2
    for each in refused:
        with pytest.raises(Exhausted, match="2 requests wait for group 'g', topic 't'"):
            await each
    reading.fetch(0, 1)
    waited = await asyncio.gather(*(each for each in calls if each not in refused))
    assert sorted(each.offset for each in waited) == [0, 1]
    reading.of.leave()


async def test_ack_releases_the_next_record_to_the_waiting_caller(reading: Reading) -> None:
    reading.fetch(0, 1)
    assert (await reading.of.consume()).offset == 0
    task = await waiting(reading)
    reading.of.ack(0, 0)
    assert await asyncio.wait_for(task, WAIT_SECONDS) == 1


async def test_ack_releases_a_record_fetched_while_the_caller_waited(reading: Reading) -> None:
    reading.fetch(0)
    assert (await reading.of.consume()).offset == 0
    task = await waiting(reading)
    reading.fetch(1)
    await asyncio.sleep(0)
    assert not task.done()
    reading.of.ack(0, 0)
    assert await asyncio.wait_for(task, WAIT_SECONDS) == 1


async def test_record_given_back_goes_to_the_waiting_caller(reading: Reading) -> None:
    reading.fetch(0)
    delivery = await reading.of.consume()
    task = await waiting(reading)
    reading.of.give_back(delivery)
    assert await asyncio.wait_for(task, WAIT_SECONDS) == 0


async def test_a_waiting_caller_is_no_task(reading: Reading) -> None:
    tasks, caller = asyncio.all_tasks(), reading.of.consume()
    assert isinstance(caller.send(None), asyncio.Future)
    assert (asyncio.all_tasks(), reading.of.waiting) == (tasks, 1)
    caller.close()
    assert reading.of.waiting == 0
