"""Fetching ahead, pauses, and set offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from services.common.model.errors import SuiteError, Unavailable
from services.gateway.kafkapixy.ack_tracker import AckRules
from services.gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig
from services.gateway.kafkapixy.delivery_queue import DeliveryQueue
from services.gateway.kafkapixy.subscription import BUFFER
from services.gateway.kafkapixy.topic_reader import TopicReader
from services.gateway.kafkapixy.types import Demand, NotAssigned, Record
from tests.fixtures_gateway import WAIT_SECONDS


@pytest.mark.kafka
def test_full_buffers_pause_fetching_and_nothing_is_skipped(
    kafka: str, kafka_topic: Callable[[int], str], write: Callable[..., None]
) -> None:
    topic, count = kafka_topic(2), 1_200
    for partition in range(2):
        write(topic, *[b"v"] * count, partition=partition)
    lock, fetched, ended = threading.Lock(), threading.Event(), threading.Event()
    failures: list[SuiteError | None] = []

    def end(failure: SuiteError | None) -> None:
        failures.append(failure)
        ended.set()

    delivery_queue: DeliveryQueue[Record] = DeliveryQueue(
        AckRules(ack_timeout_ns=10**12, max_pending=10**6), buffer=BUFFER
    )
    config = ClusterConfig("default", kafka, consume=ConsumeConfig(new_group_start="earliest"))
    reader = TopicReader(config, topic, topic, delivery_queue, lock, fetched.set, end)
    reader.start()
    found: dict[int, list[int]] = {0: [], 1: []}
    pauses = 0
    deadline = time.monotonic() + 2 * WAIT_SECONDS
    while (taken := sum(map(len, found.values()))) < 2 * count:
        assert time.monotonic() < deadline
        if pauses < 4 and taken >= pauses * 250:  # so that each partition still has more records than its buffer holds
            while reader.paused != {0, 1}:  # no record is taken until both buffers are full
                assert time.monotonic() < deadline
                time.sleep(0.01)
            pauses += 1
        fetched.clear()
        with lock:
            deliveries = delivery_queue.take(Demand(), now_ns=0)
        if not deliveries:
            fetched.wait(0.05)
        for delivery in deliveries:
            found[delivery.partition].append(delivery.offset)
            reader.resume_fetching()
    reader.stop()
    assert ended.wait(WAIT_SECONDS)
    assert failures == [None]
    assert pauses == 4
    assert found == {0: list(range(count)), 1: list(range(count))}


@pytest.mark.kafka
def test_reading_continues_at_set_offsets(
    kafka: str, kafka_topic: Callable[[int], str], write: Callable[..., None]
) -> None:
    topic, count = kafka_topic(2), 2_000
    for partition in range(2):
        write(topic, *[b"v"] * count, partition=partition)
    lock, fetched, ended = threading.Lock(), threading.Event(), threading.Event()
    delivery_queue: DeliveryQueue[Record] = DeliveryQueue(
        AckRules(ack_timeout_ns=10**12, max_pending=10**6), buffer=BUFFER
    )
    config = ClusterConfig("default", kafka, consume=ConsumeConfig(new_group_start="earliest"))
    reader = TopicReader(config, topic, topic, delivery_queue, lock, fetched.set, lambda failure: ended.set())
    assert reader.set_offsets(topic, {0: (500, "")}).cancel()  # the reader has not started, so it has no effect
    reader.start()
    deadline = time.monotonic() + 2 * WAIT_SECONDS

    def take(most: dict[int, int]) -> dict[int, list[int]]:
        """Take records until there are as many of each partition."""
        found: dict[int, list[int]] = {0: [], 1: []}
        while any(len(found[partition]) < most[partition] for partition in most):
            assert time.monotonic() < deadline
            fetched.clear()
            with lock:
                deliveries = delivery_queue.take(Demand(), now_ns=0)
            if not deliveries:
                fetched.wait(0.05)
            for delivery in deliveries:
                found[delivery.partition].append(delivery.offset)
                reader.resume_fetching()
        return found

    def set_offsets(wanted: dict[int, int]) -> None:
        reader.set_offsets(topic, {p: (offset, "") for p, offset in wanted.items()}).result(WAIT_SECONDS)

    assert take({0: 300, 1: 1})[0][0] == 0
    for paused in (True, False):
        for wanted in ({0: 7}, {1: 1_000, 0: 3}, {0: 1_500, 1: 0}):
            set_offsets({0: 0, 1: 0})
            while paused and reader.paused != {0, 1}:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            set_offsets(wanted)
            found = take(dict.fromkeys(wanted, 100))
            for partition, start in wanted.items():
                assert found[partition] == list(range(start, start + len(found[partition])))
    with pytest.raises(NotAssigned, match=r"\[2\]"):
        reader.set_offsets(topic, {0: (0, ""), 2: (0, "")}).result(WAIT_SECONDS)
    reader.stop()
    assert ended.wait(WAIT_SECONDS)
    with pytest.raises(Unavailable, match="no longer read"):
        reader.set_offsets(topic, {0: (0, "")}).result(WAIT_SECONDS)
