"""ConsumeNAck and Ack against a real broker."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
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


def test_record_is_delivered_as_it_was_produced(
    grpc_stub: rpc.KafkaPixyStub, shared_gateway: GatewayThread, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    headers = [pb.RecordHeader(key="a", value=b"1"), pb.RecordHeader(key="a", value=b"\xff")]
    grpc_stub.Produce(pb.ProdRq(topic=topic, key_value=b"k", message=b"v", headers=headers))
    grpc_stub.Produce(pb.ProdRq(topic=topic))
    grpc_stub.Produce(pb.ProdRq(topic=topic, key_undefined=True))
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


def test_acks_are_committed_while_running(filled: Filled, kafka: str) -> None:
    topic, gateway = filled(3, offsets_commit_interval_ms=50)
    gateway.offsets(topic, 3)
    gateway.ack(topic, 0, 2)
    until(lambda: committed(kafka, topic) == (1, "BB."))


def test_unacked_records_are_redelivered_lowest_first(filled: Filled) -> None:
    topic, gateway = filled(3, ack_timeout_seconds=1.0)
    assert gateway.offsets(topic, 3) == [0, 1, 2]
    gateway.ack(topic, 1)
    assert gateway.offsets(topic, 2) == [0, 2]


def test_partition_delivers_nothing_new_at_max_pending(filled: Filled) -> None:
    topic, gateway = filled(4, max_pending_messages=2, long_polling_timeout_ms=300)
    assert gateway.offsets(topic, 2) == [0, 1]
    request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
    assert refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND
    gateway.ack(topic, 1)
    assert gateway.offsets(topic, 1) == [2]


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
    impatient = refusal(lambda: gateway.stub.ConsumeNAck(request, timeout=0.2))
    assert impatient[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    cancelled = gateway.stub.ConsumeNAck.future(request)
    cancelled.cancel()
    write(topic, *numbers(2))
    assert [gateway.consume(topic, auto_ack=True).offset for _ in range(2)] == [0, 1]


BAD = [
    ("ConsumeNAck", pb.ConsNAckRq(topic="t", group=""), "group ''"),
    ("ConsumeNAck", pb.ConsNAckRq(topic="t", group="g", ack_partition=-1), "ack_partition -1"),
    ("ConsumeNAck", pb.ConsNAckRq(topic="t", group="g", ack_offset=-2), "ack_offset -2"),
    ("Ack", pb.AckRq(topic="t", group=""), "group ''"),
    ("Ack", pb.AckRq(topic="t", group="g", partition=-1), "partition -1"),
    ("Ack", pb.AckRq(topic="t", group="g", offset=-1), "offset -1"),
]


@pytest.mark.parametrize(("method", "request_", "text"), BAD)
def test_bad_request_is_refused_by_name(grpc_stub: rpc.KafkaPixyStub, method: str, request_: Any, text: str) -> None:
    code, details = refusal(lambda: getattr(grpc_stub, method)(request_))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text in details


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


def test_two_gateways_share_the_partitions_and_lose_nothing(
    filled: Filled, start_gateway: StartGateway, write: Write
) -> None:
    topic, first = filled(0, partitions=4, long_polling_timeout_ms=300)
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
    found: dict[GatewayThread, list[tuple[int, int]]] = {}
    stopping: set[GatewayThread] = set()

    def read(gateway: GatewayThread) -> None:
        while gateway not in stopping:
            try:
                answer = gateway.stub.ConsumeNAck(request)
                found.setdefault(gateway, []).append((answer.partition, answer.offset))
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND

    def records() -> list[tuple[int, int]]:
        return sorted(place for places in list(found.values()) for place in list(places))

    second = start_gateway(long_polling_timeout_ms=300)
    threads = {gateway: threading.Thread(target=read, args=(gateway,)) for gateway in (first, second)}
    for thread in threads.values():
        thread.start()
    count = 0

    def write_round() -> None:
        nonlocal count
        for partition in range(4):
            write(topic, b"", partition=partition)
        count += 1
        until(lambda: len(records()) >= 4 * count)

    try:
        while len(found) < 2:  # until each owns a partition
            assert count < 500
            write_round()
        stopping.add(second)
        threads[second].join()
        second.stop()
        write_round()
    finally:
        stopping.update(threads)
        for thread in threads.values():
            thread.join()
    assert records() == [(partition, offset) for partition in range(4) for offset in range(count)]


def test_pending_records_keep_the_group(filled: Filled) -> None:
    topic, gateway = filled(1, subscription_timeout_seconds=0.05, ack_timeout_seconds=20)
    gateway.offsets(topic, 1)
    time.sleep(0.6)  # more than a tick: long enough to leave
    gateway.ack(topic, 0)


@pytest.mark.parametrize("metadata", [b"BBBC", b"BB", b"any text"])
def test_metadata_of_others_skips_nothing(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write, metadata: bytes
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(8))
    commit_as_others_do(kafka, topic, topic, 2, metadata)
    gateway = start_gateway()
    assert gateway.offsets(topic, 6) == [2, 3, 4, 5, 6, 7]


def test_commit_beyond_the_end_starts_at_the_beginning(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(2))
    commit_as_others_do(kafka, topic, topic, 100, b"")
    gateway = start_gateway()
    assert gateway.offsets(topic, 2) == [0, 1]
