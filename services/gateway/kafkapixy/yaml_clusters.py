"""What the settings of Kafka-Pixy's file become here. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from services.gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig, ProduceConfig
from services.gateway.kafkapixy.yaml_config import Consumer, Kafka, Net, PixyConfig, Producer, Proxy

_QUEUES = 12
"""Kafka-Pixy has a queue of ``channel_buffer_size`` at each of many places; a burst of so many fits into them."""
_RETRY_MAX, _RETRY_BACKOFF_NS = 6, 10 * 10**9
_MOST_PATIENCE_SECONDS = 86_400.0
_CLIENT_SOCKET_TIMEOUT_MS = 10_000
_LEAST_DIAL_MS = 1_000
_SESSION_MS = (6_000, 30 * 60_000)
"""What brokers let a group have if they are not told otherwise."""
_ACKS: dict[str, Literal["all", "leader", "none"]] = {
    "wait_for_all": "all",
    "wait_for_local": "leader",
    "no_response": "none",
}


def pixy_clusters(file: PixyConfig, base: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """The file's clusters, the default one first.

    Args:
        base: What the file does not speak of: its options go on top of each cluster's, its topics into the default one.
    """
    default = file.default_cluster or next(iter(file.proxies))
    made = [_cluster(name, proxy, base) for name, proxy in file.proxies.items()]
    made.sort(key=lambda cluster: cluster.name != default)
    return (replace(made[0], topics=base.topics), *made[1:])


def largest_message_bytes(file: PixyConfig) -> int:
    """The largest record any of the clusters takes."""
    return max(proxy.producer.max_message_bytes for proxy in file.proxies.values())


def _cluster(name: str, proxy: Proxy, base: ClusterConfig) -> ClusterConfig:
    return replace(
        base,
        name=name,
        kafka=",".join(proxy.kafka.seed_peers),
        options={**_client_options(proxy), **base.options},
        topics=(),
        produce=_produce(proxy.producer, base.produce),
        consume=_consume(proxy, base.consume),
    )


def _produce(producer: Producer, base: ProduceConfig) -> ProduceConfig:
    retry_max = producer.retry_max or _RETRY_MAX
    backoff_ns = producer.retry_backoff or _RETRY_BACKOFF_NS
    flush_ns = producer.flush_frequency
    # Said or not, their product is how long Kafka-Pixy tries; how often, and with which pauses, only if it is said.
    says_retries = producer.retry_max is not None or producer.retry_backoff is not None
    patience_seconds = (producer.timeout + retry_max * backoff_ns + (flush_ns or 0)) / 1e9
    return replace(
        base,
        timeout_seconds=min(patience_seconds, _MOST_PATIENCE_SECONDS),
        linger_ms=base.linger_ms if flush_ns is None else flush_ns / 1e6,
        queue_messages=min(_QUEUES * producer.channel_buffer_size, 10_000_000),
        max_bytes=producer.max_message_bytes,
        compression=producer.compression,
        batch_bytes=producer.flush_bytes or None,
        acks=_ACKS[producer.required_acks],
        retries=retry_max if says_retries else None,
        retry_backoff_ms=_ms(backoff_ns) if says_retries else None,
        replication_timeout_ms=_ms(producer.timeout),
        partitioner=producer.partitioner,
        shutdown_seconds=producer.shutdown_timeout / 1e9,
    )


def _consume(proxy: Proxy, base: ConsumeConfig) -> ConsumeConfig:
    consumer: Consumer = proxy.consumer
    session_ns = proxy.zoo_keeper.session_timeout
    least, most = _SESSION_MS
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
        session_timeout_ms=base.session_timeout_ms if session_ns is None else min(max(_ms(session_ns), least), most),
    )


def _client_options(proxy: Proxy) -> dict[str, str]:
    options = {"client.id": proxy.client_id} if proxy.client_id else {}
    return {**options, **_security(proxy.kafka, proxy.net), **_timeouts(proxy)}


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
        options["socket.connection.setup.timeout.ms"] = str(max(_ms(net.dial_timeout), _LEAST_DIAL_MS))
    said_ns = [timeout_ns for timeout_ns in (net.read_timeout, net.write_timeout) if timeout_ns is not None]
    answer_ms = max(map(_ms, said_ns), default=_CLIENT_SOCKET_TIMEOUT_MS)
    # A broker that waits for records is not silent.
    options["socket.timeout.ms"] = str(max(answer_ms, _ms(proxy.consumer.fetch_max_wait) + 1_000))
    return options


def _ms(duration_ns: int) -> int:
    """Rounded up, so that nothing but 0 becomes 0."""
    return -(-duration_ns // 1_000_000)
