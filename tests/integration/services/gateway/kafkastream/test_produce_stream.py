"""Produce streams against a real broker."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition

from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from services.gen.kafkapixy import kafkapixy_pb2 as pixy_pb
from tests.fixtures_gateway import WAIT_SECONDS, GatewayThread, MakeTopic, StartGateway
from tests.unit.services.gateway.kafkastream.calls import ProduceCall, Record, values

pytestmark = pytest.mark.kafka
INVALID, UNAVAILABLE = 3, 14


def read_back(kafka: str, topic: str, count: int, partition: int = 0) -> list[Any]:
    """Return Kafka's messages, read without the gateway."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": topic, "log_level": 2})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found = consumer.consume(count, WAIT_SECONDS)
        assert [message.error() for message in found] == [None] * count
        return found
    finally:
        consumer.close()


def test_records_are_answered_in_order_and_stored_unchanged(
    shared_gateway: GatewayThread, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    call = ProduceCall(shared_gateway)
    records = [
        Record(b"v", b"k", headers=(("a", b"1"), ("a", b""))),
        Record(b"", b"", timestamp_ms=1_700_000_000_123),
        Record(),
    ]
    answer = call.write(topic, *records, batch_id=7)
    assert answer == pb.ProduceResponse(batch_id=7, partitions=[0, 0, 0], offsets=[0, 1, 2])
    assert call.write(topic, batch_id=8) == pb.ProduceResponse(batch_id=8)
    assert call.write(topic, Record(b"last")).offsets == [3]
    call.half_close()
    assert call.ending()[0] == grpc.StatusCode.OK
    found = read_back(kafka, topic, 4)
    assert [(m.key(), m.value(), m.headers()) for m in found] == [
        (b"k", b"v", [("a", b"1"), ("a", b"")]),
        (b"", b"", None),
        (None, None, None),
        (None, b"last", None),
    ]
    assert found[1].timestamp()[1] == 1_700_000_000_123
    assert found[0].timestamp()[1] > 1_700_000_000_123


def test_partition_is_the_same_as_of_the_unary_call(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic, keys = kafka_topic(5), [b"", b"a", b"bc", b"\xff\x00", b"key-17"]
    call = ProduceCall(shared_gateway)
    streamed = call.write(topic, *(Record(key=key) for key in keys)).partitions
    call.cancel()
    unary = [shared_gateway.stub.Produce(pixy_pb.ProdRq(topic=topic, key_value=key)).partition for key in keys]
    assert list(streamed) == unary
    assert len(set(unary)) > 1


def test_bad_record_among_good_ones_fails_alone(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    call = ProduceCall(shared_gateway)
    answer = call.write(topic, *values([b"0", b"x" * 1_100_000, b"2"]), Record(timestamp_ms=-1))
    call.cancel()
    assert (list(answer.partitions), list(answer.offsets)) == ([0, -1, 0, -1], [0, -1, 1, -1])
    assert [(failure.index, failure.code) for failure in answer.failures] == [(1, INVALID), (3, INVALID)]
    assert "1100000 bytes" in answer.failures[0].message
    assert "timestamp_ms -1" in answer.failures[1].message


def test_bad_batch_fails_and_the_stream_continues(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    call = ProduceCall(shared_gateway)
    record = Record(b"v")
    bad = [
        (call.write("no-such-topic", record, record), "no-such-topic"),
        (call.write("a b", record, record), "'a b'"),
        (call.write(topic, record, record, cluster="other"), "'other'"),
    ]
    good = call.write(topic, record)
    call.cancel()
    for answer, text in bad:
        assert [(f.index, f.code, text in f.message) for f in answer.failures] == [
            (0, INVALID, True),
            (1, INVALID, True),
        ]
        assert (list(answer.partitions), list(answer.offsets)) == ([-1, -1], [-1, -1])
    assert good == pb.ProduceResponse(partitions=[0], offsets=[0])


def test_half_close_ends_the_stream_after_all_answers_and_keys_keep_their_order(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic, batches, size = kafka_topic(3), 40, 50
    # The queue and the window are so small that the gateway waits for room all the time.
    gateway = start_gateway(produce_queue_messages=64, produce_stream_records=120)
    call = ProduceCall(gateway)
    for number in range(batches):
        numbers = range(number * size, (number + 1) * size)
        call.send(topic, *(Record(b"%d" % n, b"%d" % (n % 7)) for n in numbers), batch_id=number)
    call.half_close()
    answers = list(call.call)
    assert [answer.batch_id for answer in answers] == list(range(batches))
    assert not any(answer.failures for answer in answers)
    places = [place for answer in answers for place in zip(answer.partitions, answer.offsets, strict=True)]
    by_place = dict(zip(places, range(batches * size), strict=True))
    assert len(by_place) == batches * size
    last: dict[int, int] = {}
    for place in sorted(by_place):
        number = by_place[place]
        assert last.get(number % 7, -1) < number
        last[number % 7] = number
    partition, count = 0, sum(1 for found, _ in places if found == 0)
    stored = read_back(kafka, topic, count, partition)
    assert [int(m.value()) for m in stored] == [by_place[partition, m.offset()] for m in stored]


def test_caller_that_takes_no_answers_is_not_read(shared_gateway: GatewayThread) -> None:
    # Answers of failed records are long, and nothing needs to be written. HTTP/2 itself buffers some MiB of both.
    batch = pb.ProduceRequest(topic="no-such-topic", records=pb.Records(values=[b"x" * 200] * 1_000))
    taken, total = 0, 300

    def requests() -> Any:
        nonlocal taken
        for taken in range(1, total + 1):  # noqa: B007
            yield batch

    call = shared_gateway.streams.Produce(requests(), timeout=4 * WAIT_SECONDS)
    before = -1
    while before != taken:  # until it stops; if it only pauses, the test passes as well
        before = taken
        time.sleep(0.5)
    assert 0 < taken < total
    assert sum(len(answer.failures) for answer in call) == total * 1_000
    assert taken == total


def test_other_callers_are_served_beside_a_stream(start_gateway: StartGateway, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    gateway = start_gateway(produce_queue_messages=100)
    call, stop = ProduceCall(gateway), threading.Event()

    def stream() -> None:
        while not stop.is_set():
            assert not call.write(topic, *values([b"v"] * 500)).failures

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        for _ in range(20):
            assert gateway.stub.Produce(pixy_pb.ProdRq(topic=topic)).offset >= 0
    finally:
        stop.set()
        streaming.join()
        call.cancel()


def test_stop_answers_received_batches_and_ends_the_stream(start_gateway: StartGateway, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    gateway = start_gateway(drain_seconds=20)
    call, idle = ProduceCall(gateway), ProduceCall(gateway)
    assert idle.write(topic).batch_id == 0
    call.send(topic, *values([b"v"] * 100), batch_id=1)
    assert len(call.answer().offsets) == 100
    gateway.begin_stop()
    for each in (call, idle):
        assert each.ending()[0] == grpc.StatusCode.UNAVAILABLE
    refused = ProduceCall(gateway)
    refused.half_close()
    assert refused.ending()[0] == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (pb.Records(values=[b""] * 10_001), "10001 records"),
        (pb.Records(values=[b""] * 5, keys=[b""] * 3), "3 keys for 5 values"),
        (pb.Records(values=[b""] * 5, null_values=[7]), "null_values[0] 7 is not an index of 5 values"),
    ],
)
def test_invalid_batch_ends_the_stream_after_the_answers(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, records: pb.Records, text: str
) -> None:
    topic = kafka_topic(1)
    call = ProduceCall(shared_gateway)
    call.send(topic, *values([b"v"]), batch_id=1)
    call.request(topic=topic, records=records)
    assert call.answer().batch_id == 1
    code, details = call.ending()
    assert (code, text in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


def test_request_that_does_not_parse_ends_the_stream(shared_gateway: GatewayThread) -> None:
    with grpc.insecure_channel(shared_gateway.address) as channel:
        for method in ("Produce", "Consume"):
            raw = channel.stream_stream(
                f"/dexorder.kafka.v1.KafkaService/{method}",
                request_serializer=lambda data: data,
                response_deserializer=lambda data: data,
            )
            call = raw(iter([b"\xff\xff"]), timeout=WAIT_SECONDS)
            with pytest.raises(grpc.RpcError):
                next(call)
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
