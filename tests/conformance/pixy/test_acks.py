"""Acks, and redelivery of records without one."""

from __future__ import annotations

import grpc
import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import Filled, GatewayThread, MakeTopic, StartGateway, Write, committed, numbers, refusal
from tests.rig.processes import until

BOTH_TRANSPORTS = True
pytestmark = pytest.mark.kafka


def nothing_more(gateway: GatewayThread, topic: str) -> bool:
    """Assert that a long poll ends without a record."""
    request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
    return refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND


def test_second_ack_of_a_record_is_ok(shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(2))
    assert shared_gateway.offsets(topic, 2) == [0, 1]
    shared_gateway.ack(topic, 1, 1, 0, 0)


def test_record_acked_before_its_delivery_is_skipped(filled: Filled, kafka: str, write: Write) -> None:
    topic, gateway = filled(2, long_polling_timeout_ms=300)
    assert gateway.offsets(topic, 1) == [0]
    gateway.ack(topic, 2)
    write(topic, *numbers(2))
    assert gateway.offsets(topic, 2) == [1, 3]
    gateway.ack(topic, 0, 1, 3)
    gateway.stop()
    assert committed(kafka, topic) == (4, "")


def test_endless_retries_are_the_default(filled: Filled) -> None:
    topic, gateway = filled(1, ack_timeout_seconds=0.2)
    assert gateway.offsets(topic, 5) == [0] * 5
    gateway.ack(topic, 0)


@pytest.mark.parametrize("max_retries", [0, 1])
def test_record_dropped_after_its_retries_is_acked(filled: Filled, kafka: str, max_retries: int) -> None:
    topic, gateway = filled(2, ack_timeout_seconds=0.3, max_retries=max_retries, long_polling_timeout_ms=700)
    found = gateway.offsets(topic, 2 * (1 + max_retries))
    assert found[0] == 0
    assert sorted(found) == sorted([0, 1] * (1 + max_retries))
    until(lambda: nothing_more(gateway, topic) and committed(kafka, topic) == (2, ""))
    gateway.ack(topic, 0)  # late, and accepted like any repeated ack


def test_ack_makes_room_for_the_next_record_alone_and_in_a_consume_call(filled: Filled) -> None:
    topic, gateway = filled(4, max_pending_messages=2, long_polling_timeout_ms=300)
    assert gateway.offsets(topic, 2) == [0, 1]
    assert nothing_more(gateway, topic)
    assert gateway.consume(topic, ack_offset=1).offset == 2
    assert nothing_more(gateway, topic)
    gateway.ack(topic, 0)
    assert gateway.consume(topic, no_ack=True).offset == 3


def test_partition_with_too_many_pending_does_not_stop_the_others(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    write(topic, *numbers(5), partition=0)
    gateway = start_gateway(max_pending_messages=2, long_polling_timeout_ms=300)
    gateway.offsets(topic, 2)
    assert nothing_more(gateway, topic)
    write(topic, *numbers(2), partition=1)
    found = [gateway.consume(topic, no_ack=True) for _ in range(2)]
    assert [(answer.partition, answer.offset) for answer in found] == [(1, 0), (1, 1)]


def test_due_record_comes_before_new_ones_and_lowest_first(filled: Filled, write: Write) -> None:
    topic, gateway = filled(3, ack_timeout_seconds=1.5, long_polling_timeout_ms=100)
    assert gateway.offsets(topic, 3) == [0, 1, 2]
    gateway.ack(topic, 1)
    write(topic, *numbers(1))
    # The machine's speed decides whether the fourth is delivered before the first is due again, but not the order.
    found = gateway.offsets(topic, 4)
    assert [offset for offset in found if offset < 3][:2] == [0, 2]
