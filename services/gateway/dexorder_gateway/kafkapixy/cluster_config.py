"""Configuration of a Kafka cluster, and librdkafka's properties for it. Pure.

The user's options override ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dexorder_common.kafka.client_options import LIBRDKAFKA_LOG, client_id

TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
"""Names that Kafka accepts for a topic."""


CLIENT_ID = client_id("gateway")
"""Name of this process at the brokers and in ListConsumers."""
_ACKS = {"all": "all", "leader": "1", "none": "0"}
_RECORD_OVERHEAD_BYTES = 36
"""What librdkafka adds to key and value of a record before it compares its size with ``message.max.bytes``."""
_FETCH_OVERHEAD_BYTES = 1_048_576


@dataclass(frozen=True)
class TopicSpec:
    """Topic that is created at start if it is missing."""

    name: str
    partitions: int


@dataclass(frozen=True)
class ProduceConfig:
    """Producer of a cluster. GatewaySettings has fields of these names with ``produce_``; None is librdkafka's default.

    Attributes:
        batch_bytes: A batch of this size is sent regardless of ``linger_ms``.
        acks: Replicas that must have a record before it counts as written; only ``all`` is idempotent.
        retries: Number of times a batch is sent again.
        retry_backoff_ms: Pause before each of these.
        replication_timeout_ms: Longest time that the broker waits for its replicas.
        partitioner: How the partition of a record is chosen; ``hash`` of its key, as Kafka-Pixy.
        shutdown_seconds: Longest time to write queued records at the stop; None is ``drain_seconds``.
    """

    timeout_seconds: float = 30.0
    linger_ms: float = 20.0
    queue_messages: int = 50_000
    queue_kbytes: int = 65_536
    max_bytes: int = 1_000_000
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    batch_bytes: int | None = None
    acks: Literal["all", "leader", "none"] = "all"
    retries: int | None = None
    retry_backoff_ms: int | None = None
    replication_timeout_ms: int | None = None
    partitioner: Literal["hash", "random", "roundrobin"] = "hash"
    shutdown_seconds: float | None = None


@dataclass(frozen=True)
class ConsumeConfig:
    """Consumers of a cluster. GatewaySettings has fields of these names.

    Attributes:
        disabled: This gateway does not consume from the cluster.
        fetch_bytes: Bytes of a partition in one fetch.
        fetch_wait_ms: Longest time that the broker waits for new records before it answers.
        retry_backoff_ms: Pause after a failed fetch.
        max_record_bytes: Largest record that can be fetched.
    """

    disabled: bool = False
    fetch_bytes: int = 1_048_576
    fetch_wait_ms: int = 500
    retry_backoff_ms: int = 500
    long_polling_timeout_ms: int = 3_000
    ack_timeout_seconds: float = 300.0
    max_retries: int = -1
    max_pending_messages: int = 300
    subscription_timeout_seconds: float = 15.0
    channel_buffer_size: int = 64
    offsets_commit_interval_ms: int = 500
    new_group_start: Literal["latest", "earliest"] = "latest"
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    session_timeout_ms: int = 15_000
    max_subscriptions: int = 256
    max_record_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True)
class ClusterConfig:
    """Kafka cluster behind the gateway.

    Attributes:
        kafka: ``bootstrap.servers``.
        options: Other librdkafka properties; they override ours.
        poll_seconds: Interval of the checks that the cluster answers.
        keys_topic: Topic of the gateways' own, for callers' idempotency keys.
    """

    name: str
    kafka: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[TopicSpec, ...] = ()
    topic_replication: int = -1
    poll_seconds: float = 1.0
    keys_topic: str = "dexorder.keys"
    produce: ProduceConfig = ProduceConfig()
    consume: ConsumeConfig = ConsumeConfig()


def parse_topics(text: str) -> tuple[TopicSpec, ...]:
    """Return the topics of ``name:partitions,...``, none for an empty text; raise ValueError for any other form."""
    topics = []
    for entry in filter(None, (e.strip() for e in text.split(","))):
        name, _, count = entry.partition(":")
        if not TOPIC_NAME.match(name) or not (count.isascii() and count.isdigit()) or int(count) == 0:
            raise ValueError(f"topic {entry!r} is not name:partitions")
        topics.append(TopicSpec(name, int(count)))
    if len({t.name for t in topics}) < len(topics):
        raise ValueError(f"{text!r} has a topic more than once")
    return tuple(topics)


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
        # One batch in flight at a time. Without sequence numbers a batch that is sent again could land after the next
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
        "message.max.bytes": min(produce.max_bytes + _RECORD_OVERHEAD_BYTES, 1_000_000_000),
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
