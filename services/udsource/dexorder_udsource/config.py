"""Settings, read from ``DEXORDER_UDSOURCE_<NAME>``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from dexorder_common.model.datasets import CANDLES, DATASETS
from dexorder_common.rpc.settings import ServiceSettings, Transport

NUMAFLOW_FOLDER = Path("/var/run/numaflow")
"""Volume that a Numaflow pod mounts into its source container."""


def _numaflow_socket(validated: dict[str, Any]) -> Path | None:
    folder: Path | None = validated.get("numaflow_folder")
    return folder / "source.sock" if folder is not None and folder.is_dir() else None


class UdsourceSettings(ServiceSettings):
    """Settings of udsource."""

    model_config = SettingsConfigDict(env_prefix="DEXORDER_UDSOURCE_")

    listen: str = "127.0.0.1:50052"
    """host:port of the gRPC server; port 0 takes a free one."""
    transport: Transport = "auto"
    """Transport of the gRPC server; auto takes native where the package dexorder_http2 is installed, else grpcio."""
    metrics_listen: str = "127.0.0.1:9467"
    """host:port of the Prometheus endpoint; empty serves none."""
    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Largest gRPC message, both ways, in bytes; the default is what Numaflow's own servers and clients use."""
    numaflow_folder: Path | None = NUMAFLOW_FOLDER
    """If this folder exists, ``source.sock`` in it is served by default. Empty turns this off."""
    socket: Path | None = Field(default_factory=_numaflow_socket)
    """Unix socket to serve too; by default Numaflow's if its folder exists, otherwise none. Empty means none."""
    server_info: Path | None = None
    """Numaflow file, written once the server listens; ``sourcer-server-info`` beside the socket by default."""
    kafka: str = "127.0.0.1:9092"
    """bootstrap.servers of the Kafka cluster."""
    kafka_options: dict[str, str] = Field(default_factory=dict, repr=False)
    """More librdkafka properties as a JSON object, for example SASL and TLS. Default none."""
    topic: str = Field(default=CANDLES.topic, min_length=1)
    """Topic of plain reads, and of replays that name none."""
    replay_topics: str = ",".join(each.topic for each in DATASETS if each is not CANDLES)
    """More topics that replays may read (metadata ``x-topic``), separated by commas."""
    group: str = Field(default="dexorder-spark", min_length=1)
    """Consumer group of plain reads; replays commit to ``<group>-replay``."""
    instance: str = Field(default_factory=lambda: os.environ.get("NUMAFLOW_POD", ""))
    """Name of this process in the group, kept over restarts: its partitions wait for it. By default the pod's name."""
    replay_consumers: int = Field(default=16, ge=1, le=256)
    """Largest number of ranges that are replayed at the same time; others wait."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """Time between two checks that Kafka is available, in seconds."""

    @field_validator("numaflow_folder", "socket", "server_info", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @property
    def further_topics(self) -> tuple[str, ...]:
        """Names in ``replay_topics``."""
        return tuple(filter(None, map(str.strip, self.replay_topics.split(","))))

    @property
    def replay_group(self) -> str:
        """Group without members, to which replays commit."""
        return f"{self.group}-replay"

    @property
    def server_info_file(self) -> Path | None:
        """Path of the server-info file; None without a unix socket."""
        if self.socket is None:
            return None
        return self.server_info or self.socket.with_name("sourcer-server-info")
