"""librdkafka's properties for every client of a cluster. The user's options go on top."""

from __future__ import annotations

from typing import Any

from services.common.kafka.client_options import LIBRDKAFKA_LOG
from services.gateway.kafkapixy.cluster_config import ClusterConfig, ProduceConfig

_ACKS = {"all": "all", "leader": "1", "none": "0"}
_FETCH_ROOM_BYTES = 1_048_576


def client_options(config: ClusterConfig) -> dict[str, Any]:
    """Where the cluster is and how its clients behave while it is away."""
    return {
        "bootstrap.servers": config.kafka,
        "client.id": "dexorder-gateway",
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 1_000,
        "log.connection.close": False,
        "logger": LIBRDKAFKA_LOG,
        **config.options,
    }


def producer_options(config: ClusterConfig) -> dict[str, Any]:
    """A producer that keeps the order of a partition's records and, with acks of all replicas, doubles none.

    It never gives a record up: async ones were promised. How long a caller waits is `RecordProducer`'s affair.

    Raises:
        ValueError: Records would time out while they wait for others to share their batch.
    """
    rules = config.produce
    options: dict[str, Any] = {
        **client_options(config),
        **_delivery(rules),
        # The partition Kafka-Pixy would take (sarama's hash): an empty key has a constant one, no key a random one,
        # for each record and not for each batch. Turns of their own are the producer's affair.
        "partitioner": "fnv1a_random" if rules.partitioner == "hash" else "random",
        "sticky.partitioning.linger.ms": 0,
        "linger.ms": rules.linger_ms,
        "compression.codec": rules.compression,
        "delivery.timeout.ms": 0,
        "message.max.bytes": rules.max_bytes,
        "queue.buffering.max.messages": rules.queue_messages,
        "queue.buffering.max.kbytes": rules.queue_kbytes,
        **_set(
            {
                "batch.size": rules.batch_bytes,
                "request.timeout.ms": rules.replication_timeout_ms,
                "retries": rules.retries,
                "retry.backoff.ms": rules.retry_backoff_ms,
            }
        ),
        "retry.backoff.max.ms": max(1_000, rules.retry_backoff_ms or 0),
        **config.options,
    }
    if float(options["linger.ms"]) >= rules.timeout_seconds * 1_000:
        raise ValueError("produce_timeout_seconds is not longer than produce_linger_ms")
    return options


def _delivery(rules: ProduceConfig) -> dict[str, Any]:
    # One batch on the way at a time. Without sequence numbers one that is sent again could land behind the next. With
    # them the same would lose it: Kafka takes any sequence number as a producer's first in a partition, so when a
    # partition refuses a producer's first batch, as one just made does for a moment, it takes the second, and
    # librdkafka reads that as an ack of both (docs/decisions/0013).
    return {
        "enable.idempotence": rules.acks == "all",
        "acks": _ACKS[rules.acks],
        "max.in.flight.requests.per.connection": 1,
    }


def consumer_options(config: ClusterConfig) -> dict[str, Any]:
    """A member of a group that commits and places itself by hand."""
    rules = config.consume
    most_bytes = max(rules.max_record_bytes, rules.fetch_bytes)
    return {
        **client_options(config),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Every partition is assigned with an offset; this is for when retention overtakes us: take what is left.
        "auto.offset.reset": "earliest",
        # A member that comes or goes, also for another topic of the group, leaves the other partitions in peace.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": rules.session_timeout_ms,
        # A member learns with a heartbeat that another one came; until all have, nobody new gets a partition.
        "heartbeat.interval.ms": min(1_000, rules.session_timeout_ms // 3),
        "isolation.level": rules.isolation_level,
        # What is fetched ahead is fetched again after each pause.
        "queued.min.messages": 1_000,
        # By default a partition that has so many rests for a second, which made 1,000 a second the most of it.
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": 16_384,
        "fetch.message.max.bytes": rules.fetch_bytes,
        "fetch.max.bytes": most_bytes,
        "receive.message.max.bytes": most_bytes + _FETCH_ROOM_BYTES,
        "fetch.wait.max.ms": rules.fetch_wait_ms,
        "fetch.error.backoff.ms": rules.retry_backoff_ms,
        **config.options,
    }


def _set(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if value is not None}
