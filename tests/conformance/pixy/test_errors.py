"""Status of calls that can't be served, for every call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.fixtures import needs_missing_topics
from tests.gateway_thread import GatewayThread, MakeTopic, Write, numbers, refusal

BOTH_TRANSPORTS = True
pytestmark = pytest.mark.kafka
REQUESTS = {
    method.name: getattr(pb, method.input_type.name) for method in pb.DESCRIPTOR.services_by_name["KafkaPixy"].methods
}
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
ILLEGAL_TOPICS = ["", ".", "..", "a/b", "a b", "ä", "x" * 250]


def refusals(gateway: GatewayThread, name: str, **fields: str) -> Iterator[tuple[grpc.StatusCode, str]]:
    """Make the call with the fields that its request has, in each mode; yield status and text."""
    known = REQUESTS[name].DESCRIPTOR.fields_by_name
    given = {field: value for field, value in fields.items() if field in known}
    for mode in ({"async_mode": False}, {"async_mode": True}) if "async_mode" in known else ({},):
        yield refusal(partial(getattr(gateway.stub, name), REQUESTS[name](**given, **mode)))


@pytest.mark.parametrize("name", REQUESTS)
def test_unknown_cluster_is_named_by_every_call(shared_gateway: GatewayThread, name: str) -> None:
    for code, details in refusals(shared_gateway, name, cluster="elsewhere", topic="t", group="g"):
        assert (code, "`elsewhere`" in details) == (INVALID, True)


@pytest.mark.parametrize("name", [name for name in REQUESTS if "topic" in REQUESTS[name].DESCRIPTOR.fields_by_name])
def test_illegal_topic_is_named_by_every_call(shared_gateway: GatewayThread, name: str) -> None:
    for topic in ILLEGAL_TOPICS:
        for code, details in refusals(shared_gateway, name, topic=topic, group="g"):
            assert (code, repr(topic) in details) == (INVALID, True), details


@needs_missing_topics
@pytest.mark.parametrize(
    ("name", "wanted"),
    [("Produce", INVALID), *((name, NOT_FOUND) for name in ("GetOffsets", "SetOffsets", "GetTopicMetadata"))],
)
def test_missing_topic_is_named(shared_gateway: GatewayThread, name: str, wanted: grpc.StatusCode) -> None:
    for code, details in refusals(shared_gateway, name, topic="no-such-topic", group="g"):
        assert (code, details) == (wanted, "topic 'no-such-topic' does not exist")


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        ("ConsumeNAck", {"group": ""}, "group ''"),
        ("ConsumeNAck", {"group": " "}, "begins with white space"),
        ("ConsumeNAck", {"ack_partition": -1}, "ack_partition -1"),
        ("ConsumeNAck", {"ack_offset": -2}, "ack_offset -2"),
        ("Ack", {"group": ""}, "group ''"),
        ("Ack", {"partition": -1}, "partition -1"),
        ("Ack", {"offset": -1}, "offset -1"),
        ("GetOffsets", {"group": ""}, "group ''"),
        ("GetOffsets", {"group": "g\0h"}, "has a NUL"),
        ("GetOffsets", {"group": "g" * 8_001}, "longer than 8000 characters"),
        ("GetOffsets", {"time_ms": -1}, "time_ms -1 is negative"),
        ("SetOffsets", {"group": ""}, "group ''"),
        ("SetOffsets", {"time_ms": -1}, "time_ms -1 is negative"),
        ("SetOffsets", {"time_ms": 1, "offsets": [pb.PartitionOffset()]}, "time_ms and 1 offsets"),
        ("ListConsumers", {"group": "\0"}, "has a NUL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_bad_field_is_named(shared_gateway: GatewayThread, name: str, fields: dict[str, Any], text: str) -> None:
    request = REQUESTS[name](**{"topic": "t", "group": "g", **fields})
    code, details = refusal(lambda: getattr(shared_gateway.stub, name)(request))
    assert (code, text in details) == (INVALID, True), details


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
