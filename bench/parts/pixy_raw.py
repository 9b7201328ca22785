"""Limits of the broker: confluent-kafka alone, in this process."""

from __future__ import annotations

import os
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

VALUE = os.urandom(1_024)
PARTITIONS = 4
BATCH = 1_000
_TIMEOUT_SECONDS = 120.0


def make_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    """Create a topic, by default with the partitions of all measurements."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result(timeout=30)


def producer(bootstrap: str) -> Producer:
    """Return a producer with acks=all, and everything else by default."""
    return Producer({"bootstrap.servers": bootstrap, "acks": "all", "sticky.partitioning.linger.ms": 0})


def produce_one_by_one(bootstrap: str, topic: str, seconds: float) -> float:
    """Return records per second, waiting for each before the next."""
    alone = producer(bootstrap)
    written(alone, topic)  # connects
    count, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        written(alone, topic)
        count += 1
    return count / spent


def written(alone: Producer, topic: str) -> None:
    alone.produce(topic, VALUE)
    if alone.flush(_TIMEOUT_SECONDS):
        raise AssertionError("the record was not written")


def produce_bulk(bootstrap: str, topic: str, records: int) -> float:
    """Return records per second in bulk, with a report for each."""
    alone = producer(bootstrap)
    written(alone, topic)
    acked = 0

    def report(error: Any, message: Any) -> None:
        nonlocal acked
        acked += error is None

    started = time.perf_counter()
    for _ in range(records):
        queued = False
        while not queued:
            try:
                alone.produce(topic, VALUE, on_delivery=report)
                queued = True
            except BufferError:
                alone.poll(0.01)
        alone.poll(0)
    alone.flush(_TIMEOUT_SECONDS)
    if acked != records:
        raise AssertionError(f"{acked} of {records} records were written")
    return records / (time.perf_counter() - started)
