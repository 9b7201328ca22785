"""librdkafka's properties for each client of a cluster. The user's options override ours. Pure."""

from __future__ import annotations

from typing import Any

from dexorder_common.kafka.client_options import LIBRDKAFKA_LOG, client_id
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig

CLIENT_ID = client_id("gateway")
"""Name of this process at the brokers and in ListConsumers."""
_ACKS = {"all": "all", "leader": "1", "none": "0"}
_FETCH_OVERHEAD_BYTES = 1_048_576


def client_options(config: ClusterConfig) -> dict[str, Any]:
    """Return the properties of every client: the cluster's address, and behaviour while it is unavailable."""
    return {
        "bootstrap.servers": config.kafka,
        "client.id": CLIENT_ID,
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 1_000,
        "log.connection.close": False,
        "logger": LIBRDKAFKA_LOG,
        **config.options,
    }


def producer_options(config: ClusterConfig) -> dict[str, Any]:
    """Return properties of a producer that keeps the order of each partition's records.

    With acks of all replicas it writes no duplicates. It never drops a record: async ones were promised;
    `RecordProducer` decides how long a caller waits. Raises ValueError if that is shorter than records linger.
    """
    produce = config.produce
    given = {
        "batch.size": produce.batch_bytes,
        "request.timeout.ms": produce.replication_timeout_ms,
        "retries": produce.retries,
        "retry.backoff.ms": produce.retry_backoff_ms,
    }
    options: dict[str, Any] = {
        **client_options(config),
        "enable.idempotence": produce.acks == "all",
        "acks": _ACKS[produce.acks],
        # One batch in flight at a time. Without sequence numbers a batch that is sent again could land behind the next
        # one. With them it could be lost: Kafka takes any sequence number as a producer's first in a partition, so when
        # a partition refuses a producer's first batch, which a new partition does for a moment, it takes the second,
        # and librdkafka reads that as an ack of both (docs/decisions/0013).
        "max.in.flight.requests.per.connection": 1,
        # Kafka-Pixy's partition (sarama's hash): no key has a random one for each record, not for each batch. The
        # producer does round robin and the empty key itself.
        "partitioner": "fnv1a_random" if produce.partitioner == "hash" else "random",
        "sticky.partitioning.linger.ms": 0,
        "linger.ms": produce.linger_ms,
        "compression.codec": produce.compression,
        "delivery.timeout.ms": 0,
        "message.max.bytes": produce.max_bytes,
        "queue.buffering.max.messages": produce.queue_messages,
        "queue.buffering.max.kbytes": produce.queue_kbytes,
        **{name: value for name, value in given.items() if value is not None},
        "retry.backoff.max.ms": max(1_000, produce.retry_backoff_ms or 0),
        **config.options,
    }
    if float(options["linger.ms"]) >= produce.timeout_seconds * 1_000:
        raise ValueError("produce_timeout_seconds is not longer than produce_linger_ms")
    return options


def consumer_options(config: ClusterConfig) -> dict[str, Any]:
    """Return properties of a group's member, which extend `MEMBER_OPTIONS`."""
    consume = config.consume
    max_bytes = max(consume.max_record_bytes, consume.fetch_bytes)
    return {
        **client_options(config),
        "session.timeout.ms": consume.session_timeout_ms,
        # Members learn of a new member with a heartbeat; it gets no partition until all have.
        "heartbeat.interval.ms": min(1_000, consume.session_timeout_ms // 3),
        "isolation.level": consume.isolation_level,
        # Records fetched ahead are fetched again after each pause.
        "queued.min.messages": 1_000,
        # By default a partition with this many rests for a second, which limits it to 1,000 records a second.
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": 16_384,
        "fetch.message.max.bytes": consume.fetch_bytes,
        "fetch.max.bytes": max_bytes,
        "receive.message.max.bytes": max_bytes + _FETCH_OVERHEAD_BYTES,
        "fetch.wait.max.ms": consume.fetch_wait_ms,
        "fetch.error.backoff.ms": consume.retry_backoff_ms,
        **config.options,
    }
