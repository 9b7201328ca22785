"""GetOffsets, ListTopics, ListConsumers and GetTopicMetadata against a real broker."""

from __future__ import annotations

import time

import grpc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from dexorder_gateway.kafkapixy.cluster_config import CLIENT_ID
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
    numbers,
    refusal,
)
from tests.rig.kafka import create_topic
from tests.rig.processes import until

pytestmark = pytest.mark.kafka


def offsets(stub: rpc.KafkaPixyStub, topic: str, group: str = "") -> list[pb.PartitionOffset]:
    return list(stub.GetOffsets(pb.GetOffsetsRq(topic=topic, group=group or topic)).offsets)


def consumers(stub: rpc.KafkaPixyStub, topic: str, group: str = "") -> dict[str, dict[str, list[int]]]:
    found = stub.ListConsumers(pb.ListConsumersRq(topic=topic, group=group)).groups
    return {
        name: {consumer: list(of.partitions) for consumer, of in group.consumers.items()}
        for name, group in found.items()
    }


# ---- GetOffsets


def test_group_without_commits_has_none(grpc_stub: rpc.KafkaPixyStub, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(2)
    write(topic, *numbers(3), partition=1)
    # new_group_start=earliest: the group would read all of it
    assert offsets(grpc_stub, topic) == [
        pb.PartitionOffset(partition=0, offset=-1),
        pb.PartitionOffset(partition=1, end=3, count=3, offset=-1, lag=3),
    ]


def test_new_group_that_would_start_at_the_end_has_no_lag(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(3))
    found = offsets(start_gateway(new_group_start="latest").stub, topic)
    assert found == [pb.PartitionOffset(end=3, count=3, offset=-1)]


def test_offsets_of_a_group_with_sparse_acks(filled: Filled) -> None:
    topic, gateway = filled(8, offsets_commit_interval_ms=20)
    assert gateway.offsets(topic, 5) == [0, 1, 2, 3, 4]
    gateway.ack(topic, 1, 3, 4)
    wanted = pb.PartitionOffset(end=8, count=8, lag=8, metadata="BBBC", sparse_acks="1-2,3-5")
    until(lambda: offsets(gateway.stub, topic) == [wanted])
    gateway.ack(topic, 0)
    wanted = pb.PartitionOffset(end=8, count=8, offset=2, lag=6, metadata="BC", sparse_acks="1-3")
    until(lambda: offsets(gateway.stub, topic) == [wanted])


def test_offsets_at_a_time(grpc_stub: rpc.KafkaPixyStub, kafka: str, kafka_topic: MakeTopic, write: Write) -> None:
    topic = kafka_topic(3)
    producer = Producer({"bootstrap.servers": kafka, "log_level": 2})
    begin_ms = time.time_ns() // 1_000_000 - 10_000  # the broker may delete older records at any time
    for after_ms in (1_000, 2_000, 3_000):
        producer.produce(topic, b"v", partition=0, timestamp=begin_ms + after_ms)
    producer.produce(topic, b"v", partition=1, timestamp=begin_ms + 1_000)
    assert producer.flush(WAIT_SECONDS) == 0

    def at(after_ms: int) -> list[int]:
        request = pb.GetOffsetsRq(topic=topic, group=topic, time_ms=begin_ms + after_ms)
        return [each.offset_at_time for each in grpc_stub.GetOffsets(request).offsets]

    # after the last record: the log's end, also of the empty partition
    assert [at(after_ms) for after_ms in (0, 1_001, 3_000, 3_001)] == [[0, 0, 0], [1, 1, 0], [2, 1, 0], [3, 1, 0]]
    assert not any(each.HasField("offset_at_time") for each in offsets(grpc_stub, topic))
    grpc_stub.SetOffsets(pb.SetOffsetsRq(topic=topic, group=topic, time_ms=begin_ms + 1_500))
    assert [each.offset for each in offsets(grpc_stub, topic)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [(b"BBBC", "BBBC"), (b"BB", "BB"), (b"any text", "any text"), (b"\xff\xfe\x00abc", ""), ("häh€".encode(), "häh€")],
)
def test_metadata_of_others_is_shown_and_skips_nothing(
    shared_gateway: GatewayThread, kafka: str, kafka_topic: MakeTopic, write: Write, metadata: bytes, shown: str
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(8))
    commit_as_others_do(kafka, topic, topic, 2, metadata)
    sparse_acks = set()
    for _ in range(5):
        (found,) = offsets(shared_gateway.stub, topic)
        # Foreign bytes that are text themselves can't be detected.
        assert found.metadata.startswith(shown)
        assert "\0" not in found.metadata
        assert (found.offset, found.lag) == (2, 6)
        sparse_acks.add(found.sparse_acks)
    assert "" in sparse_acks  # one read of five may have had our full stop in the foreign bytes
    assert shared_gateway.offsets(topic, 6) == [2, 3, 4, 5, 6, 7]


def test_truncated_log_begins_later(grpc_stub: rpc.KafkaPixyStub, kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    for value in numbers(5):
        grpc_stub.Produce(pb.ProdRq(topic=topic, message=value))
    cut_before(kafka, topic, 3)
    commit_as_others_do(kafka, topic, topic, 1, b"")
    assert offsets(grpc_stub, topic) == [pb.PartitionOffset(begin=3, end=5, count=2, offset=1, lag=4)]


def cut_before(kafka: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})  # kept alive: its futures end with it
    (done,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    done.result(timeout=30)


# ---- topics


@pytest.fixture
def odd_topic(kafka: str, kafka_topic: MakeTopic) -> str:
    """Create a topic with its own configuration."""
    return create_topic(kafka, 2, f"{kafka_topic(1)}-odd", {"retention.ms": "1234567"})


PARTITIONS = [pb.PartitionMetadata(partition=partition, leader=1, replicas=[1], isr=[1]) for partition in range(2)]


def test_topic_with_its_own_configuration(grpc_stub: rpc.KafkaPixyStub, odd_topic: str) -> None:
    config = {"retention.ms": "1234567"}
    found = grpc_stub.GetTopicMetadata(pb.GetTopicMetadataRq(topic=odd_topic, with_partitions=True))
    assert found == pb.GetTopicMetadataRs(version=1, config=config, partitions=PARTITIONS)
    found = grpc_stub.GetTopicMetadata(pb.GetTopicMetadataRq(topic=odd_topic))
    assert found == pb.GetTopicMetadataRs(version=1, config=config)


def test_all_topics(grpc_stub: rpc.KafkaPixyStub, odd_topic: str) -> None:
    plain = odd_topic.removesuffix("-odd")
    found = grpc_stub.ListTopics(pb.ListTopicRq(with_partitions=True)).topics
    assert found[odd_topic] == pb.GetTopicMetadataRs(
        version=1, config={"retention.ms": "1234567"}, partitions=PARTITIONS
    )
    assert found[plain] == pb.GetTopicMetadataRs(version=1, partitions=PARTITIONS[:1])
    found = grpc_stub.ListTopics(pb.ListTopicRq()).topics
    assert found[plain] == pb.GetTopicMetadataRs(version=1)
    assert not found[odd_topic].partitions


# ---- consumers


def test_consumers_of_a_topic(shared_gateway: GatewayThread, kafka_topic: MakeTopic, write: Write) -> None:
    topic, other = kafka_topic(3), kafka_topic(1)
    write(topic, *numbers(2))
    write(other, *numbers(1))
    for group in (topic, other):
        shared_gateway.consume(topic, group, auto_ack=True)
    shared_gateway.consume(other, auto_ack=True)
    stub = shared_gateway.stub
    mine = {CLIENT_ID: [0, 1, 2]}
    assert consumers(stub, topic) == {topic: mine, other: mine}
    assert consumers(stub, topic, topic) == {topic: mine}
    assert consumers(stub, other, other) == {other: {CLIENT_ID: [0]}}
    assert refusal(lambda: consumers(stub, other, topic))[0] == grpc.StatusCode.NOT_FOUND


def test_consumers_of_two_gateways_have_different_names(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    first, second = (start_gateway(long_polling_timeout_ms=200) for _ in range(2))
    request = pb.ConsNAckRq(topic=topic, group=topic, auto_ack=True)

    def both_read() -> bool:
        for gateway in (first, second):
            assert refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND  # noqa: B023
        return len(consumers(first.stub, topic).get(topic, ())) == 2

    until(both_read)
    found = consumers(second.stub, topic, topic)[topic]
    assert sorted(found.values()) == [[0], [1]]
    assert all(name.startswith(f"{CLIENT_ID}-") for name in found)


def test_unread_topic_has_no_consumers(grpc_stub: rpc.KafkaPixyStub, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    assert consumers(grpc_stub, topic) == {}
    assert consumers(grpc_stub, "no-such-topic") == {}
    code, text = refusal(lambda: consumers(grpc_stub, topic, "no-such-group"))
    assert (code, "no-such-group" in text) == (grpc.StatusCode.NOT_FOUND, True)


def test_queries_are_answered_while_the_gateway_stops(filled: Filled) -> None:
    topic, gateway = filled(1, drain_seconds=20)
    gateway.offsets(topic, 1)
    gateway.begin_stop()
    setting = pb.SetOffsetsRq(topic=topic, group=topic)

    def stopping() -> bool:
        try:
            gateway.stub.SetOffsets(setting)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAVAILABLE)
        return False

    until(stopping)
    assert offsets(gateway.stub, topic)[0].end == 1
    assert consumers(gateway.stub, topic, topic) == {topic: {CLIENT_ID: [0]}}
    assert topic in gateway.stub.ListTopics(pb.ListTopicRq()).topics
    assert gateway.stub.GetTopicMetadata(pb.GetTopicMetadataRq(topic=topic)).version == 1
    gateway.ack(topic, 0)
    gateway.stop()
