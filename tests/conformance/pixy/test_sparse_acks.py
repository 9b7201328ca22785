"""Records acked out of order are not delivered again by the next owner of their partition."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_process import StartProcess
from tests.gateway_thread import WAIT_SECONDS, Filled, MakeTopic, StartGateway, Write, committed, numbers
from tests.rig.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


def delete_before(kafka: str, topic: str, offset: int) -> None:
    """Truncate the log before this offset, as retention does."""
    admin, part = AdminClient({"bootstrap.servers": kafka}), TopicPartition(topic, 0, offset)
    admin.delete_records([part])[part].result(WAIT_SECONDS)


@pytest.mark.parametrize(
    ("records", "delivered", "acks", "commit"),
    [
        pytest.param(60, 50, range(1, 50, 2), "BB" * 25 + ".b0Oi", id="many gaps"),
        pytest.param(6, 5, [1, 3, 4, 4], "BBBC./2H4", id="one twice"),
        pytest.param(5, 1, [3], "DB.gvc5", id="before its delivery"),
    ],
)
def test_acked_records_are_not_delivered_again_after_a_stop(
    filled: Filled, start_gateway: StartGateway, kafka: str, records: int, delivered: int, acks: range, commit: str
) -> None:
    topic, first = filled(records)
    assert first.offsets(topic, delivered) == list(range(delivered))
    first.ack(topic, *acks)
    first.stop()
    assert committed(kafka, topic) == (0, commit)
    second = start_gateway(long_polling_timeout_ms=300)
    left = [offset for offset in range(records) if offset not in acks]
    assert second.offsets(topic, len(left)) == left
    second.ack(topic, *left)
    second.stop()
    assert committed(kafka, topic) == (records, "")


def test_committed_acks_survive_a_kill(
    start_process: StartProcess, start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(1)
    write(topic, *numbers(5))
    first = start_process(session_timeout_ms=6_000, offsets_commit_interval_ms=50).wait_ready()
    assert first.offsets(topic, 4) == [0, 1, 2, 3]
    first.ack(topic, 1, 3)
    until(lambda: committed(kafka, topic) == (0, "BBBB.p005"))
    first.kill()
    second = start_gateway(offsets_commit_interval_ms=20)
    assert second.offsets(topic, 3) == [0, 2, 4]
    second.ack(topic, 0, 2)
    until(lambda: committed(kafka, topic) == (4, ""))
    second.ack(topic, 4)
    until(lambda: committed(kafka, topic) == (5, ""))
    (found,) = second.stub.GetOffsets(pb.GetOffsetsRq(topic=topic, group=topic)).offsets
    assert (found.offset, found.lag, found.sparse_acks) == (5, 0, "")


def test_commit_before_the_logs_beginning_starts_there_and_keeps_the_acks(
    filled: Filled, start_gateway: StartGateway, kafka: str
) -> None:
    topic, first = filled(8)
    assert first.offsets(topic, 6) == [0, 1, 2, 3, 4, 5]
    first.ack(topic, 1, 4)
    first.stop()
    assert committed(kafka, topic) == (0, "BBCB.oxH/")
    delete_before(kafka, topic, 3)
    second = start_gateway()
    assert second.offsets(topic, 4) == [3, 5, 6, 7]


def test_commit_at_the_logs_end_waits_for_new_records(
    filled: Filled, start_gateway: StartGateway, kafka: str, write: Write
) -> None:
    topic, first = filled(2)
    for _ in range(2):
        first.consume(topic, auto_ack=True)
    first.stop()
    assert committed(kafka, topic) == (2, "")
    delete_before(kafka, topic, 2)
    second = start_gateway()
    write(topic, *numbers(1))
    assert second.offsets(topic, 1) == [2]
