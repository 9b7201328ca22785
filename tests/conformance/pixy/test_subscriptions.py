"""A group is joined at its first request, and left when it is idle."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import WAIT_SECONDS, Filled, MakeTopic, StartGateway, Write, numbers
from tests.rig.processes import until

pytestmark = pytest.mark.kafka


def members(kafka: str, group: str) -> int:
    """Return the number of the group's members in Kafka."""
    admin = AdminClient({"bootstrap.servers": kafka})
    return len(admin.describe_consumer_groups([group])[group].result(WAIT_SECONDS).members)


def test_first_request_joins_and_an_idle_group_is_left(filled: Filled, kafka: str) -> None:
    topic, gateway = filled(3, subscription_timeout_seconds=1.0)
    assert gateway.consume(topic, auto_ack=True).offset == 0
    until(lambda: members(kafka, topic) == 0)
    assert gateway.consume(topic, auto_ack=True).offset == 1


def test_waiting_call_keeps_the_group(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(1))
    gateway = start_gateway(subscription_timeout_seconds=0.3, long_polling_timeout_ms=int(WAIT_SECONDS * 1_000))
    gateway.consume(topic, auto_ack=True)
    waiting = gateway.stub.ConsumeNAck.future(pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True))
    until(lambda: members(kafka, topic) == 1)
    time.sleep(1.5)  # long enough to leave
    assert members(kafka, topic) == 1
    write(topic, *numbers(1))
    assert waiting.result(WAIT_SECONDS).offset == 1


def test_one_topic_of_a_group_is_left_while_another_is_read(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    left, kept = kafka_topic(1), kafka_topic(1)
    write(left, *numbers(2))
    write(kept, *numbers(1))
    gateway = start_gateway(subscription_timeout_seconds=1.0)
    assert gateway.consume(left, "both", auto_ack=True).offset == 0
    found = [gateway.consume(kept, "both", auto_ack=True).offset]
    while members(kafka, "both") == 2 or len(found) < 3:
        write(kept, *numbers(1))
        found.append(gateway.consume(kept, "both", auto_ack=True).offset)
    assert found == list(range(len(found)))
    assert gateway.consume(left, "both", auto_ack=True).offset == 1


def test_pending_records_keep_the_group(filled: Filled) -> None:
    topic, gateway = filled(1, subscription_timeout_seconds=0.05, ack_timeout_seconds=20)
    gateway.offsets(topic, 1)
    time.sleep(0.6)  # more than a tick: long enough to leave
    gateway.ack(topic, 0)
