"""Responses of ConsumeNAck, and its long poll."""

from __future__ import annotations

from collections import defaultdict

import grpc
import pytest
from confluent_kafka import Producer

from dexorder_gateway.config import GatewaySettings
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import WAIT_SECONDS, Filled, GatewayThread, MakeTopic, StartGateway, Write, numbers, refusal

pytestmark = pytest.mark.kafka


def joined(gateway: GatewayThread, topic: str, write: Write) -> None:
    """Read the topic until no record is left."""
    write(topic, b"")
    assert gateway.consume(topic, auto_ack=True).offset == 0


def test_idle_callers_each_end_with_not_found(filled: Filled, write: Write) -> None:
    topic, gateway = filled(0, long_polling_timeout_ms=500)
    joined(gateway, topic, write)
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
    calls = [gateway.stub.ConsumeNAck.future(request) for _ in range(8)]
    assert [call.code() for call in calls] == [grpc.StatusCode.NOT_FOUND] * 8


def test_each_waiting_caller_has_the_whole_long_poll(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    """In Kafka-Pixy the callers wait in series, so one that went away would delay all others."""
    topic = kafka_topic(1)
    gateway = start_gateway(long_polling_timeout_ms=int(WAIT_SECONDS * 2_000))
    joined(gateway, topic, write)
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
    impatient = gateway.stub.ConsumeNAck.future(request, timeout=0.3)
    patient = [gateway.stub.ConsumeNAck.future(request) for _ in range(3)]
    assert impatient.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    write(topic, *numbers(3))
    assert sorted(call.result(WAIT_SECONDS).offset for call in patient) == [1, 2, 3]


def test_missing_topic_is_found_once_it_is_created(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    gateway = start_gateway()
    name = kafka_topic(1) + "-later"
    request = pb.ConsNAckRq(topic=name, group=name, auto_ack=True)
    assert refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND
    start_gateway(topics=f"{name}:1")
    write(name, *numbers(1))
    assert gateway.consume(name, auto_ack=True).offset == 0


def test_each_partition_keeps_its_order_and_none_waits_for_another(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(4)
    write(topic, *numbers(3_000), partition=0)
    for partition in (1, 2, 3):
        write(topic, *numbers(20), partition=partition)
    gateway = start_gateway()
    found: defaultdict[int, list[int]] = defaultdict(list)
    while min(len(found[partition]) for partition in (1, 2, 3)) < 20:
        answer = gateway.consume(topic, auto_ack=True)
        found[answer.partition].append(answer.offset)
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())
    assert len(found[0]) < 3_000, "the others came after all of its records"


def test_ack_in_a_consume_call_never_fails_the_call(filled: Filled) -> None:
    topic, gateway = filled(4)
    places = [(0, 0), (7, 3), (0, 1_000), (0, 0)]  # not delivered yet, unknown partition, far ahead, repeated
    found = [gateway.consume(topic, ack_partition=partition, ack_offset=offset).offset for partition, offset in places]
    assert found == [0, 1, 2, 3]


def test_ack_in_a_consume_call_skips_no_undelivered_record(filled: Filled) -> None:
    topic, gateway = filled(3)
    assert gateway.consume(topic, ack_offset=1).offset == 0
    assert gateway.offsets(topic, 2) == [1, 2]


def test_tombstone_is_an_empty_message(shared_gateway: GatewayThread, kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    producer = Producer({"bootstrap.servers": kafka, "log_level": 2})
    producer.produce(topic, None, b"gone")
    producer.produce(topic, b"", b"empty")
    assert producer.flush(WAIT_SECONDS) == 0
    assert [shared_gateway.consume(topic, auto_ack=True) for _ in range(2)] == [
        pb.ConsRs(offset=0, key_value=b"gone"),
        pb.ConsRs(offset=1, key_value=b"empty"),
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_can_be_read_and_written(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, codec: str
) -> None:
    topic = kafka_topic(1)
    producer = Producer({"bootstrap.servers": kafka, "log_level": 2, "compression.codec": codec})
    producer.produce(topic, b"theirs" * 500)
    assert producer.flush(WAIT_SECONDS) == 0
    gateway = start_gateway(produce_compression=codec)
    gateway.stub.Produce(pb.ProdRq(topic=topic, message=b"ours" * 500))
    assert [gateway.consume(topic, auto_ack=True).message for _ in range(2)] == [b"theirs" * 500, b"ours" * 500]


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_records_of_open_and_aborted_transactions(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, isolation_level: str
) -> None:
    topic = kafka_topic(1)
    producer = Producer({"bootstrap.servers": kafka, "log_level": 2, "transactional.id": topic})
    producer.init_transactions(WAIT_SECONDS)

    def begin(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(WAIT_SECONDS) == 0

    begin(b"aborted")
    producer.abort_transaction(WAIT_SECONDS)
    begin(b"open")
    gateway = start_gateway(isolation_level=isolation_level)
    if isolation_level == "read_uncommitted":
        assert [gateway.consume(topic, auto_ack=True).message for _ in range(2)] == [b"aborted", b"open"]
    producer.abort_transaction(WAIT_SECONDS)
    begin(b"committed")
    producer.commit_transaction(WAIT_SECONDS)
    assert gateway.consume(topic, auto_ack=True).message == b"committed"


def test_records_of_transactions_are_delivered_by_default() -> None:
    assert GatewaySettings().isolation_level == "read_uncommitted"
