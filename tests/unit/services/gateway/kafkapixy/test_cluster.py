"""Calls between the opening of the port and Kafka's first answer. Without Kafka: its answers are set by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import CollectorRegistry

from dexorder_common.kafka import renewed_admin
from dexorder_common.model.errors import Unavailable
from dexorder_gateway.kafkapixy import cluster as module
from dexorder_gateway.kafkapixy.cluster import Cluster
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig
from dexorder_gateway.kafkapixy.metrics import KafkaMetrics

KAFKA_DOWN = KafkaException(KafkaError(KafkaError._TRANSPORT))


class Started:
    """Cluster whose first query gets the result of ``answer``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of = Cluster(ClusterConfig("c", "127.0.0.1:1"), KafkaMetrics(CollectorRegistry()))
        self.answer: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(self.of, "_list_topics", lambda: asyncio.shield(self.answer))
        self.watching = asyncio.create_task(self.of._watch_topics())

    async def waiting(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        return task


async def query(of: Cluster) -> str:
    async with of.admin.call():
        return "answered"


async def test_calls_wait_for_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    has_topic = await started.waiting(started.of.has_topic("t", 0.0))
    queried = await started.waiting(query(started.of))
    started.answer.set_result({"t": 3})
    assert await has_topic and await queried == "answered"
    assert await started.of.has_topic("other", 0.0) is False
    started.watching.cancel()


async def test_calls_fail_with_the_reason_of_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    calls = [await started.waiting(started.of.has_topic("t", 0.0)), await started.waiting(query(started.of))]
    started.answer.set_exception(KAFKA_DOWN)
    for call in (*calls, asyncio.create_task(query(started.of))):
        with pytest.raises(Unavailable, match=r"Kafka at 127\.0\.0\.1:1: "):
            await call
    started.watching.cancel()


async def test_a_call_waits_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_ANSWER_SECONDS", 0.01)
    started = Started(monkeypatch)
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable, match="Kafka has not answered yet"):
            await started.of.has_topic("t", 0.0)
    started.watching.cancel()


async def test_a_query_without_an_answer_is_repeated_by_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        """Finds Kafka if it is the third one that was made."""

        made = 0

        def __init__(self, _: object) -> None:
            Client.made += 1
            self.number = Client.made

        def list_topics(self, timeout: float) -> Any:
            if self.number == 1:
                raise KAFKA_DOWN
            return SimpleNamespace(brokers=[1] if self.number == 3 else [], topics={})

        def poll(self, _: float) -> None:
            """Deliver nothing."""

    monkeypatch.setattr(renewed_admin, "AdminClient", Client)
    of = Cluster(ClusterConfig("c", "127.0.0.1:1", poll_seconds=0.001), KafkaMetrics(CollectorRegistry()))
    up = asyncio.Event()
    monkeypatch.setattr(of.consumers, "kafka_is_up", lambda is_up: up.set() if is_up else None)
    watching = asyncio.create_task(of._watch_topics())
    await asyncio.wait_for(up.wait(), 10)
    assert Client.made == 3
    watching.cancel()
