"""A broker with Kafka's own defaults, which creates a topic when a client first asks for it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.fixtures import needs_missing_topics
from tests.gateway_thread import GatewayThread, StartGateway, numbers, records
from tests.rig.kafka import RunningKafka
from tests.rig.processes import until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def stock_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run such a broker and return its ``bootstrap.servers``."""
    broker = RunningKafka(tmp_path_factory.mktemp("stock"), properties=lambda *_: "auto.create.topics.enable=true\n")
    yield broker.bootstrap
    broker.stop()


@pytest.fixture(scope="module")
def stock(stock_kafka: str) -> Iterator[GatewayThread]:
    """Run a gateway in front of it."""
    gateway = GatewayThread(kafka=stock_kafka, drain_seconds=0.0, long_polling_timeout_ms=2_000).wait_ready()
    yield gateway
    gateway.stop()


def new_name() -> str:
    return f"new-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("async_mode", [False, True])
def test_first_produce_to_a_new_topic_is_ok(stock: GatewayThread, stock_kafka: str, async_mode: bool) -> None:
    topic = new_name()
    for value in numbers(3):
        stock.stub.Produce(pb.ProdRq(topic=topic, key_value=b"k", message=value, async_mode=async_mode))
    until(lambda: sorted(m.value() for m in records(stock_kafka, topic, partitions=4)) == numbers(3))


def test_first_consume_of_a_new_topic_creates_it(stock: GatewayThread) -> None:
    topic = new_name()
    waiting = stock.stub.ConsumeNAck.future(pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True))
    until(lambda: topic in stock.stub.ListTopics(pb.ListTopicRq()).topics)
    stock.stub.Produce(pb.ProdRq(topic=topic, message=b"v"))
    assert waiting.code() in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)
    if waiting.code() == grpc.StatusCode.NOT_FOUND:
        assert stock.consume(topic, auto_ack=True).message == b"v"


@needs_missing_topics
def test_callers_of_a_missing_topic_wait_for_the_whole_long_poll(start_gateway: StartGateway) -> None:
    """Otherwise a loop as in Kafka-Pixy's quick start would call thousands of times."""
    gateway = start_gateway(long_polling_timeout_ms=1_000)
    calls, end_s = 0, time.monotonic() + 2.0
    while time.monotonic() < end_s:
        call = gateway.stub.ConsumeNAck.future(pb.ConsNAckRq(topic="no-such-topic", group="g", auto_ack=True))
        assert (call.code(), call.details()) == (grpc.StatusCode.NOT_FOUND, "topic 'no-such-topic' does not exist")
        calls += 1
    assert calls <= 2
