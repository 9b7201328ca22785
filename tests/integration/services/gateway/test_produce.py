"""Produce against a real broker; records are read back without the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.gateway_thread import WAIT_SECONDS, StartGateway, refusal

pytestmark = pytest.mark.kafka


def read_all(bootstrap: str, topic: str, partition: int, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 2})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found = consumer.consume(count, WAIT_SECONDS)
        assert [m.error() for m in found] == [None] * count
        return list(found)
    finally:
        consumer.close()


def test_without_a_key_any_partition(
    kafka: str, grpc_stub: rpc.KafkaPixyStub, kafka_topic: Callable[[int], str]
) -> None:
    topic = kafka_topic(4)
    request = pb.ProdRq(topic=topic, key_value=b"dropped", key_undefined=True, message=b"v")
    placed = [grpc_stub.Produce(request).partition for _ in range(40)]
    assert len(set(placed)) > 1
    assert read_all(kafka, topic, placed[0], 1)[0].key() is None


def test_sync_record_is_stored_unchanged(
    kafka: str, grpc_stub: rpc.KafkaPixyStub, kafka_topic: Callable[[int], str]
) -> None:
    topic = kafka_topic(1)
    headers = [("a", b"1"), ("b", b"\xff\x00"), ("a", b"2"), ("é", b"")]
    request = pb.ProdRq(
        topic=topic, key_value=b"k", message=b"v", headers=[pb.RecordHeader(key=k, value=v) for k, v in headers]
    )
    answers = [grpc_stub.Produce(request), grpc_stub.Produce(pb.ProdRq(cluster="default", topic=topic))]
    assert [(a.partition, a.offset) for a in answers] == [(0, 0), (0, 1)]
    full, empty = read_all(kafka, topic, 0, 2)
    assert (full.key(), full.value(), full.headers()) == (b"k", b"v", headers)
    assert (empty.key(), empty.value(), empty.headers()) == (None, b"", None)


def test_async_records_arrive_in_order(
    kafka: str, grpc_stub: rpc.KafkaPixyStub, kafka_topic: Callable[[int], str]
) -> None:
    topic = kafka_topic(1)
    values = [b"%d" % n for n in range(50)]
    for value in values:
        answer = grpc_stub.Produce(pb.ProdRq(topic=topic, key_value=b"k", message=value, async_mode=True))
        assert (answer.partition, answer.offset) == (-1, -1)
    assert [m.value() for m in read_all(kafka, topic, 0, 50)] == values


BAD = [
    (pb.ProdRq(cluster="other", topic="t"), "cluster 'other'"),
    (pb.ProdRq(topic=""), "topic ''"),
    (pb.ProdRq(topic="a/b"), "topic 'a/b'"),
    (pb.ProdRq(topic=".."), "topic '..'"),
    (pb.ProdRq(topic="x" * 250), "topic 'xxx"),
    (pb.ProdRq(topic="no-such-topic"), "topic 'no-such-topic' does not exist"),
]


@pytest.mark.parametrize("async_mode", [False, True])
@pytest.mark.parametrize(("request_", "text"), BAD)
def test_bad_request_is_refused_by_name(
    grpc_stub: rpc.KafkaPixyStub, request_: pb.ProdRq, text: str, async_mode: bool
) -> None:
    request_.async_mode = async_mode
    code, details = refusal(lambda: grpc_stub.Produce(request_))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text in details


@pytest.mark.parametrize("async_mode", [False, True])
def test_message_over_our_limit_is_refused(
    start_gateway: StartGateway, kafka_topic: Callable[[int], str], async_mode: bool
) -> None:
    gateway = start_gateway(max_message_bytes=50_000, produce_max_bytes=10_000)
    request = pb.ProdRq(topic=kafka_topic(1), message=bytes(11_000), async_mode=async_mode)
    code, details = refusal(lambda: gateway.stub.Produce(request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "11000 bytes" in details
    request.message = bytes(60_000)  # gRPC's own limit
    assert refusal(lambda: gateway.stub.Produce(request))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_message_over_the_topics_limit_is_refused(
    start_gateway: StartGateway, kafka: str, kafka_topic: Callable[[int], str]
) -> None:
    topic = kafka_topic(1)
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS)
    gateway = start_gateway(produce_compression="none")
    code, details = refusal(lambda: gateway.stub.Produce(pb.ProdRq(topic=topic, message=bytes(5_000))))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "5000 bytes" in details


def test_configured_topics_are_created_and_others_do_not_change(
    start_gateway: StartGateway, kafka: str, kafka_topic: Callable[[int], str]
) -> None:
    existing = kafka_topic(2)
    start_gateway(topics=f"{existing}-new:3, {existing}:5")
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=WAIT_SECONDS).topics
    assert {name: len(topics[name].partitions) for name in (existing, f"{existing}-new")} == {
        existing: 2,
        f"{existing}-new": 3,
    }
