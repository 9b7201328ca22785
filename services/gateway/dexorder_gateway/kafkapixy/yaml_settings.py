"""Conversion of Kafka-Pixy's file into the gateway's settings and the configuration of its clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dexorder_common.config import BadSettings
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig, ProduceConfig
from dexorder_gateway.kafkapixy.yaml_config import (
    BadPixyConfig,
    Kafka,
    Net,
    PixyConfig,
    Producer,
    Proxy,
    parse_pixy_config,
)
from dexorder_gateway.pixy_flags import PixyFlags

PIXY_LISTEN, PIXY_HTTP_LISTEN = "127.0.0.1:19091", "127.0.0.1:19092"
"""Kafka-Pixy's own ports, but on loopback, for a file without addresses."""
FLAGS = "Kafka-Pixy's flags"
_HEADERS_BYTES = 65_536
_CLUSTER_SETTINGS = (
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
"""Settings that each cluster of the file has, given or by default."""
_QUEUES = 12
"""Kafka-Pixy has a queue of ``channel_buffer_size`` in many places; together they hold a burst of this many queues."""
_RETRY_MAX, _RETRY_BACKOFF_NS = 6, 10 * 10**9
_MAX_PRODUCE_TIMEOUT_SECONDS = 86_400.0
_CLIENT_SOCKET_TIMEOUT_MS = 10_000
_MIN_DIAL_TIMEOUT_MS = 1_000
_SESSION_TIMEOUT_MS = (6_000, 30 * 60_000)
"""Range that brokers allow a group by default."""
_ACKS: dict[str, Literal["all", "leader", "none"]] = {
    "wait_for_all": "all",
    "wait_for_local": "leader",
    "no_response": "none",
}


def read_pixy_file(path: Path | None, flags: PixyFlags) -> PixyConfig:
    """Read the file and the flags, and check that the files they name can be read.

    Args:
        path: None if the flags are all.

    Raises:
        BadSettings: Names the invalid places.
    """
    try:
        file = parse_pixy_config(None if path is None else path.read_text(), flags)
    except OSError as error:
        raise BadSettings(f"DEXORDER_PIXY_CONFIG: {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSettings(f"DEXORDER_PIXY_CONFIG: {path} is not UTF-8 text") from None
    except BadPixyConfig as error:
        raise BadSettings("\n  ".join(f"{path or FLAGS}: {problem}" for problem in error.problems)) from None
    for place, named in file.files:
        try:
            Path(named).read_bytes()
        except OSError as error:
            raise BadSettings(f"{path or FLAGS}: {place}: {named} can't be read: {error.strerror}") from None
    return file


def with_pixy_file(given: dict[str, Any], file: PixyConfig, path: object) -> dict[str, Any]:
    """Return the given settings and the file's; BadSettings names both places of a setting that is in both."""
    server_settings = [
        ("listen", "grpc_addr", file.grpc_addr),
        ("http_listen", "tcp_addr", file.tcp_addr),
        ("http_unix", "unix_addr", file.unix_addr),
        ("tls_certificate", "tls.certificate_path", file.tls.certificate_path),
        ("tls_key", "tls.key_path", file.tls.key_path),
        ("tls_client_ca", "tls.client_ca_path", file.tls.client_ca_path),
    ]
    in_file = {name: (place, value) for name, place, value in server_settings if value}
    duplicates = [(name, "proxies") for name in _CLUSTER_SETTINGS if name in given]
    duplicates += [(name, place) for name, (place, _) in in_file.items() if given.get(name) not in (None, "")]
    if duplicates:
        lines = [f"DEXORDER_GATEWAY_{name.upper()} is set, and so is {place} in {path}" for name, place in duplicates]
        raise BadSettings("\n  ".join(f"{line}; set only one of them" for line in lines))
    default_bytes = int(ServiceSettings.model_fields["max_message_bytes"].default)
    defaults = {
        "listen": PIXY_LISTEN,
        "http_listen": PIXY_HTTP_LISTEN,
        "topics": "",  # the suite's own topics are of no use in these clusters
        "max_message_bytes": max(default_bytes, largest_message_bytes(file) + _HEADERS_BYTES),
    }
    return {**defaults, **given, **{name: value for name, (_, value) in in_file.items()}}


def pixy_clusters(file: PixyConfig, base: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """Return the file's clusters, the default one first.

    Args:
        base: Settings that the file does not have: its options override each cluster's, its topics go into the default
            one.
    """
    default = file.default_cluster or next(iter(file.proxies))
    made = [_cluster(name, proxy, base) for name, proxy in file.proxies.items()]
    made.sort(key=lambda cluster: cluster.name != default)
    return (replace(made[0], topics=base.topics), *made[1:])


def largest_message_bytes(file: PixyConfig) -> int:
    """Return the size of the largest record that any of the clusters takes."""
    return max(proxy.producer.max_message_bytes for proxy in file.proxies.values())


def _cluster(name: str, proxy: Proxy, base: ClusterConfig) -> ClusterConfig:
    client_id = {"client.id": proxy.client_id} if proxy.client_id else {}
    return replace(
        base,
        name=name,
        kafka=",".join(proxy.kafka.seed_peers),
        options={**client_id, **_security(proxy.kafka, proxy.net), **_timeouts(proxy), **base.options},
        topics=(),
        produce=_produce(proxy.producer, base.produce),
        consume=_consume(proxy, base.consume),
    )


def _produce(producer: Producer, base: ProduceConfig) -> ProduceConfig:
    retry_max = producer.retry_max or _RETRY_MAX
    backoff_ns = producer.retry_backoff or _RETRY_BACKOFF_NS
    flush_ns = producer.flush_frequency
    # Kafka-Pixy tries for the product of both, given or by default; number and pause are used only if given.
    retries_given = producer.retry_max is not None or producer.retry_backoff is not None
    timeout_seconds = (producer.timeout + retry_max * backoff_ns + (flush_ns or 0)) / 1e9
    return replace(
        base,
        timeout_seconds=min(timeout_seconds, _MAX_PRODUCE_TIMEOUT_SECONDS),
        linger_ms=base.linger_ms if flush_ns is None else flush_ns / 1e6,
        queue_messages=min(_QUEUES * producer.channel_buffer_size, 10_000_000),
        max_bytes=producer.max_message_bytes,
        compression=producer.compression,
        batch_bytes=producer.flush_bytes or None,
        acks=_ACKS[producer.required_acks],
        retries=retry_max if retries_given else None,
        retry_backoff_ms=_ms(backoff_ns) if retries_given else None,
        replication_timeout_ms=_ms(producer.timeout),
        partitioner=producer.partitioner,
        shutdown_seconds=producer.shutdown_timeout / 1e9,
    )


def _consume(proxy: Proxy, base: ConsumeConfig) -> ConsumeConfig:
    consumer = proxy.consumer
    session_ns = proxy.zoo_keeper.session_timeout
    min_ms, max_ms = _SESSION_TIMEOUT_MS
    return replace(
        base,
        disabled=consumer.disabled,
        ack_timeout_seconds=consumer.ack_timeout / 1e9,
        channel_buffer_size=consumer.channel_buffer_size,
        fetch_bytes=consumer.fetch_max_bytes,
        fetch_wait_ms=_ms(consumer.fetch_max_wait),
        long_polling_timeout_ms=_ms(consumer.long_polling_timeout),
        max_pending_messages=consumer.max_pending_messages,
        max_retries=consumer.max_retries,
        offsets_commit_interval_ms=_ms(consumer.offsets_commit_interval),
        retry_backoff_ms=_ms(consumer.retry_backoff),
        subscription_timeout_seconds=consumer.subscription_timeout / 1e9,
        session_timeout_ms=base.session_timeout_ms if session_ns is None else min(max(_ms(session_ns), min_ms), max_ms),
    )


def _security(kafka: Kafka, net: Net) -> dict[str, str]:
    protocol = ("SASL_" if net.sasl.enable else "") + ("SSL" if kafka.tls else "PLAINTEXT")
    options = {"security.protocol": protocol}
    if kafka.tls:
        given = {
            "ssl.ca.location": kafka.ca_certificate_file,
            "ssl.certificate.location": kafka.client_certificate_file,
            "ssl.key.location": kafka.client_key_file,
        }
        options |= {name: file for name, file in given.items() if file}
        if kafka.insecure:
            options |= {"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "none"}
    if net.sasl.enable:
        options |= {
            "sasl.mechanism": net.sasl.mechanism,
            "sasl.username": net.sasl.user,
            "sasl.password": net.sasl.password.get_secret_value(),
        }
    return options


def _timeouts(proxy: Proxy) -> dict[str, str]:
    net, options = proxy.net, {}
    if net.dial_timeout is not None:
        options["socket.connection.setup.timeout.ms"] = str(max(_ms(net.dial_timeout), _MIN_DIAL_TIMEOUT_MS))
    given_ns = [timeout_ns for timeout_ns in (net.read_timeout, net.write_timeout) if timeout_ns is not None]
    answer_ms = max(map(_ms, given_ns), default=_CLIENT_SOCKET_TIMEOUT_MS)
    # A broker that waits for records is not unresponsive.
    options["socket.timeout.ms"] = str(max(answer_ms, _ms(proxy.consumer.fetch_max_wait) + 1_000))
    return options


def _ms(duration_ns: int) -> int:
    """Return milliseconds, rounded up, so that only 0 becomes 0."""
    return -(-duration_ns // 1_000_000)
