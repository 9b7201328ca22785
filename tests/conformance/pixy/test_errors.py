"""What a call that can't be served ends with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc
import pytest
from google.protobuf.message import Message

from services.gen.kafkapixy import kafkapixy_pb2 as pb
from tests.fixtures_gateway import GatewayThread, MakeTopic, StartGateway, Write, numbers, refusal

pytestmark = pytest.mark.kafka
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["KafkaPixy"].methods}
ILLEGAL_TOPICS = ["", ".", "..", "a/b", "a b", "ä", "x" * 250]


def call_of(gateway: GatewayThread, name: str, **fields: object) -> Callable[[], Message]:
    """The call with those of the fields that its request has."""
    request_type = getattr(pb, METHODS[name].input_type.name)
    known = {field: value for field, value in fields.items() if field in request_type.DESCRIPTOR.fields_by_name}
    return partial(getattr(gateway.stub, name), request_type(**known))


@pytest.mark.parametrize("name", METHODS)
def test_unknown_cluster_is_named_by_every_call(shared_gateway: GatewayThread, name: str) -> None:
    code, details = refusal(call_of(shared_gateway, name, cluster="elsewhere", topic="t", group="g"))
    assert (code, "'elsewhere'" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("topic", ILLEGAL_TOPICS)
@pytest.mark.parametrize("name", ["Produce", "ConsumeNAck", "Ack"])
def test_illegal_topic_is_refused(shared_gateway: GatewayThread, name: str, topic: str) -> None:
    code, details = refusal(call_of(shared_gateway, name, topic=topic, group="g"))
    assert (code, "topic" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("name", ["ConsumeNAck", "Ack"])
def test_empty_group_is_refused(shared_gateway: GatewayThread, kafka_topic: MakeTopic, name: str) -> None:
    code, details = refusal(call_of(shared_gateway, name, topic=kafka_topic(1), group=""))
    assert (code, "group" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize(
    ("name", "field"),
    [("Ack", "partition"), ("Ack", "offset"), ("ConsumeNAck", "ack_partition"), ("ConsumeNAck", "ack_offset")],
)
def test_negative_place_is_refused(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, name: str, field: str
) -> None:
    code, details = refusal(call_of(shared_gateway, name, topic=kafka_topic(1), group="g", **{field: -1}))
    assert (code, field in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize(("no_ack", "auto_ack"), [(True, False), (False, True)])
def test_negative_place_that_is_not_acked_does_not_matter(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write, no_ack: bool, auto_ack: bool
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(1))
    answer = shared_gateway.consume(topic, no_ack=no_ack, auto_ack=auto_ack, ack_partition=-1, ack_offset=-1)
    assert answer.offset == 0


@pytest.mark.parametrize("name", ["Produce", "ConsumeNAck"])
def test_unknown_topic(shared_gateway: GatewayThread, name: str) -> None:
    code, details = refusal(call_of(shared_gateway, name, topic="no-such-topic", group="g"))
    expected = grpc.StatusCode.INVALID_ARGUMENT if name == "Produce" else grpc.StatusCode.NOT_FOUND
    assert (code, "no-such-topic" in details) == (expected, True)


def test_ack_without_a_subscription_is_internal(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(1))
    assert refusal(lambda: shared_gateway.ack(topic, 0))[0] == grpc.StatusCode.INTERNAL
    shared_gateway.offsets(topic, 1)
    assert refusal(lambda: shared_gateway.ack(topic, 0, group="another"))[0] == grpc.StatusCode.INTERNAL
    assert refusal(lambda: shared_gateway.ack(topic, 0, partition=1))[0] == grpc.StatusCode.INTERNAL
    shared_gateway.ack(topic, 0)


@pytest.mark.parametrize("async_mode", [False, True])
def test_request_over_the_limit(start_gateway: StartGateway, kafka_topic: MakeTopic, async_mode: bool) -> None:
    gateway = start_gateway(max_message_bytes=1024 * 1024)
    request = pb.ProdRq(topic=kafka_topic(1), message=bytes(1024 * 1024), async_mode=async_mode)
    assert refusal(lambda: gateway.stub.Produce(request))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
