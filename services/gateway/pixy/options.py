"""librdkafka properties that every client of a cluster has."""

from __future__ import annotations

from typing import Any

from services.common.kafka import LIBRDKAFKA_LOG
from services.gateway.config import ClusterConfig


def client_options(config: ClusterConfig) -> dict[str, Any]:
    """Where the cluster is and how its clients behave while it is away. The user's options go on top."""
    return {
        "bootstrap.servers": config.kafka,
        "client.id": "dexorder-gateway",
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 1_000,
        "log.connection.close": False,
        "logger": LIBRDKAFKA_LOG,
    }
