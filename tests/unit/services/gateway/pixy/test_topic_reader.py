"""Fetching ahead of callers that do not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from services.common.errors import SuiteError
from services.gateway.config import ClusterConfig, ConsumeConfig
from services.gateway.pixy.acks import AckRules
from services.gateway.pixy.offers import Ask, Buffer, Offers
from services.gateway.pixy.topic_reader import Record, TopicReader
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

    offers: Offers[Record] = Offers(AckRules(ack_timeout_ns=10**12, max_pending=10**6), buffer=Buffer(64))
    config = ClusterConfig("default", kafka, consume=ConsumeConfig(new_group_start="earliest"))
    reader = TopicReader(config, topic, topic, offers, lock, fetched.set, end)
    reader.start()
    found: dict[int, list[int]] = {0: [], 1: []}
    pauses = 0
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(map(len, found.values())) < 2 * count:
        assert time.monotonic() < deadline
        if pauses < 4 and len(found[0]) > pauses * 300:
            while reader.paused != {0, 1}:  # nobody takes anything until both are full
                assert time.monotonic() < deadline
                time.sleep(0.01)
            pauses += 1
        fetched.clear()
        with lock:
            deliveries = offers.take(Ask(), now_ns=0)
        if not deliveries:
            fetched.wait(0.05)
        for delivery in deliveries:
            found[delivery.partition].append(delivery.offset)
            reader.go_on()
    reader.stop()
    assert ended.wait(WAIT_SECONDS)
    assert failures == [None]
    assert pauses == 4
    assert found == {0: list(range(count)), 1: list(range(count))}
