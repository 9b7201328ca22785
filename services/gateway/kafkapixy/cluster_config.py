"""What the rest of the gateway is told of each Kafka cluster; from the environment or from Kafka-Pixy's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
"""What Kafka takes for a topic's name."""


@dataclass(frozen=True)
class WantedTopic:
    """A topic that is created at start when it is missing."""

    name: str
    partitions: int


@dataclass(frozen=True)
class ProduceConfig:
    """How one cluster's producer behaves; fields as in GatewaySettings, None is librdkafka's default.

    Attributes:
        batch_bytes: A batch of this size goes out whatever ``linger_ms`` says.
        acks: Which replicas must have a record before it counts as written; only ``all`` is idempotent.
        retries: How often a batch is sent again.
        retry_backoff_ms: The pause before each of these.
        replication_timeout_ms: How long the broker waits for its replicas.
        partitioner: How the partition of a record is chosen; ``hash`` as Kafka-Pixy, by its key.
        shutdown_seconds: Longest time to write what is queued at the stop; None is ``drain_seconds``.
    """

    timeout_seconds: float = 30.0
    linger_ms: float = 20.0
    queue_messages: int = 50_000
    queue_kbytes: int = 65_536
    max_bytes: int = 1_000_000
    compression: str = "lz4"
    batch_bytes: int | None = None
    acks: Literal["all", "leader", "none"] = "all"
    retries: int | None = None
    retry_backoff_ms: int | None = None
    replication_timeout_ms: int | None = None
    partitioner: Literal["hash", "random", "roundrobin"] = "hash"
    shutdown_seconds: float | None = None
    stream_records: int = 10_000
    stream_kbytes: int = 16_384


@dataclass(frozen=True)
class ConsumeConfig:
    """How one cluster's consumers behave; fields as in GatewaySettings.

    Attributes:
        disabled: Nothing is consumed through this gateway.
        fetch_bytes: How much of a partition is asked for at a time.
        fetch_wait_ms: How long the broker may wait for new records before it answers.
        retry_backoff_ms: The pause after a fetch that failed.
    """

    disabled: bool = False
    fetch_bytes: int = 1_048_576
    fetch_wait_ms: int = 500
    retry_backoff_ms: int = 500
    long_polling_timeout_ms: int = 3_000
    ack_timeout_seconds: float = 300.0
    max_retries: int = -1
    max_pending_messages: int = 300
    stream_max_pending_messages: int = 10_000
    stream_max_pending_kbytes: int = 65_536
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
    """One Kafka cluster behind the gateway.

    Attributes:
        kafka: ``bootstrap.servers``.
        options: Further librdkafka properties; they win over ours.
        poll_seconds: How often the cluster is asked whether it is there.
    """

    name: str
    kafka: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[WantedTopic, ...] = ()
    topic_replication: int = -1
    poll_seconds: float = 1.0
    produce: ProduceConfig = ProduceConfig()
    consume: ConsumeConfig = ConsumeConfig()


def parse_topics(text: str) -> tuple[WantedTopic, ...]:
    """The topics of ``name:partitions,...``; none for an empty text.

    Raises:
        ValueError: An entry is not of that form, or a name comes twice.
    """
    topics = []
    for entry in filter(None, (e.strip() for e in text.split(","))):
        name, _, count = entry.partition(":")
        if not TOPIC_NAME.match(name) or not (count.isascii() and count.isdigit()) or int(count) == 0:
            raise ValueError(f"topic {entry!r} is not name:partitions")
        topics.append(WantedTopic(name, int(count)))
    if len({t.name for t in topics}) < len(topics):
        raise ValueError(f"a topic comes twice in {text!r}")
    return tuple(topics)
