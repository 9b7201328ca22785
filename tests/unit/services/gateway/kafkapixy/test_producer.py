"""The producer without a broker: bounded, and every record is reported; and the round robin of partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.kafka.client_errors import RecordRefused
from dexorder_common.model.errors import Exhausted, Uncertain
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, ProduceConfig
from dexorder_gateway.kafkapixy.inline_future import InlineFuture
from dexorder_gateway.kafkapixy.metrics import ClusterMetrics, KafkaMetrics
from dexorder_gateway.kafkapixy.producer import RecordProducer, RoundRobin
from tests.rig.processes import free_ports


def producer(registry: CollectorRegistry, rules: ProduceConfig) -> RecordProducer:
    config = ClusterConfig("c", f"127.0.0.1:{free_ports(1)[0]}", produce=rules)
    made = RecordProducer(config, KafkaMetrics(registry).cluster("c"))
    made.start()
    return made


def failed(registry: CollectorRegistry, mode: str) -> float | None:
    labels = {"cluster": "c", "topic": "t", "mode": mode}
    return registry.get_sample_value("dexorder_gateway_records_produce_failed_total", labels)


async def test_send_fails_within_the_produce_timeout() -> None:
    registry = CollectorRegistry()
    of = producer(registry, ProduceConfig(timeout_seconds=0.3))
    with pytest.raises(Uncertain, match="topic 't'"):
        await of.send("t", b"", b"v", [])
    await of.close(0.1)
    assert failed(registry, "sync") == 1


async def test_full_queue_refuses_and_queued_records_are_counted_as_failed() -> None:
    registry = CollectorRegistry()
    of = producer(registry, ProduceConfig(queue_messages=3))
    for _ in range(3):
        of.send_async("t", b"", b"v", [])
    with pytest.raises(Exhausted, match="3 records"):
        of.send_async("t", b"", b"v", [])
    with pytest.raises(Exhausted, match="3 records"):
        await of.send("t", b"", b"v", [])
    await of.close(0.1)
    assert (failed(registry, "async"), of.queued) == (3, 0)


async def test_cancelled_caller_affects_no_other() -> None:
    registry = CollectorRegistry()
    of = producer(registry, ProduceConfig())
    gone = asyncio.create_task(of.send("t", b"", b"v", []))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await of.close(0.1)
    assert failed(registry, "sync") == 1


async def test_the_largest_record_is_as_large_as_the_setting_says() -> None:
    of = producer(CollectorRegistry(), ProduceConfig(max_bytes=2_000))
    of.send_async("t", b"k" * 10, b"v" * 1_990, [])
    with pytest.raises(RecordRefused, match="1991 bytes"):
        of.send_async("t", b"k" * 10, b"v" * 1_991, [])
    await of.close(0.1)


async def test_a_busy_loop_is_woken_once_for_all_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    of = producer(registry, ProduceConfig())
    loop, wakes = asyncio.get_running_loop(), list[object]()
    wake = loop.call_soon_threadsafe

    def counted(call: Any, *given: Any) -> Any:
        wakes.append(call)
        return wake(call, *given)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    futures = [of.begin("t", b"", b"v", []) for _ in range(3)]
    of._stopping.set()
    of._thread.join()  # the test is the thread from now on
    for future in futures:
        of._reports.append((future, None, "t", 1, (0, len(wakes))))
        of._hand_over()
    assert wakes == [of._take_reports]
    assert await asyncio.gather(*futures) == [(0, 0), (0, 1), (0, 1)]
    of._reports.append((None, None, "t", 1, (0, 3)))
    of._hand_over()
    assert len(wakes) == 2
    await asyncio.sleep(0)
    await of.close(0.1)


async def test_a_call_that_waits_for_kafka_is_no_task() -> None:
    of = producer(CollectorRegistry(), ProduceConfig())
    tasks, waiting = asyncio.all_tasks(), of.send("t", b"", b"v", [])
    assert isinstance(waiting.send(None), InlineFuture)
    assert asyncio.all_tasks() == tasks
    waiting.close()
    await of.close(0.1)


def test_linger_must_be_shorter_than_the_timeout() -> None:
    with pytest.raises(ValueError, match="produce_linger_ms"):
        RecordProducer(
            ClusterConfig("c", "127.0.0.1:1", produce=ProduceConfig(timeout_seconds=0.001)),
            ClusterMetrics(),
        )


def test_round_robin_of_each_topic_is_independent() -> None:
    round_robin = RoundRobin({"a": 3, "b": 1}.__getitem__)
    assert [round_robin.next("a") for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [round_robin.next("b") for _ in range(2)] == [0, 0]
    assert round_robin.next("a") == 2


def test_round_robin_of_a_topic_that_grows_or_is_unknown() -> None:
    counts = {"a": 0}
    round_robin = RoundRobin(counts.__getitem__)
    assert round_robin.next("a") == -1
    counts["a"] = 2
    assert [round_robin.next("a") for _ in range(3)] == [0, 1, 0]
    counts["a"] = 3
    assert [round_robin.next("a") for _ in range(3)] == [1, 2, 0]
