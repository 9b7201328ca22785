"""A broker that is unavailable, or stops answering."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.gateway_thread import WAIT_SECONDS, GatewayThread, records, refusal
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import free_ports, until


def administrative_calls(stub: rpc.KafkaPixyStub, topic: str) -> list[tuple[Any, Any]]:
    return [
        (stub.GetOffsets, pb.GetOffsetsRq(topic=topic, group=topic)),
        (stub.SetOffsets, pb.SetOffsetsRq(topic=topic, group="another", offsets=[pb.PartitionOffset()])),
        (stub.ListTopics, pb.ListTopicRq(with_partitions=True)),
        (stub.ListConsumers, pb.ListConsumersRq(topic=topic)),
        (stub.GetTopicMetadata, pb.GetTopicMetadataRq(topic=topic)),
    ]


def is_answered(ask: Any, request: Any) -> bool:
    """Return whether a call is answered; False if it is UNAVAILABLE, after which a client repeats it."""
    try:
        ask(request)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    return True


def test_without_a_broker_calls_are_unavailable_and_health_is_not_serving() -> None:
    gateway = GatewayThread(kafka=f"127.0.0.1:{free_ports(1)[0]}", drain_seconds=0.0)
    try:
        gateway.wait_for_health(HealthCheckResponse.NOT_SERVING)
        for call in (
            lambda: gateway.stub.Produce(pb.ProdRq(topic="t")),
            lambda: gateway.stub.Produce(pb.ProdRq(topic="t", async_mode=True)),
            lambda: gateway.stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", auto_ack=True)),
        ):
            assert refusal(call)[0] == grpc.StatusCode.UNAVAILABLE
        for ask, request in administrative_calls(gateway.stub, "t"):
            assert refusal(partial(ask, request))[0] == grpc.StatusCode.UNAVAILABLE
        # Errors in a request are reported all the same.
        assert refusal(lambda: gateway.stub.Produce(pb.ProdRq()))[0] == grpc.StatusCode.INVALID_ARGUMENT
    finally:
        gateway.stop()


@pytest.mark.smoke
@pytest.mark.kafka
def test_broker_that_stops_answering_and_recovers(kafka_jars: Path, tmp_path: Path) -> None:
    broker = RunningKafka(tmp_path)
    gateway = GatewayThread(
        kafka=broker.bootstrap, drain_seconds=0.0, produce_timeout_seconds=2.0, long_polling_timeout_ms=300
    )
    try:
        gateway.wait_ready()
        topic = create_topic(broker.bootstrap, 1)
        # This broker has no commits: librdkafka's admin client would crash (docs/decisions/0009).
        nothing = pb.GetOffsetsRs(offsets=[pb.PartitionOffset(offset=-1)])
        assert gateway.stub.GetOffsets(pb.GetOffsetsRq(topic=topic, group=topic)) == nothing
        for value in (b"1", b"2"):
            gateway.stub.Produce(pb.ProdRq(topic=topic, message=value))
        assert gateway.consume(topic, auto_ack=True).message == b"1"
        broker.process.send_signal(signal.SIGSTOP)
        asked = [ask.future(request) for ask, request in administrative_calls(gateway.stub, topic)]
        gateway.wait_for_health(HealthCheckResponse.NOT_SERVING)
        for answer in asked:
            assert answer.exception(WAIT_SECONDS).code() == grpc.StatusCode.UNAVAILABLE
        queued = pb.ProdRs(partition=-1, offset=-1)
        assert gateway.stub.Produce(pb.ProdRq(topic=topic, message=b"queued", async_mode=True)) == queued
        code, text = refusal(lambda: gateway.stub.Produce(pb.ProdRq(topic=topic, message=b"waits")))
        assert (code, "within 2 s" in text) == (grpc.StatusCode.ABORTED, True), "no proxy repeats it"
        # Records fetched before are still delivered; after that the poll ends with the reason.
        assert gateway.consume(topic, auto_ack=True).message == b"2"
        consume = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
        assert refusal(lambda: gateway.stub.ConsumeNAck(consume))[0] == grpc.StatusCode.UNAVAILABLE
        broker.process.send_signal(signal.SIGCONT)
        gateway.wait_ready()
        assert gateway.stub.Produce(pb.ProdRq(topic=topic, message=b"3")).offset == 4
        written = [message.value() for message in records(broker.bootstrap, topic)]
        assert written == [b"1", b"2", b"queued", b"waits", b"3"]
        for ask, request in administrative_calls(gateway.stub, topic):
            until(partial(is_answered, ask, request))  # librdkafka's admin client connects when a call asks for it
    finally:
        broker.process.send_signal(signal.SIGCONT)
        gateway.stop()
        broker.stop(signal.SIGKILL)
