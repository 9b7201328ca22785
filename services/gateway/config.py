"""What can be set: ``DEXORDER_GATEWAY_<NAME>``, or in Kafka-Pixy's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from services.common.config import ServiceSettings
from services.gateway.kafkapixy.cluster_config import TOPIC_NAME as TOPIC_NAME
from services.gateway.kafkapixy.cluster_config import ClusterConfig as ClusterConfig
from services.gateway.kafkapixy.cluster_config import ConsumeConfig as ConsumeConfig
from services.gateway.kafkapixy.cluster_config import ProduceConfig as ProduceConfig
from services.gateway.kafkapixy.cluster_config import WantedTopic as WantedTopic
from services.gateway.kafkapixy.cluster_config import parse_topics as parse_topics
from services.gateway.kafkapixy.yaml_clusters import pixy_clusters
from services.gateway.kafkapixy.yaml_config import PixyConfig
from services.gateway.kafkapixy.yaml_settings import read_pixy_file, with_pixy_file


class GatewaySettings(ServiceSettings):
    """Settings of the gateway."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_GATEWAY_", extra="ignore", populate_by_name=True
    )

    listen: str = "127.0.0.1:50053"
    """host:port of the gRPC server; port 0 takes a free one."""
    unix: Path | None = None
    """Unix socket to serve as well; empty means none."""
    pixy_config: Path | None = Field(default=None, validation_alias="DEXORDER_PIXY_CONFIG")
    """Kafka-Pixy's YAML file, for the settings it speaks of (``docs/coming-from-kafka-pixy.md``); empty means none."""
    metrics_listen: str = "127.0.0.1:9466"
    """host:port of the Prometheus endpoint; empty serves none."""
    kafka: str = "127.0.0.1:9092"
    """bootstrap.servers of the Kafka cluster; empty serves user events alone."""
    kafka_options: dict[str, str] = Field(default_factory=dict, repr=False)
    """Further librdkafka properties as a JSON object, for example SASL and TLS. Default none."""
    cluster: str = Field(default="default", min_length=1)
    """Name of that cluster in requests; an empty name always means it."""
    topics: str = "dexorder.ohlc:4,dexorder.ticks:4,dexorder.tickers:1"
    """Topics created at start, ``name:partitions`` with commas between; those that exist are left alone."""
    topic_replication: int = Field(default=-1, ge=-1)
    """Copies of each partition of a topic created at start; -1 takes the broker's default."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often Kafka is asked whether it is there, in seconds."""

    produce_timeout_seconds: float = Field(default=30.0, gt=0)
    """How long, in seconds, a caller waits for the broker's acknowledgement; an async record stays queued."""
    produce_linger_ms: float = Field(default=20.0, ge=0)
    """How long, in milliseconds, an async record waits for others to share its batch; above 5, only async ones do."""
    produce_queue_messages: int = Field(default=50_000, ge=1)
    """Most records waiting for the broker; one more is RESOURCE_EXHAUSTED."""
    produce_queue_kbytes: int = Field(default=65_536, ge=1)
    """Most KiB of records waiting for the broker; more is RESOURCE_EXHAUSTED."""
    produce_max_bytes: int = Field(default=1_000_000, ge=1_000)
    """Largest record, key and value, in bytes; keep it within the topics' own limit (1,048,588 by default)."""
    produce_compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """How batches are compressed."""
    produce_stream_records: int = Field(default=10_000, ge=1)
    """Most records of a Produce stream that wait for their answers; then no more is read of it."""
    produce_stream_kbytes: int = Field(default=16_384, ge=1)
    """Most KiB of records of a Produce stream that wait for their answers; then no more is read of it."""

    long_polling_timeout_ms: int = Field(default=3_000, ge=0)
    """How long, in milliseconds, a ConsumeNAck waits for a record before it is NOT_FOUND."""
    ack_timeout_seconds: float = Field(default=300.0, gt=0)
    """After this many seconds without an ack a record is offered again."""
    max_retries: int = Field(default=-1, ge=-1)
    """Offers of a record after the first; then it is acked by the gateway, logged and dropped. -1 is endless."""
    max_pending_messages: int = Field(default=300, ge=1)
    """Most records of a partition that unary callers have and did not ack; then it offers them no new ones."""
    stream_max_pending_messages: int = Field(default=10_000, ge=1)
    """Most records that a Consume stream has and did not ack, whatever its credit; then it gets no new ones."""
    stream_max_pending_kbytes: int = Field(default=65_536, ge=1)
    """Most KiB of records that a Consume stream has and did not ack; then it gets no new ones."""
    subscription_timeout_seconds: float = Field(default=15.0, gt=0)
    """After this many seconds without a ConsumeNAck the gateway leaves the group."""
    channel_buffer_size: int = Field(default=64, ge=1)
    """Most ConsumeNAck calls waiting for one group and topic; one more is RESOURCE_EXHAUSTED."""
    offsets_commit_interval_ms: int = Field(default=500, ge=10)
    """How often, in milliseconds, acks are committed to Kafka."""
    new_group_start: Literal["latest", "earliest"] = "latest"
    """Where a group without commits starts; ``latest`` as Kafka-Pixy."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Whether records of open and aborted transactions are delivered; they are by Kafka-Pixy."""
    session_timeout_ms: int = Field(default=15_000, ge=1_000)
    """After this many milliseconds of silence the group gives a killed gateway's partitions to others."""
    max_subscriptions: int = Field(default=256, ge=1)
    """Most pairs of group and topic that are read at the same time."""

    _pixy: PixyConfig | None = PrivateAttr(default=None)

    @field_validator("unix", "pixy_config", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @model_validator(mode="wrap")
    @classmethod
    def _as_the_file_says(cls, given: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        path = given.get("pixy_config") or given.get("DEXORDER_PIXY_CONFIG")
        if not path:
            return build(given)
        file = read_pixy_file(Path(path))
        made = build(with_pixy_file(given, file, path))
        made._pixy = file
        return made

    @model_validator(mode="after")
    def _topics_parse(self) -> Self:
        parse_topics(self.topics)
        return self

    def source_of(self, address: str) -> str:
        """As every service; Kafka-Pixy's file is named with the place in it."""
        return f" (grpc_addr in {self.pixy_config})" if self.pixy_config and address == self.listen else ""

    @property
    def pixy(self) -> PixyConfig | None:
        """What Kafka-Pixy's file says, if there is one."""
        return self._pixy

    def clusters(self) -> tuple[ClusterConfig, ...]:
        """The clusters; the first is the default one. None where there is no Kafka."""
        if not (self.kafka or self._pixy):
            return ()
        own = ClusterConfig(
            name=self.cluster,
            kafka=self.kafka,
            options=self.kafka_options,
            topics=parse_topics(self.topics),
            topic_replication=self.topic_replication,
            poll_seconds=self.poll_seconds,
            produce=self._produce(),
            consume=self._consume(),
        )
        return (own,) if self._pixy is None else pixy_clusters(self._pixy, own)

    def _produce(self) -> ProduceConfig:
        return ProduceConfig(
            timeout_seconds=self.produce_timeout_seconds,
            linger_ms=self.produce_linger_ms,
            queue_messages=self.produce_queue_messages,
            queue_kbytes=self.produce_queue_kbytes,
            max_bytes=self.produce_max_bytes,
            compression=self.produce_compression,
            stream_records=self.produce_stream_records,
            stream_kbytes=self.produce_stream_kbytes,
        )

    def _consume(self) -> ConsumeConfig:
        return ConsumeConfig(
            long_polling_timeout_ms=self.long_polling_timeout_ms,
            ack_timeout_seconds=self.ack_timeout_seconds,
            max_retries=self.max_retries,
            max_pending_messages=self.max_pending_messages,
            stream_max_pending_messages=self.stream_max_pending_messages,
            stream_max_pending_kbytes=self.stream_max_pending_kbytes,
            subscription_timeout_seconds=self.subscription_timeout_seconds,
            channel_buffer_size=self.channel_buffer_size,
            offsets_commit_interval_ms=self.offsets_commit_interval_ms,
            new_group_start=self.new_group_start,
            isolation_level=self.isolation_level,
            session_timeout_ms=self.session_timeout_ms,
            max_subscriptions=self.max_subscriptions,
            max_record_bytes=max(self.max_message_bytes, 16 * 1024 * 1024),
        )
