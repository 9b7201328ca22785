"""Properties passed to librdkafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from dexorder_gateway.kafkapixy.cluster_config import (
    ClusterConfig,
    ConsumeConfig,
    ProduceConfig,
    client_options,
    consumer_options,
    producer_options,
)


def producing(**rules: Any) -> dict[str, Any]:
    return producer_options(ClusterConfig("c", "k:1", produce=ProduceConfig(**rules)))


def consuming(**rules: Any) -> dict[str, Any]:
    return consumer_options(ClusterConfig("c", "k:1", consume=ConsumeConfig(**rules)))


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ({"acks": "all"}, {"enable.idempotence": True, "acks": "all", "max.in.flight.requests.per.connection": 1}),
        ({"acks": "leader"}, {"enable.idempotence": False, "acks": "1", "max.in.flight.requests.per.connection": 1}),
        ({"acks": "none"}, {"enable.idempotence": False, "acks": "0", "max.in.flight.requests.per.connection": 1}),
        ({"partitioner": "hash"}, {"partitioner": "fnv1a_random", "sticky.partitioning.linger.ms": 0}),
        ({"partitioner": "random"}, {"partitioner": "random"}),
        ({"batch_bytes": 5}, {"batch.size": 5}),
        ({"linger_ms": 0.5}, {"linger.ms": 0.5}),
        ({"timeout_seconds": 1.5}, {"delivery.timeout.ms": 0}),
        (
            {"retries": 4, "retry_backoff_ms": 5_000},
            {"retries": 4, "retry.backoff.ms": 5_000, "retry.backoff.max.ms": 5_000},
        ),
        ({}, {"retry.backoff.max.ms": 1_000}),
        ({"replication_timeout_ms": 7_000}, {"request.timeout.ms": 7_000}),
        (
            {"max_bytes": 2_000, "queue_messages": 3, "queue_kbytes": 4},
            {"message.max.bytes": 2_036, "queue.buffering.max.messages": 3, "queue.buffering.max.kbytes": 4},
        ),
        ({"compression": "zstd"}, {"compression.codec": "zstd"}),
    ],
)
def test_producer(rules: dict[str, Any], options: dict[str, Any]) -> None:
    found = producing(**rules)
    assert {name: found[name] for name in options} == options
    assert Producer(found) is not None  # librdkafka accepts the combination


def test_missing_settings_are_librdkafkas_defaults() -> None:
    assert not {"batch.size", "retries", "retry.backoff.ms", "request.timeout.ms"} & producing().keys()


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ({"fetch_bytes": 1_000}, {"fetch.message.max.bytes": 1_000, "fetch.max.bytes": 16 * 1024 * 1024}),
        ({"fetch_bytes": 20_000_000}, {"fetch.max.bytes": 20_000_000, "receive.message.max.bytes": 21_048_576}),
        ({"fetch_wait_ms": 50}, {"fetch.wait.max.ms": 50}),
        ({"retry_backoff_ms": 70}, {"fetch.error.backoff.ms": 70}),
        ({"session_timeout_ms": 6_000}, {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}),
        ({"session_timeout_ms": 1_500}, {"heartbeat.interval.ms": 500}),
        ({"isolation_level": "read_committed"}, {"isolation.level": "read_committed"}),
    ],
)
def test_consumer(rules: dict[str, Any], options: dict[str, Any]) -> None:
    found = consuming(**rules)
    assert {name: found[name] for name in options} == options
    Consumer({**found, "group.id": "g"}).close()


@pytest.mark.parametrize("made", [client_options, producer_options, consumer_options])
def test_users_options_override_ours(made: Any) -> None:
    options = {"client.id": "mine", "linger.ms": "3", "fetch.wait.max.ms": "9"}
    assert options.items() <= made(ClusterConfig("c", "k:1", options=options)).items()


def test_linger_of_the_users_options_is_checked() -> None:
    with pytest.raises(ValueError, match="produce_linger_ms"):
        producer_options(ClusterConfig("c", "k:1", options={"linger.ms": "60000"}))
