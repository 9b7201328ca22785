"""SetOffsets against a real broker: groups without members, groups read here, and groups read elsewhere."""

from __future__ import annotations

import grpc
import pytest

from dexorder_gateway.kafkapixy.cluster_config import CLIENT_ID
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import (
    WAIT_SECONDS,
    Filled,
    GatewayThread,
    MakeTopic,
    StartGateway,
    Write,
    committed,
    numbers,
    refusal,
)
from tests.rig.processes import until

pytestmark = pytest.mark.kafka
Place = pb.PartitionOffset


def set_offsets(gateway: GatewayThread, topic: str, *offsets: Place, group: str = "") -> None:
    gateway.stub.SetOffsets(pb.SetOffsetsRq(topic=topic, group=group or topic, offsets=offsets))


def places(gateway: GatewayThread, topic: str, group: str = "") -> list[Place]:
    """Partition, offset and metadata of a SetOffsets request."""
    found = gateway.stub.GetOffsets(pb.GetOffsetsRq(topic=topic, group=group or topic)).offsets
    return [Place(partition=each.partition, offset=each.offset, metadata=each.metadata) for each in found]


def places_read(gateway: GatewayThread, topic: str, count: int) -> list[tuple[int, int]]:
    answers = [gateway.consume(topic, no_ack=True) for _ in range(count)]
    return sorted((answer.partition, answer.offset) for answer in answers)


# ---- groups without members


def test_group_without_members_starts_at_the_set_offset(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    for partition in range(2):
        write(topic, *numbers(5), partition=partition)
    wanted = [Place(partition=0, offset=3), Place(partition=1, offset=5)]
    set_offsets(shared_gateway, topic, *wanted)
    assert places(shared_gateway, topic) == wanted
    set_offsets(shared_gateway, topic, Place(partition=1, offset=4))  # the other one does not change
    assert places_read(shared_gateway, topic, 3) == [(0, 3), (0, 4), (1, 4)]


def test_sparse_acks_that_were_set_are_not_delivered(filled: Filled, kafka: str) -> None:
    topic, gateway = filled(6)
    set_offsets(gateway, topic, Place(metadata="BBBC"))  # as Kafka-Pixy shows it
    assert committed(kafka, topic) == (0, "BBBC./2H4")
    assert gateway.offsets(topic, 3) == [0, 2, 5]


def test_offsets_of_one_group_can_be_set_for_another(filled: Filled) -> None:
    topic, gateway = filled(6, offsets_commit_interval_ms=20)
    gateway.offsets(topic, 5)
    gateway.ack(topic, 1, 3, 4)
    until(lambda: places(gateway, topic) == [Place(metadata="BBBC")])
    set_offsets(gateway, topic, *places(gateway, topic), group=f"{topic}-copy")
    assert places(gateway, topic, f"{topic}-copy") == places(gateway, topic)
    assert gateway.offsets(topic, 3, group=f"{topic}-copy") == [0, 2, 5]


def test_note_of_the_caller_stays_until_an_ack(filled: Filled) -> None:
    topic, gateway = filled(3, offsets_commit_interval_ms=20)
    wanted = [Place(offset=1, metadata="moved by händ, see note 7")]
    set_offsets(gateway, topic, *wanted)
    assert places(gateway, topic) == wanted
    assert gateway.offsets(topic, 1) == [1]
    set_offsets(gateway, topic, *wanted)  # this time by a member
    assert gateway.offsets(topic, 1) == [1]
    assert places(gateway, topic) == wanted
    gateway.ack(topic, 1)
    until(lambda: places(gateway, topic) == [Place(offset=2)])


def test_empty_request_is_accepted(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    set_offsets(shared_gateway, topic)
    assert places(shared_gateway, topic) == [Place(offset=-1)]


# ---- groups that are read here


def test_reading_continues_at_the_set_offset(filled: Filled, start_gateway: StartGateway, kafka: str) -> None:
    topic, gateway = filled(150, offsets_commit_interval_ms=20)
    assert gateway.offsets(topic, 20) == list(range(20))
    gateway.ack(topic, *range(10))
    for start in (5, 140, 0):
        set_offsets(gateway, topic, Place(offset=start))
        assert committed(kafka, topic) == (start, "")
        assert gateway.offsets(topic, 10) == list(range(start, start + 10))
    gateway.ack(topic, 0)
    until(lambda: committed(kafka, topic) == (1, ""))
    set_offsets(gateway, topic, Place(offset=7))
    gateway.stop()
    assert start_gateway().offsets(topic, 1) == [7]


def test_earlier_deliveries_are_forgotten_and_their_acks_skip_nothing(filled: Filled) -> None:
    topic, gateway = filled(4, long_polling_timeout_ms=500)
    assert gateway.offsets(topic, 4) == [0, 1, 2, 3]
    set_offsets(gateway, topic, Place(offset=2))
    gateway.ack(topic, 0, 3)  # late: 0 is passed, 3 will be delivered again
    found = [gateway.consume(topic, auto_ack=True).offset for _ in range(2)]
    assert found == [2, 3]
    request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
    assert refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND


def test_waiting_caller_gets_the_record_at_the_set_offset(filled: Filled) -> None:
    topic, gateway = filled(2, long_polling_timeout_ms=30_000)
    for _ in range(2):
        gateway.consume(topic, auto_ack=True)
    waiting = gateway.stub.ConsumeNAck.future(pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True))
    set_offsets(gateway, topic, Place(offset=1))
    assert waiting.result(WAIT_SECONDS).offset == 1


def test_other_partitions_of_the_group_are_not_affected(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    for partition in range(2):
        write(topic, *numbers(3), partition=partition)
    gateway = start_gateway()
    assert len(places_read(gateway, topic, 6)) == 6
    set_offsets(gateway, topic, Place(partition=1, offset=1))
    assert places_read(gateway, topic, 2) == [(1, 1), (1, 2)]
    gateway.ack(topic, 0)


def test_offsets_of_an_unread_topic_are_set_through_another_topic(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, other = kafka_topic(1), kafka_topic(1)
    write(topic, *numbers(3))
    write(other, *numbers(3))
    gateway = start_gateway()
    assert gateway.offsets(other, 1, group=topic) == [0]
    set_offsets(gateway, topic, Place(offset=2))
    assert gateway.offsets(topic, 1) == [2]
    assert gateway.offsets(other, 1, group=topic) == [1]


# ---- groups that are read elsewhere


def test_group_that_another_gateway_reads_is_refused(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, other = kafka_topic(1), kafka_topic(1)
    write(topic, *numbers(3))
    reads, asked = start_gateway(offsets_commit_interval_ms=20), start_gateway()
    assert reads.consume(topic, auto_ack=True).offset == 0
    until(lambda: committed(kafka, topic) == (1, ""))
    code, text = refusal(lambda: set_offsets(asked, topic, Place(offset=0)))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert f"partitions [0] of topic {topic!r} are read by {CLIENT_ID} at 127.0.0.1" in text
    code, text = refusal(lambda: set_offsets(asked, other, Place(offset=0), group=topic))
    assert (code, f"{CLIENT_ID} at 127.0.0.1" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    assert committed(kafka, topic) == (1, "")
    assert reads.offsets(topic, 1) == [1]
    reads.stop()
    set_offsets(asked, topic, Place(offset=0))
    assert asked.offsets(topic, 1) == [0]


def test_shared_group_is_set_at_the_gateway_that_reads_the_partition(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    gateways = [start_gateway(long_polling_timeout_ms=200, offsets_commit_interval_ms=20) for _ in range(2)]
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)
    found: dict[int, GatewayThread] = {}

    def both_read() -> bool:
        for partition in range(2):
            write(topic, b"v", partition=partition)
        found.clear()
        for gateway in gateways:
            try:
                found[gateway.stub.ConsumeNAck(request).partition] = gateway
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND
        return set(found.values()) == set(gateways)

    until(both_read)
    whole = [Place(partition=partition) for partition in range(2)]
    for gateway in gateways:
        (elsewhere,) = (partition for partition in range(2) if found[partition] is not gateway)
        for wanted in (whole, whole[elsewhere : elsewhere + 1]):
            code, text = refusal(lambda: set_offsets(gateway, topic, *wanted))  # noqa: B023
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert f"partitions [{elsewhere}]" in text
    for partition, gateway in found.items():
        set_offsets(gateway, topic, whole[partition])
        assert gateway.consume(topic, auto_ack=True).offset == 0


# ---- refusals


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([Place(), Place(offset=1)], "offsets[1].partition 0 is a duplicate"),
        ([Place(partition=1), Place(offset=4)], "offsets[1].offset 4 is beyond the end 3 of partition 0"),
    ],
)
def test_bad_offsets_are_refused_by_name_and_none_is_set(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write, offsets: list[Place], text: str
) -> None:
    topic = kafka_topic(2)
    write(topic, *numbers(3))
    code, details = refusal(lambda: set_offsets(shared_gateway, topic, *offsets))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text in details
    assert {place.offset for place in places(shared_gateway, topic)} == {-1}


def test_longest_metadata_is_kept(shared_gateway: GatewayThread, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    wanted = Place(metadata="é" * 2_000)
    set_offsets(shared_gateway, topic, wanted)
    assert places(shared_gateway, topic) == [wanted]
