"""Consume streams against a real broker, alone and with unary callers of the same group."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dexorder.testing.processes import until
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from services.gen.kafkapixy import kafkapixy_pb2 as pixy_pb
from tests.fixtures_gateway import WAIT_SECONDS, GatewayThread, MakeTopic, StartGateway, Write, committed
from tests.raw_headers import produce_raw
from tests.unit.services.gateway.kafkastream.calls import ConsumeCall, Place, ProduceCall, Record, places, records, span

pytestmark = pytest.mark.kafka
INVALID, CONFLICT = 3, 9


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def ack(call: ConsumeCall, batch: pb.RecordBatch) -> None:
    """Ack a batch and grant as much credit."""
    call.ack((batch.offsets[0], batch.offsets[-1]), partition=batch.partition, credit=len(batch.offsets))


def test_record_is_delivered_as_it_was_produced(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    given = [
        Record(b"v", b"k", headers=(("a", b"1"), ("a", b"\xff")), timestamp_ms=1_700_000_000_123),
        Record(b"", timestamp_ms=1),
        Record(key=b"gone", timestamp_ms=2),
    ]
    produce = ProduceCall(shared_gateway)
    produce.write(topic, *given)
    produce.cancel()
    call = ConsumeCall(shared_gateway, topic, credit=3)
    (batch,) = [next(call.batches())]
    call.cancel()
    assert (batch.partition, batch.redelivered) == (0, False)
    assert list(batch.offsets) == [0, 1, 2]
    assert records(batch) == given


def test_record_with_a_header_name_that_is_not_utf8_comes_without_headers(
    shared_gateway: GatewayThread, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    for headers in [(b"a", b"1")], [(b"a", b"1"), (b"n\xff", b"2")], [(b"b", b"2")]:
        produce_raw(kafka, topic, [b"x"] * 50, headers)
    for _ in range(2):  # records that the first stream did not ack go to the second
        call = ConsumeCall(shared_gateway, topic, credit=150)
        found: list[Record] = []
        for batch in call.batches():
            found += records(batch)
            if len(found) == 150:
                break
        call.cancel()
        assert [record.headers for record in found] == [(("a", b"1"),)] * 50 + [()] * 50 + [(("b", b"2"),)] * 50


def test_credit_limits_the_records_sent(shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(20))
    call = ConsumeCall(shared_gateway, topic)
    # The unary caller of the same group gets all records, as the stream has no credit.
    assert shared_gateway.offsets(topic, 2) == [0, 1]
    call.request(credit=3)
    assert call.offsets(3) == [2, 3, 4]
    assert shared_gateway.offsets(topic, 1) == [5]
    call.ack((2, 4))  # returns no credit
    assert shared_gateway.offsets(topic, 1) == [6]
    call.request(credit=1)
    call.request(credit=1)
    assert call.offsets(2) == [7, 8]
    assert shared_gateway.offsets(topic, 1) == [9]
    call.cancel()


def test_batches_are_limited_by_max_batch_records(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(10))
    call = ConsumeCall(shared_gateway, topic, credit=10, max_batch_records=4)
    seen: list[int] = []
    for batch in call.batches():
        assert 1 <= len(batch.offsets) <= 4
        seen += batch.offsets
        if len(seen) == 10:
            break
    call.cancel()
    assert seen == list(range(10))


def test_responses_fit_into_the_clients_default_limit(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, large = kafka_topic(1), b"x" * 700_000
    write(topic, *[large] * 9)
    first = ConsumeCall(shared_gateway, topic, credit=9)
    assert first.offsets(9) == list(range(9))  # 6.3 MB; a client accepts responses of 4 MiB
    first.cancel()
    again = ConsumeCall(shared_gateway, topic, credit=9)
    assert again.offsets(9) == list(range(9))
    again.cancel()


def test_acks_are_committed_like_unary_ones(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(20))
    gateway = start_gateway(offsets_commit_interval_ms=50)
    call = ConsumeCall(gateway, topic, credit=10)
    assert call.offsets(10) == list(range(10))
    call.ack((0, 2), (2, 3), (6, 7))
    until(lambda: committed(kafka, topic) == (4, "CC."))
    gateway.ack(topic, 4)  # a unary ack of a record that the stream has
    until(lambda: committed(kafka, topic) == (5, "BC."))
    call.ack((5, 9))
    until(lambda: committed(kafka, topic) == (10, ""))
    assert not call.refused
    gateway.stop()
    assert start_gateway().offsets(topic, 1) == [10]


def test_ack_of_records_of_others_is_refused(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(6))
    call = ConsumeCall(shared_gateway, topic, credit=1)
    assert call.offsets(1) == [0]
    assert shared_gateway.offsets(topic, 2) == [1, 2]
    call.request(credit=2)
    assert call.offsets(2) == [3, 4]
    call.ack((0, 4))
    assert call.refusal() == (span(1, 2), CONFLICT)
    call.ack((4, 7))
    assert call.refusal() == (span(5, 7), INVALID)
    call.ack((0, 0), partition=3)
    assert call.refusal() == (span(0, 0, partition=3), CONFLICT)
    call.cancel()
    assert shared_gateway.offsets(topic, 1) == [5]


def cancel(call: ConsumeCall) -> None:
    call.cancel()


def half_close(call: ConsumeCall) -> None:
    call.half_close()
    assert call.ending()[0] == grpc.StatusCode.OK


@pytest.mark.parametrize("end", [cancel, half_close])
def test_ended_stream_gives_back_its_unacked_records(
    shared_gateway: GatewayThread, kafka: str, kafka_topic: MakeTopic, write: Write, end: Any
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(6))
    call = ConsumeCall(shared_gateway, topic, credit=5)
    assert call.offsets(5) == [0, 1, 2, 3, 4]
    call.ack((0, 0), (2, 2))
    until(lambda: committed(kafka, topic) == (1, "BB."))
    end(call)
    # Its ack timeout is 300 s.
    assert shared_gateway.offsets(topic, 4) == [1, 3, 4, 5]


def test_stream_past_its_deadline_gives_back_its_unacked_records(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(5))
    seen = 0
    for timeout in (1, 4, 16):  # until one is long enough to get a record
        call = ConsumeCall(shared_gateway, topic, credit=4, timeout=timeout)
        with pytest.raises(grpc.RpcError):
            for batch in call.batches():
                seen += len(batch.offsets)
        call.half_close()
        assert call.call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        if seen:
            break
    assert seen
    assert shared_gateway.offsets(topic, 5) == [0, 1, 2, 3, 4]


def test_records_are_redelivered_after_the_ack_timeout_and_a_late_ack_counts(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(3))
    gateway = start_gateway(ack_timeout_seconds=1.0, offsets_commit_interval_ms=50)
    call = ConsumeCall(gateway, topic, credit=3)
    assert call.offsets(3) == [0, 1, 2]
    assert gateway.offsets(topic, 1) == [0]
    call.request(credit=2)
    batch = next(call.batches())
    assert (list(batch.offsets), batch.redelivered) == ([1, 2], True)
    call.ack((0, 2))
    until(lambda: committed(kafka, topic) == (3, ""))
    call.cancel()


def test_records_given_back_are_redelivered_at_once_up_to_max_retries(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(4))
    gateway = start_gateway(max_retries=1, offsets_commit_interval_ms=50)
    call = ConsumeCall(gateway, topic, credit=4)
    assert call.offsets(4) == [0, 1, 2, 3]
    call.request(give_backs=[span(1, 2)], acks=[span(0, 0)], credit=2)
    batch = next(call.batches())
    assert (list(batch.offsets), batch.redelivered) == ([1, 2], True)
    call.request(give_backs=[span(1, 1)], credit=1)
    until(lambda: committed(kafka, topic) == (2, ""))
    call.cancel()


def test_unacked_records_of_a_stream_are_limited_apart_from_unary_callers(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(20))
    gateway = start_gateway(stream_max_pending_messages=5, max_pending_messages=2, long_polling_timeout_ms=300)
    call = ConsumeCall(gateway, topic, credit=100)
    assert call.offsets(5) == [0, 1, 2, 3, 4]
    assert gateway.offsets(topic, 2) == [5, 6]
    request = pixy_pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
    with pytest.raises(grpc.RpcError) as caught:
        gateway.stub.ConsumeNAck(request)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    call.ack((1, 3))
    assert call.offsets(3) == [7, 8, 9]
    gateway.ack(topic, 5)
    assert gateway.offsets(topic, 1) == [10]
    call.cancel()


def test_unacked_bytes_of_a_stream_are_limited(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *[b"x" * 1_000] * 6)
    gateway = start_gateway(stream_max_pending_kbytes=2)
    call = ConsumeCall(gateway, topic, credit=100)
    assert call.offsets(3) == [0, 1, 2]
    assert gateway.offsets(topic, 1) == [3]
    call.ack((0, 2))
    assert call.offsets(2) == [4, 5]
    call.cancel()


def test_auto_ack_acks_sent_records_and_a_half_closed_stream_uses_its_credit(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(10))
    gateway = start_gateway()
    call = ConsumeCall(gateway, topic, credit=7, auto_ack=True)
    call.half_close()
    assert call.offsets(7) == list(range(7))
    assert call.ending()[0] == grpc.StatusCode.OK
    gateway.stop()
    assert committed(kafka, topic) == (7, "")


def test_streams_and_unary_callers_share_records_without_duplicates(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, count = kafka_topic(2), 600
    gateway = start_gateway(long_polling_timeout_ms=300)
    calls = [ConsumeCall(gateway, topic, max_batch_records=50) for _ in range(2)]
    found: list[list[Place]] = [[], [], []]
    stopping = threading.Event()

    def stream(number: int) -> None:
        try:
            for batch in calls[number].batches():
                found[number] += places(batch)
                ack(calls[number], batch)
        except grpc.RpcError:
            assert stopping.is_set()

    def ask() -> None:
        request = pixy_pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
        while not stopping.is_set():
            try:
                answer = gateway.stub.ConsumeNAck(request)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND
            else:
                found[2].append((answer.partition, answer.offset))

    threads = [threading.Thread(target=stream, args=(n,)) for n in range(2)] + [threading.Thread(target=ask)]
    for call in calls:
        call.request(credit=50)
    for thread in threads:
        thread.start()
    try:
        for start in range(0, count, 100):
            for partition in range(2):
                write(topic, *numbers(100, start), partition=partition)
        until(lambda: sum(map(len, found)) >= 2 * count)
    finally:
        stopping.set()
        for call in calls:
            call.cancel()
        for thread in threads:
            thread.join()
    assert sorted(place for places in found for place in places) == [(p, n) for p in range(2) for n in range(count)]
    assert all(found)


def test_partition_that_moved_refuses_the_ack_and_is_redelivered_by_its_owner(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    for partition in range(2):
        write(topic, *numbers(3), partition=partition)
    first = start_gateway()
    call = ConsumeCall(first, topic, credit=6)
    assert sorted(call.places(6)) == [(p, n) for p in range(2) for n in range(3)]
    second = start_gateway()
    other = ConsumeCall(second, topic, credit=6)
    places = other.places(3)
    (moved,) = {partition for partition, _ in places}
    assert [offset for _, offset in places] == [0, 1, 2]
    for partition in range(2):
        call.ack((0, 2), partition=partition)
    assert call.refusal() == (span(0, 2, partition=moved), CONFLICT)
    assert not call.refused
    call.cancel()
    other.cancel()


def test_partitions_of_a_stopping_gateway_move_without_loss_or_duplicate(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(4)
    gateways = [start_gateway(drain_seconds=20) for _ in range(2)]
    calls = [ConsumeCall(gateway, topic, credit=50) for gateway in gateways]
    found: list[list[Place]] = [[], []]

    def stream(number: int) -> None:
        call = calls[number]
        try:
            for batch in call.batches():
                found[number] += places(batch)
                ack(call, batch)
        except grpc.RpcError:
            return

    threads = [threading.Thread(target=stream, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    rounds = 0

    def write_round() -> None:
        nonlocal rounds
        for partition in range(4):
            write(topic, *numbers(5), partition=partition)
        rounds += 1

    def all_came() -> bool:
        return len({*found[0], *found[1]}) == 20 * rounds

    try:
        while not all(
            found
        ):  # until each owns a partition; a new member may get records again that were acked too late
            assert rounds < 500
            write_round()
            until(all_came)
        joined = 5 * rounds
        write_round()
        gateways[1].begin_stop()
        write_round()
        threads[1].join(WAIT_SECONDS)
        assert calls[1].call.code() == grpc.StatusCode.UNAVAILABLE
        until(all_came)
    finally:
        for call in calls:
            call.cancel()
        for thread in threads:
            thread.join()
    after = [place for place in found[0] + found[1] if place[1] >= joined]
    assert sorted(after) == [(p, n) for p in range(4) for n in range(joined, 5 * rounds)]


def test_idle_stream_keeps_the_group(start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(1))
    gateway = start_gateway(subscription_timeout_seconds=0.05)
    call = ConsumeCall(gateway, topic, credit=1)
    assert call.offsets(1) == [0]
    call.ack((0, 0))
    time.sleep(0.6)  # more than a tick: long enough to leave
    gateway.ack(topic, 0)  # the subscription still exists
    call.cancel()


def test_number_of_streams_of_a_group_and_topic_is_limited(start_gateway: StartGateway, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    gateway = start_gateway(channel_buffer_size=2)
    calls = [ConsumeCall(gateway, topic, credit=1) for _ in range(3)]
    until(lambda: any(call.call.code() for call in calls if call.call.done()))
    (refused,) = (call for call in calls if call.call.done())
    assert refused.ending()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in calls:
        call.cancel()


def test_stop_accepts_acks_and_then_ends_the_streams(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(4))
    gateway = start_gateway(drain_seconds=20)
    call = ConsumeCall(gateway, topic, credit=2)
    assert call.offsets(2) == [0, 1]
    idle = ConsumeCall(gateway, topic)
    call.request(credit=1)
    assert call.offsets(1) == [2]
    gateway.begin_stop()
    code, text = idle.ending()  # it has nothing to ack
    assert (code, "stopping" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    call.ack((0, 1), credit=10)
    call.ack((2, 2))
    assert call.ending()[0] == grpc.StatusCode.UNAVAILABLE
    gateway.stop()
    assert committed(kafka, topic) == (3, "")


BAD = [
    (pb.ConsumeRequest(credit=1), "start is missing"),
    (pb.ConsumeRequest(start=pb.ConsumeStart(cluster="other", topic="t", group="g")), "cluster 'other'"),
    (pb.ConsumeRequest(start=pb.ConsumeStart(topic="", group="g")), "topic ''"),
    (pb.ConsumeRequest(start=pb.ConsumeStart(topic="a b", group="g")), "topic 'a b'"),
    (pb.ConsumeRequest(start=pb.ConsumeStart(topic="t", group="")), "group ''"),
]
BAD_LATER = [
    (pb.ConsumeRequest(start=pb.ConsumeStart(topic="t", group="g")), "start is only accepted in the first request"),
    (pb.ConsumeRequest(acks=[span(0, 1), pb.OffsetRange(first=1, last=1)]), "acks[1].partition is missing"),
    (pb.ConsumeRequest(acks=[pb.OffsetRange(partition=0, last=1)]), "acks[0].first is missing"),
    (pb.ConsumeRequest(give_backs=[pb.OffsetRange(partition=0, first=1)]), "give_backs[0].last is missing"),
    (pb.ConsumeRequest(acks=[span(0, 1, partition=-1)]), "acks[0].partition -1 is negative"),
    (pb.ConsumeRequest(acks=[span(-1, 1)]), "acks[0].first -1 is negative"),
    (pb.ConsumeRequest(acks=[span(5, 4)]), "acks[0].last 4 is below first 5"),
    (pb.ConsumeRequest(give_backs=[span(0, 0)] * 10_001), "10001 give_backs in a request"),
]


def refusal(gateway: GatewayThread, *requests: pb.ConsumeRequest) -> tuple[grpc.StatusCode, str]:
    call = gateway.streams.Consume(iter(requests), timeout=30)
    with pytest.raises(grpc.RpcError):
        for _ in call:
            pass
    return call.code(), call.details() or ""


@pytest.mark.parametrize(("request_", "text"), BAD)
def test_bad_first_request_is_refused_by_name(
    shared_gateway: GatewayThread, request_: pb.ConsumeRequest, text: str
) -> None:
    code, details = refusal(shared_gateway, request_)
    assert (code, text in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


def test_bad_later_request_ends_the_stream_by_name(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    start = pb.ConsumeRequest(start=pb.ConsumeStart(topic=topic, group=topic), credit=1)
    for request, text in BAD_LATER:
        code, details = refusal(shared_gateway, start, request)
        assert (code, text in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


def test_missing_topic_is_not_found(shared_gateway: GatewayThread) -> None:
    start = pb.ConsumeStart(topic="no-such-topic", group="g")
    code, details = refusal(shared_gateway, pb.ConsumeRequest(start=start))
    assert (code, "no-such-topic" in details) == (grpc.StatusCode.NOT_FOUND, True)


def test_health_and_reflection_list_the_service(shared_gateway: GatewayThread) -> None:
    name = "dexorder.kafka.v1.KafkaService"
    with grpc.insecure_channel(shared_gateway.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING
        )
        assert name in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_stream_without_a_request_ends_with_ok(shared_gateway: GatewayThread) -> None:
    assert list(shared_gateway.streams.Consume(iter(()), timeout=30)) == []
