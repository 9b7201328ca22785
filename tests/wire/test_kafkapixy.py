"""Bytes of Kafka-Pixy's messages and names of its calls, as its clients use them."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb

PARTITION = pb.PartitionMetadata(partition=3, leader=-1, replicas=[1, 300], isr=[2])
PARTITION_HEX = (
    "0803"  # partition 3
    "10ffffffffffffffffff01"  # leader -1
    "1a0301ac02"  # replicas 1, 300
    "220102"  # isr 2
)
MESSAGES: list[tuple[Message, str]] = [
    (
        pb.PartitionOffset(
            partition=1, begin=2, end=300, count=298, offset=-1, lag=5, metadata="BBBC", sparse_acks="1-2,3-5"
        ),
        "0801100218ac0220aa0228ffffffffffffffffff0130053a04424242434207312d322c332d35",
    ),
    (pb.GetOffsetsRq(cluster="c", topic="t", group="g"), "0a01631201741a0167"),
    (pb.GetOffsetsRs(offsets=[pb.PartitionOffset(partition=1), pb.PartitionOffset(lag=2)]), "0a0208010a023002"),
    (
        pb.SetOffsetsRq(cluster="c", topic="t", group="g", offsets=[pb.PartitionOffset(partition=1, offset=7)]),
        "0a01631201741a0167220408012807",
    ),
    (pb.SetOffsetsRs(), ""),
    (pb.ListTopicRq(cluster="c", with_partitions=True), "0a01631001"),
    (PARTITION, PARTITION_HEX),
    (
        pb.ListTopicRs(topics={"t": pb.GetTopicMetadataRs(version=1)}),
        "0a070a017412020801",  # a map is key 1 and value 2 of each entry
    ),
    (pb.GetTopicMetadataRq(cluster="c", topic="t", with_partitions=True), "0a01631201741801"),
    (
        pb.GetTopicMetadataRs(version=1, config={"k": "v"}, partitions=[PARTITION]),
        f"080112060a016b1201761a{len(PARTITION_HEX) // 2:02x}" + PARTITION_HEX,
    ),
    (pb.ListConsumersRq(cluster="c", topic="t", group="g"), "0a01631201741a0167"),
    (
        pb.ListConsumersRs(groups={"g": pb.ConsumerGroups(consumers={"id": pb.ConsumerPartitions(partitions=[0, 2])})}),
        "0a110a0167120c0a0a0a02696412040a020002",
    ),
]


@pytest.mark.parametrize(("message", "data"), MESSAGES, ids=lambda value: type(value).__name__)
def test_bytes(message: Message, data: str) -> None:
    assert message.SerializeToString(deterministic=True).hex() == data
    assert type(message).FromString(bytes.fromhex(data)) == message


def test_unpacked_repeated_numbers_are_parsed_too() -> None:
    assert pb.ConsumerPartitions.FromString(b"\x08\x00\x08\x02").partitions == [0, 2]


def test_calls() -> None:
    service = pb.DESCRIPTOR.services_by_name["KafkaPixy"]
    assert service.full_name == "KafkaPixy"
    calls = {name: (m.input_type.name, m.output_type.name) for name, m in service.methods_by_name.items()}
    assert calls == {
        "Produce": ("ProdRq", "ProdRs"),
        "ConsumeNAck": ("ConsNAckRq", "ConsRs"),
        "Ack": ("AckRq", "AckRs"),
        "GetOffsets": ("GetOffsetsRq", "GetOffsetsRs"),
        "SetOffsets": ("SetOffsetsRq", "SetOffsetsRs"),
        "ListTopics": ("ListTopicRq", "ListTopicRs"),
        "ListConsumers": ("ListConsumersRq", "ListConsumersRs"),
        "GetTopicMetadata": ("GetTopicMetadataRq", "GetTopicMetadataRs"),
    }
