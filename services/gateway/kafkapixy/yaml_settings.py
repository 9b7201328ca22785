"""Kafka-Pixy's file beside the environment: read it, and see that no setting is in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.common.config import BadSettings, ServiceSettings
from services.gateway.kafkapixy.yaml_clusters import largest_message_bytes
from services.gateway.kafkapixy.yaml_config import BadPixyConfig, PixyConfig, parse_pixy_config

PIXY_LISTEN = "127.0.0.1:19091"
"""Kafka-Pixy's own port, but on loopback, where its file names no address."""
_HEADERS_BYTES = 65_536
_OF_EACH_CLUSTER = (
    "kafka",
    "cluster",
    "produce_timeout_seconds",
    "produce_linger_ms",
    "produce_queue_messages",
    "produce_max_bytes",
    "produce_compression",
    "long_polling_timeout_ms",
    "ack_timeout_seconds",
    "max_retries",
    "max_pending_messages",
    "subscription_timeout_seconds",
    "channel_buffer_size",
    "offsets_commit_interval_ms",
)
"""Settings that every cluster of the file has for itself, said or not."""


def read_pixy_file(path: Path) -> PixyConfig:
    """Read the file, and see that those it names can be read.

    Raises:
        BadSettings: Names the file and the places in it.
    """
    try:
        file = parse_pixy_config(path.read_text())
    except OSError as error:
        raise BadSettings(f"DEXORDER_PIXY_CONFIG: {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSettings(f"DEXORDER_PIXY_CONFIG: {path} is no text") from None
    except BadPixyConfig as error:
        raise BadSettings("\n  ".join(f"{path}: {problem}" for problem in error.problems)) from None
    for place, named in file.files:
        try:
            Path(named).read_bytes()
        except OSError as error:
            raise BadSettings(f"{path}: {place}: {named} can't be read: {error.strerror}") from None
    return file


def with_pixy_file(given: dict[str, Any], file: PixyConfig, path: object) -> dict[str, Any]:
    """The gateway's settings as they were given, and what the file says of the same things.

    Raises:
        BadSettings: Both say something of the same; names both places.
    """
    said = {name: (place, value) for name, place, value in _listening(file) if value}
    twice = [(name, "proxies") for name in _OF_EACH_CLUSTER if name in given]
    twice += [(name, place) for name, (place, _) in said.items() if given.get(name) not in (None, "")]
    if twice:
        lines = [f"DEXORDER_GATEWAY_{name.upper()} is set beside {place} in {path}" for name, place in twice]
        raise BadSettings("\n  ".join(f"{line}: say it in one place" for line in lines))
    least_bytes = int(ServiceSettings.model_fields["max_message_bytes"].default)
    defaults = {
        "listen": PIXY_LISTEN,
        "topics": "",  # the suite's own are of no use to somebody who brings clusters along
        "max_message_bytes": max(least_bytes, largest_message_bytes(file) + _HEADERS_BYTES),
    }
    return {**defaults, **given, **{name: value for name, (_, value) in said.items()}}


def _listening(file: PixyConfig) -> list[tuple[str, str, str | None]]:
    """Setting, place in the file, and what is there."""
    return [
        ("listen", "grpc_addr", file.grpc_addr),
        ("unix", "unix_addr", file.unix_addr),
        ("tls_certificate", "tls.certificate_path", file.tls.certificate_path),
        ("tls_key", "tls.key_path", file.tls.key_path),
        ("tls_client_ca", "tls.client_ca_path", file.tls.client_ca_path),
    ]
