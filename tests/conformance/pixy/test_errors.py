"""Status of calls that can't be served, for every call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc
import pytest
from google.protobuf.message import Message

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import GatewayThread, MakeTopic, Write, numbers, refusal

pytestmark = pytest.mark.kafka
REQUESTS = {
    method.name: getattr(pb, method.input_type.name) for method in pb.DESCRIPTOR.services_by_name["KafkaPixy"].methods
}
ILLEGAL_TOPICS = ["", ".", "..", "a/b", "a b", "ä", "x" * 250]


def call_of(gateway: GatewayThread, name: str, **fields: str) -> Callable[[], Message]:
    """Make the call with those of the fields that its request has."""
    known = {field: value for field, value in fields.items() if field in REQUESTS[name].DESCRIPTOR.fields_by_name}
    return partial(getattr(gateway.stub, name), REQUESTS[name](**known))


@pytest.mark.parametrize("name", REQUESTS)
def test_unknown_cluster_is_named_by_every_call(shared_gateway: GatewayThread, name: str) -> None:
    code, details = refusal(call_of(shared_gateway, name, cluster="elsewhere", topic="t", group="g"))
    assert (code, "'elsewhere'" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("name", [name for name in REQUESTS if "topic" in REQUESTS[name].DESCRIPTOR.fields_by_name])
def test_illegal_topic_is_named_by_every_call(shared_gateway: GatewayThread, name: str) -> None:
    for topic in ILLEGAL_TOPICS:
        code, details = refusal(call_of(shared_gateway, name, topic=topic, group="g"))
        assert (code, repr(topic) in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


@pytest.mark.parametrize(("no_ack", "auto_ack"), [(True, False), (False, True)])
def test_negative_offset_that_is_not_acked_is_ignored(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write, no_ack: bool, auto_ack: bool
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(1))
    answer = shared_gateway.consume(topic, no_ack=no_ack, auto_ack=auto_ack, ack_partition=-1, ack_offset=-1)
    assert answer.offset == 0


def test_ack_of_a_topic_the_group_does_not_read_is_internal(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(1))
    assert refusal(lambda: shared_gateway.ack(topic, 0))[0] == grpc.StatusCode.INTERNAL
    assert refusal(lambda: shared_gateway.ack("no-such-topic", 0))[0] == grpc.StatusCode.INTERNAL
    shared_gateway.offsets(topic, 1)
    assert refusal(lambda: shared_gateway.ack(topic, 0, group="another"))[0] == grpc.StatusCode.INTERNAL
    assert refusal(lambda: shared_gateway.ack(topic, 0, partition=1))[0] == grpc.StatusCode.INTERNAL
    shared_gateway.ack(topic, 0)
