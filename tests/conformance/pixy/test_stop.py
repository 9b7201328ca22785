"""SIGTERM: new requests are refused, acks accepted, and the process ends in every state."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_process import StartProcess
from tests.gateway_thread import MakeTopic, Write, committed, numbers, refusal
from tests.rig.processes import free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
FOREVER_MS = 3_600_000


def consume(topic: str) -> pb.ConsNAckRq:
    return pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)


def test_stop_ends_with_the_last_ack_and_commits_it(
    start_process: StartProcess, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(3))
    gateway = start_process(drain_seconds=3_600, ack_timeout_seconds=3_600, long_polling_timeout_ms=FOREVER_MS)
    assert gateway.wait_ready().offsets(topic, 3) == [0, 1, 2]
    waiting = gateway.stub.ConsumeNAck.future(consume(topic))
    gateway.begin_stop()
    assert waiting.code() == grpc.StatusCode.UNAVAILABLE
    refused: list[Any] = [
        gateway.stub.ConsumeNAck.future(consume(topic)),
        gateway.stub.Produce.future(pb.ProdRq(topic=topic)),
        gateway.stub.Produce.future(pb.ProdRq(topic=topic, async_mode=True)),
    ]
    assert [call.code() for call in refused] == [grpc.StatusCode.UNAVAILABLE] * len(refused)
    gateway.ack(topic, 2, 0, 1)
    assert gateway.ended() == 0
    assert committed(kafka, topic) == (3, "")


def test_stop_waits_for_acks_at_most_drain_seconds(
    start_process: StartProcess, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(3))
    gateway = start_process(drain_seconds=0.5, ack_timeout_seconds=3_600).wait_ready()
    assert gateway.offsets(topic, 3) == [0, 1, 2]
    gateway.ack(topic, 1)
    assert gateway.stop() == 0
    assert committed(kafka, topic) == (0, "BB.mx2v")
    assert start_process().wait_ready().offsets(topic, 2) == [0, 2]


def test_stop_during_a_join(start_process: StartProcess, kafka_topic: MakeTopic) -> None:
    topics = [kafka_topic(4) for _ in range(5)]
    gateway = start_process(long_polling_timeout_ms=FOREVER_MS).wait_ready()
    calls = [gateway.stub.ConsumeNAck.future(consume(topic)) for topic in topics]
    assert refusal(lambda: gateway.ack("no-such-topic", 0))[0] == grpc.StatusCode.INTERNAL  # received after the calls
    assert gateway.stop() == 0
    assert [call.code() for call in calls] == [grpc.StatusCode.UNAVAILABLE] * len(calls)


def test_stop_after_requests_that_could_not_be_served(start_process: StartProcess, kafka_topic: MakeTopic) -> None:
    """An empty group prevents Kafka-Pixy from ending."""
    gateway = start_process().wait_ready()
    for request in (pb.ConsNAckRq(topic=kafka_topic(1)), consume("no-such-topic")):
        gateway.stub.ConsumeNAck.future(request).code()
    assert gateway.stop() == 0


def test_stop_without_a_broker(start_process: StartProcess) -> None:
    gateway = start_process(kafka=f"127.0.0.1:{free_ports(1)[0]}")
    assert gateway.stub.ConsumeNAck.future(consume("t")).code() == grpc.StatusCode.UNAVAILABLE
    assert gateway.stop() == 0
