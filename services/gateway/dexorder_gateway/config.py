"""Settings of the gateway: ``DEXORDER_GATEWAY_<NAME>``, or Kafka-Pixy's own file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from dexorder_common.config import split_address
from dexorder_common.model.datasets import DATASETS
from dexorder_common.rpc.settings import ServiceSettings, Transport
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig, ProduceConfig, parse_topics
from dexorder_gateway.kafkapixy.yaml_config import PixyConfig
from dexorder_gateway.kafkapixy.yaml_settings import FLAGS, pixy_clusters, read_pixy_file, with_pixy_file
from dexorder_gateway.pixy_flags import PixyFlags

_MIN_RECORD_BYTES = 16 * 1024 * 1024
"""Every record up to this size can be consumed, even if the size limit for producing is smaller."""


class GatewaySettings(ServiceSettings):
    """Settings of the gateway; ``pixy_flags`` may be given as well, which the environment can't set."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_GATEWAY_", extra="ignore", populate_by_name=True
    )

    listen: str = "127.0.0.1:50053"
    """host:port of the gRPC server; port 0 takes a free one."""
    transport: Transport = "auto"
    """Transport of the gRPC server; auto takes native where the package dexorder_http2 is installed, else grpcio."""
    unix: Path | None = None
    """Unix socket to serve as well; empty means none."""
    http_listen: str = ""
    """host:port of Kafka-Pixy's HTTP API; empty serves none."""
    http_hosts: str = ""
    """Names of the HTTP API in its clients' requests, with commas, besides IP addresses and names without a dot."""
    http_unix: Path | None = None
    """Unix socket of the HTTP API; empty means none."""
    pixy_config: Path | None = Field(default=None, validation_alias="DEXORDER_PIXY_CONFIG")
    """Kafka-Pixy's YAML file, for the settings that it has (``docs/coming-from-kafka-pixy.md``); empty means none."""
    metrics_listen: str = "127.0.0.1:9466"
    """host:port of the Prometheus endpoint; empty serves none."""
    kafka: str = "127.0.0.1:9092"
    """bootstrap.servers of the Kafka cluster; empty serves user events only."""
    kafka_options: dict[str, str] = Field(default_factory=dict, repr=False)
    """More librdkafka properties as a JSON object, for example SASL and TLS. Default none."""
    cluster: str = Field(default="default", min_length=1)
    """Name of that cluster in requests; an empty name in a request means it as well."""
    peers: str = ""
    """host:port of the other gateways, with commas, to which acks and offsets of their partitions are forwarded.

    A name stands for every address that it resolves to; this gateway may be among them.
    """
    topics: str = ",".join(f"{each.topic}:{each.partitions}" for each in DATASETS)
    """Topics to create at start if they do not exist, as ``name:partitions``, separated by commas."""
    topic_replication: int = Field(default=-1, ge=-1)
    """Replication factor of a topic created at start; -1 takes the broker's default."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """Interval, in seconds, of the checks that Kafka answers."""

    keys_topic: str = Field(default=ClusterConfig.keys_topic, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    """Topic of each cluster for callers' idempotency keys, made when it is first needed; no client may write to it."""
    produce_timeout_seconds: float = Field(default=ProduceConfig.timeout_seconds, gt=0)
    """Longest time, in seconds, that a caller waits for the broker's acknowledgement; an async record stays queued."""
    produce_linger_ms: float = Field(default=ProduceConfig.linger_ms, ge=0)
    """Time, in milliseconds, that a record waits to share a batch with others; above 5, only async records wait."""
    produce_queue_messages: int = Field(default=ProduceConfig.queue_messages, ge=1)
    """Maximum number of records waiting for the broker; one more is RESOURCE_EXHAUSTED."""
    produce_queue_kbytes: int = Field(default=ProduceConfig.queue_kbytes, ge=1)
    """Maximum size, in KiB, of the records waiting for the broker; more is RESOURCE_EXHAUSTED."""
    produce_max_bytes: int = Field(default=ProduceConfig.max_bytes, ge=1_000)
    """Largest record, key and value, in bytes; keep it within the topics' own limit (1,048,588 by default)."""
    produce_compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = ProduceConfig.compression
    """Compression of batches."""

    long_polling_timeout_ms: int = Field(default=ConsumeConfig.long_polling_timeout_ms, ge=0)
    """Time, in milliseconds, that a ConsumeNAck waits for a record before it is NOT_FOUND."""
    ack_timeout_seconds: float = Field(default=ConsumeConfig.ack_timeout_seconds, gt=0)
    """Time, in seconds, after which a record without an ack is delivered again."""
    max_retries: int = Field(default=ConsumeConfig.max_retries, ge=-1)
    """Deliveries of a record after the first; then the gateway acks, logs and drops it. -1 means no limit."""
    max_pending_messages: int = Field(default=ConsumeConfig.max_pending_messages, ge=1)
    """Maximum number of unacked records of a partition at unary callers; at the limit they get no new ones of it."""
    subscription_timeout_seconds: float = Field(default=ConsumeConfig.subscription_timeout_seconds, gt=0)
    """Time, in seconds, without a request after which the gateway leaves a group."""
    channel_buffer_size: int = Field(default=ConsumeConfig.channel_buffer_size, ge=1)
    """Maximum number of ConsumeNAck calls, and of streams, of a group and topic; one more is RESOURCE_EXHAUSTED."""
    offsets_commit_interval_ms: int = Field(default=ConsumeConfig.offsets_commit_interval_ms, ge=10)
    """Interval, in milliseconds, of commits to Kafka."""
    new_group_start: Literal["latest", "earliest"] = ConsumeConfig.new_group_start
    """Start of a group without commits; ``latest`` as in Kafka-Pixy."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = ConsumeConfig.isolation_level
    """Whether records of open and aborted transactions are delivered; Kafka-Pixy delivers them."""
    session_timeout_ms: int = Field(default=ConsumeConfig.session_timeout_ms, ge=1_000)
    """Time, in milliseconds, after which the group assigns a killed gateway's partitions to other members."""
    max_subscriptions: int = Field(default=ConsumeConfig.max_subscriptions, ge=1)
    """Maximum number of pairs of group and topic that are read at the same time."""

    _pixy: PixyConfig | None = PrivateAttr(default=None)

    @field_validator("unix", "http_unix", "pixy_config", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @model_validator(mode="wrap")
    @classmethod
    def _with_the_file(cls, given: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        flags: PixyFlags = given.get("pixy_flags") or PixyFlags()
        path = flags.config or given.get("pixy_config") or given.get("DEXORDER_PIXY_CONFIG")
        if not path and not flags.values:
            return build(given)
        file = read_pixy_file(Path(path) if path else None, flags)
        given = {
            **{name: value for name, value in given.items() if name != "pixy_config"},
            "DEXORDER_PIXY_CONFIG": path,
        }
        made = build(with_pixy_file(given, file, path or FLAGS))
        made._pixy = file
        return made

    @field_validator("peers")
    @classmethod
    def _peers_parse(cls, peers: str) -> str:
        for each in filter(None, map(str.strip, peers.split(","))):
            split_address(each)
        return peers

    @model_validator(mode="after")
    def _topics_parse(self) -> Self:
        parse_topics(self.topics)
        return self

    def call_addresses(self) -> list[str]:
        """Return the addresses of both APIs."""
        return [self.listen, *([self.http_listen] if self.http_listen else [])]

    def source_of(self, address: str) -> str:
        """Return the place of an address in Kafka-Pixy's file; empty if it is not from there."""
        place = {self.http_listen: "tcp_addr", self.listen: "grpc_addr"}.get(address)
        return f" ({place} in {self.pixy_config})" if self.pixy_config and place else ""

    @property
    def pixy(self) -> PixyConfig | None:
        """Contents of Kafka-Pixy's file; None without one."""
        return self._pixy

    def clusters(self) -> tuple[ClusterConfig, ...]:
        """Return the clusters, the default one first; none without Kafka."""
        if not (self.kafka or self._pixy):
            return ()
        max_record_bytes = max(self.max_message_bytes, _MIN_RECORD_BYTES)
        own = ClusterConfig(
            name=self.cluster,
            kafka=self.kafka,
            options=self.kafka_options,
            topics=parse_topics(self.topics),
            topic_replication=self.topic_replication,
            poll_seconds=self.poll_seconds,
            keys_topic=self.keys_topic,
            produce=ProduceConfig(**self._given(ProduceConfig, prefix="produce_")),
            consume=ConsumeConfig(**self._given(ConsumeConfig), max_record_bytes=max_record_bytes),
        )
        return (own,) if self._pixy is None else pixy_clusters(self._pixy, own)

    def _given(self, config: type[ProduceConfig | ConsumeConfig], prefix: str = "") -> dict[str, Any]:
        """Return the fields of a part of the cluster's configuration that are settings here."""
        names = {each.name: prefix + each.name for each in fields(config)}
        return {name: getattr(self, own) for name, own in names.items() if own in type(self).model_fields}
