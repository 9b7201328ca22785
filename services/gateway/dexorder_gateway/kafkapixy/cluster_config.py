"""Configuration of a Kafka cluster, from the environment or from Kafka-Pixy's file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
"""Names that Kafka accepts for a topic."""


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
    """

    name: str
    kafka: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[TopicSpec, ...] = ()
    topic_replication: int = -1
    poll_seconds: float = 1.0
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
