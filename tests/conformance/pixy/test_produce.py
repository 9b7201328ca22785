"""Partition, form and size of a record, and that accepted records are written."""

from __future__ import annotations

import itertools
from functools import partial

import grpc
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_process import StartProcess
from tests.gateway_thread import WAIT_SECONDS, Filled, GatewayThread, MakeTopic, StartGateway, numbers, records, refusal
from tests.rig.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
PLACES = {
    # key: partition of 4, of 7
    b"": (3, 2),
    b"a": (0, 6),
    b"foobar": (0, 4),
    b"\x00": (3, 5),
    b"\xff" * 9: (2, 1),
    b"user-1": (0, 1),
    b"user-2": (3, 0),
    b"user-3": (2, 5),
    b"BTC/USDT.BINANCE": (3, 3),
    "ключ".encode(): (3, 0),
}


def fnv1a(key: bytes, partitions: int) -> int:
    """Return the partition: 32-bit FNV-1a as a signed number, truncated remainder, without its sign."""
    value = 2_166_136_261
    for byte in key:
        value = (value ^ byte) * 16_777_619 % 2**32
    return abs(value if value < 2**31 else value - 2**32) % partitions


@pytest.mark.parametrize("partitions", [4, 7])
def test_listed_partitions_follow_the_definition(partitions: int) -> None:
    assert [places[partitions == 7] for places in PLACES.values()] == [fnv1a(key, partitions) for key in PLACES]


@pytest.mark.parametrize("partitions", [4, 7])
@pytest.mark.parametrize("async_mode", [False, True])
def test_key_determines_the_partition(
    kafka: str, shared_gateway: GatewayThread, kafka_topic: MakeTopic, partitions: int, async_mode: bool
) -> None:
    topic = kafka_topic(partitions)
    keys = [*PLACES, b"abc", *(b"key-%d" % n for n in range(60))]
    for key in keys:
        shared_gateway.stub.Produce(pb.ProdRq(topic=topic, key_value=key, async_mode=async_mode))
    # A partition's records are written in order, so everything queued before this is written.
    last = [shared_gateway.stub.Produce(pb.ProdRq(topic=topic, key_value=key)).partition for key in PLACES]
    assert last == [places[partitions == 7] for places in PLACES.values()]

    def found() -> dict[bytes | None, int]:
        return {m.key(): m.partition() for m in records(kafka, topic, partitions)}

    until(lambda: len(found()) == len(keys))
    # a record with an empty key is stored without one
    assert found() == {key or None: fnv1a(key, partitions) for key in keys}


def test_without_a_key_any_partition(kafka: str, shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(4)
    request = pb.ProdRq(topic=topic, key_value=b"dropped", key_undefined=True, message=b"v")
    placed = [shared_gateway.stub.Produce(request).partition for _ in range(40)]
    assert len(set(placed)) > 1
    assert {m.key() for m in records(kafka, topic, 4)} == {None}


def test_sync_record_is_stored_unchanged(kafka: str, shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    headers = [("a", b"1"), ("b", b"\xff\x00"), ("a", b"2"), ("é", b"")]
    request = pb.ProdRq(
        topic=topic, key_value=b"k", message=b"v", headers=[pb.RecordHeader(key=k, value=v) for k, v in headers]
    )
    answers = [
        shared_gateway.stub.Produce(request),
        shared_gateway.stub.Produce(pb.ProdRq(cluster="default", topic=topic)),
    ]
    assert [(a.partition, a.offset) for a in answers] == [(0, 0), (0, 1)]
    full, empty = records(kafka, topic)
    assert (full.key(), full.value(), full.headers()) == (b"k", b"v", headers)
    assert (empty.key(), empty.value(), empty.headers()) == (None, b"", None)


@pytest.mark.parametrize("async_mode", [False, True])
def test_message_over_our_limit_is_refused(
    start_gateway: StartGateway, kafka_topic: MakeTopic, async_mode: bool
) -> None:
    gateway = start_gateway(max_message_bytes=50_000, produce_max_bytes=10_000)
    request = pb.ProdRq(topic=kafka_topic(1), message=bytes(11_000), async_mode=async_mode)
    code, details = refusal(lambda: gateway.stub.Produce(request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "11000 bytes" in details
    request.message = bytes(60_000)  # gRPC's own limit
    assert refusal(lambda: gateway.stub.Produce(request))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_message_over_the_topics_limit_is_refused(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic
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
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic
) -> None:
    existing = kafka_topic(2)
    start_gateway(topics=f"{existing}-new:3, {existing}:5")
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=WAIT_SECONDS).topics
    assert {name: len(topics[name].partitions) for name in (existing, f"{existing}-new")} == {
        existing: 2,
        f"{existing}-new": 3,
    }


def test_full_queue_refuses_records_and_accepted_ones_are_written_in_order(filled: Filled, kafka: str) -> None:
    topic, gateway = filled(0, produce_queue_messages=5, produce_linger_ms=500, drain_seconds=20)
    accepted: list[bytes] = []
    left = map(b"%d".__mod__, itertools.count())

    def answers(wanted: grpc.StatusCode) -> bool:
        value = next(left)
        call = gateway.stub.Produce.future(pb.ProdRq(topic=topic, message=value, async_mode=True))
        if call.code() == grpc.StatusCode.OK:
            accepted.append(value)
        return bool(call.code() == wanted)

    for wanted in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OK) * 2:
        until(partial(answers, wanted))
    assert len(accepted) > 5
    gateway.stop()
    assert [m.value() for m in records(kafka, topic)] == accepted


def test_full_queue_refuses_sync_records_too(filled: Filled) -> None:
    topic, gateway = filled(0, produce_queue_messages=1, produce_linger_ms=600_000, produce_timeout_seconds=1_000)
    gateway.stub.Produce(pb.ProdRq(topic=topic, async_mode=True))
    refused = refusal(lambda: gateway.stub.Produce(pb.ProdRq(topic=topic)))
    assert refused[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_sigterm_writes_accepted_records(kafka: str, start_process: StartProcess, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    gateway = start_process(produce_linger_ms=25_000, drain_seconds=30).wait_ready()
    for value in numbers(50):
        answer = gateway.stub.Produce(pb.ProdRq(topic=topic, message=value, async_mode=True))
        assert answer == pb.ProdRs(partition=-1, offset=-1)
    assert gateway.stop() == 0
    assert [m.value() for m in records(kafka, topic)] == numbers(50)
