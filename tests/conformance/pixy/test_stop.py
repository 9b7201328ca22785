"""SIGTERM: nothing new is taken, acks still are, and the process ends whatever state it is in."""

from __future__ import annotations

import grpc
import pytest

from services.gen.kafkapixy import kafkapixy_pb2 as pb
from tests.fixtures_gateway import MakeTopic, Write, committed, numbers, refusal, until
from tests.gateway_process import StartProcess

pytestmark = pytest.mark.kafka
FOREVER_MS = 3_600_000


def consume(topic: str, group: str) -> pb.ConsNAckRq:
    return pb.ConsNAckRq(topic=topic, group=group, no_ack=True)


def test_stop_ends_with_the_last_ack_and_keeps_what_was_acked_out_of_order(
    start_process: StartProcess, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    acked, unacked = kafka_topic(1), kafka_topic(1)
    for topic in (acked, unacked):
        write(topic, *numbers(3))
    gateway = start_process(drain_seconds=3_600, ack_timeout_seconds=3_600).wait_ready()
    assert gateway.offsets(acked, 3) == [0, 1, 2]
    gateway.begin_stop()
    until(lambda: refusal(lambda: gateway.stub.Produce(pb.ProdRq(topic=acked)))[0] == grpc.StatusCode.UNAVAILABLE)
    assert refusal(lambda: gateway.stub.ConsumeNAck(consume(acked, acked)))[0] == grpc.StatusCode.UNAVAILABLE
    gateway.ack(acked, 2, 0, 1)
    assert gateway.ended() == 0
    assert committed(kafka, acked) == (3, "")


def test_stop_does_not_wait_for_acks_longer_than_it_may(
    start_process: StartProcess, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(3))
    gateway = start_process(drain_seconds=0.5, ack_timeout_seconds=3_600).wait_ready()
    assert gateway.offsets(topic, 3) == [0, 1, 2]
    gateway.ack(topic, 1)
    assert gateway.stop() == 0
    assert committed(kafka, topic) == (0, "BB.")
    assert start_process().wait_ready().offsets(topic, 2) == [0, 2]
