"""Records that ConsumeNAck returns, their order and their owners, and its long poll."""

from __future__ import annotations

from collections import defaultdict

import grpc
import pytest
from confluent_kafka import Producer

from dexorder_gateway.config import GatewaySettings
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.fixtures import needs_missing_topics
from tests.gateway_thread import (
    WAIT_SECONDS,
    Filled,
    GatewayThread,
    MakeTopic,
    StartGateway,
    Write,
    commit_as_others_do,
    committed,
    numbers,
    refusal,
)
from tests.raw_headers import produce_raw
from tests.rig.processes import until

pytestmark = pytest.mark.kafka


def joined(gateway: GatewayThread, topic: str, write: Write) -> None:
    """Read the topic until no record is left."""
    write(topic, b"")
    assert gateway.consume(topic, auto_ack=True).offset == 0


def test_record_is_delivered_as_it_was_produced(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    headers = [pb.RecordHeader(key="a", value=b"1"), pb.RecordHeader(key="a", value=b"\xff")]
    shared_gateway.stub.Produce(pb.ProdRq(topic=topic, key_value=b"k", message=b"v", headers=headers))
    shared_gateway.stub.Produce(pb.ProdRq(topic=topic))
    shared_gateway.stub.Produce(pb.ProdRq(topic=topic, key_undefined=True))
    assert [shared_gateway.consume(topic, auto_ack=True) for _ in range(3)] == [
        pb.ConsRs(partition=0, offset=0, key_value=b"k", message=b"v", headers=headers),
        pb.ConsRs(partition=0, offset=1, key_undefined=True),
        pb.ConsRs(partition=0, offset=2, key_undefined=True),
    ]


def test_record_with_a_header_name_that_is_not_utf8_comes_without_headers(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    produce_raw(kafka, topic, [b"x"], [(b"a", b"1")])
    produce_raw(kafka, topic, [b"y"], [(b"a", b"1"), (b"n\xff", b"2")])
    gateway = start_gateway(ack_timeout_seconds=1.0)
    for _ in range(3):  # unacked, so the same two are delivered again
        found = [gateway.consume(topic, no_ack=True) for _ in range(2)]
        assert [(record.offset, record.message) for record in found] == [(0, b"x"), (1, b"y")]
        assert [[(each.key, each.value) for each in record.headers] for record in found] == [[("a", b"1")], []]


def test_each_call_acks_the_record_before(filled: Filled, kafka: str) -> None:
    topic, gateway = filled(4, long_polling_timeout_ms=200)
    offsets = [gateway.consume(topic).offset]  # nothing to ack yet: the fields are 0
    for _ in range(3):
        offsets.append(gateway.consume(topic, ack_partition=0, ack_offset=offsets[-1]).offset)
    assert offsets == [0, 1, 2, 3]
    last = pb.ConsNAckRq(topic=topic, group=topic, ack_offset=3)
    assert refusal(lambda: gateway.stub.ConsumeNAck(last))[0] == grpc.StatusCode.NOT_FOUND
    gateway.stop()
    assert committed(kafka, topic) == (4, "")


def test_first_call_acks_nothing(filled: Filled, start_gateway: StartGateway) -> None:
    topic, gateway = filled(2, long_polling_timeout_ms=200)
    assert gateway.consume(topic).offset == 0
    gateway.stop()
    assert start_gateway().offsets(topic, 2) == [0, 1]


def test_no_ack_overrides_auto_ack(filled: Filled, start_gateway: StartGateway) -> None:
    topic, first = filled(3)
    first.consume(topic, auto_ack=True)
    first.consume(topic, auto_ack=True, no_ack=True)
    first.stop()
    assert start_gateway().offsets(topic, 2) == [1, 2]


def test_new_group_starts_at_the_end_and_commits_that_at_once(
    filled: Filled, start_gateway: StartGateway, kafka: str, write: Write
) -> None:
    topic, gateway = filled(3, new_group_start="latest", long_polling_timeout_ms=100)
    request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)

    def start_is_committed() -> bool:
        assert refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND
        return committed(kafka, topic) == (3, "")

    until(start_is_committed)
    gateway.stop()
    write(topic, *numbers(1))
    assert start_gateway(new_group_start="latest").offsets(topic, 1) == [3]


def test_commit_beyond_the_end_starts_at_the_beginning(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(2))
    commit_as_others_do(kafka, topic, topic, 100, b"")
    gateway = start_gateway()
    assert gateway.offsets(topic, 2) == [0, 1]


def test_number_of_waiting_callers_is_limited(filled: Filled, write: Write) -> None:
    topic, gateway = filled(0, channel_buffer_size=2, long_polling_timeout_ms=20_000)
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
    calls = [gateway.stub.ConsumeNAck.future(request) for _ in range(3)]
    until(lambda: any(call.done() for call in calls))
    (refused,) = (call for call in calls if call.done())
    assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    write(topic, *numbers(2))
    assert sorted(call.result(WAIT_SECONDS).offset for call in calls if call is not refused) == [0, 1]


def test_cancelled_caller_takes_no_record(filled: Filled, write: Write) -> None:
    topic, gateway = filled(0, long_polling_timeout_ms=20_000)
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
    cancelled = gateway.stub.ConsumeNAck.future(request)
    cancelled.cancel()
    write(topic, *numbers(2))
    assert [gateway.consume(topic, auto_ack=True).offset for _ in range(2)] == [0, 1]


@needs_missing_topics
def test_missing_topic_affects_no_other_caller(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(2))
    assert shared_gateway.consume(topic, auto_ack=True).offset == 0
    missing = pb.ConsNAckRq(topic="no-such-topic", group=topic, auto_ack=True)
    code, details = refusal(lambda: shared_gateway.stub.ConsumeNAck(missing))
    assert (code, "no-such-topic" in details) == (grpc.StatusCode.NOT_FOUND, True)
    assert shared_gateway.consume(topic, auto_ack=True).offset == 1


def test_groups_and_topics_are_independent(shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write) -> None:
    one, two = kafka_topic(1), kafka_topic(1)
    write(one, *numbers(2))
    write(two, *numbers(2))
    places = [(topic, group) for topic in (one, two) for group in (f"{one}-a", f"{one}-b")] * 2
    found = [shared_gateway.consume(topic, group, auto_ack=True).offset for topic, group in places]
    assert found == [0] * 4 + [1] * 4


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


def test_ack_in_a_consume_call_that_nobody_takes_fails_the_call_and_takes_no_record(filled: Filled) -> None:
    topic, gateway = filled(4)
    places = [(0, 0), (7, 3), (0, 0), (0, 1), (0, 0)]  # not delivered yet, unknown partition, then repeated ones
    found: list[int | str] = []
    for partition, offset in places:
        try:
            found.append(gateway.consume(topic, ack_partition=partition, ack_offset=offset).offset)
        except grpc.RpcError as error:
            found.append(str(error.details()))
    assert found == [0, "partition 7 is not assigned to this gateway", 1, 2, 3]


def test_ack_in_a_consume_call_skips_an_undelivered_record_only_if_it_names_it(filled: Filled) -> None:
    topic, gateway = filled(4)
    assert gateway.consume(topic).offset == 0, "the fields that a first call leaves at 0"
    assert gateway.consume(topic, ack_offset=2).offset == 1, "as Ack, for a record that another gateway delivered"
    assert gateway.offsets(topic, 1) == [3]


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
