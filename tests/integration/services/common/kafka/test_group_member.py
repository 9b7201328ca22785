"""What must not stop a member of a group, and what it must not skip; on a real broker."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from dexorder_common.kafka.member_commits import NotAssigned, NotRead
from dexorder_common.kafka.partition_queue import END, ReadRules
from dexorder_common.model.errors import NotAllowed, Unavailable
from tests.integration.services.common.kafka.group_reader import (
    QUICK_TO_LOSE,
    WAIT_SECONDS,
    GroupReader,
    create_again,
    write,
)
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
MakeTopic = Callable[[int], str]
NEWEST = ReadRules(new_group_start=END)


def topic_id(kafka: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka})  # must live until the result
    return str(admin.describe_topics(TopicCollection([topic]))[topic].result(WAIT_SECONDS).topic_id)


# ---- pauses


def test_full_buffers_pause_fetching_and_nothing_is_skipped(kafka: str, kafka_topic: MakeTopic) -> None:
    topic, count = kafka_topic(2), 1_200
    for partition in range(2):
        write(kafka, topic, partition, count)
    found: dict[int, list[int]] = {0: [], 1: []}
    with GroupReader(kafka, topic) as reader:
        for pauses in range(5):
            until(lambda: reader.queue.paused == {0, 1})
            for partition, offsets in reader.take(250 if pauses < 4 else 2 * count - 1_000).items():
                found[partition] += offsets
    assert found == {0: list(range(count)), 1: list(range(count))}
    assert reader.failures == [None]


@pytest.mark.parametrize("how", ["another member joins and leaves", "the session is lost"])
def test_pause_ends_when_a_partition_goes_away_and_returns(
    kafka: str, kafka_topic: MakeTopic, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_topic(2)
    for partition in range(2):
        write(kafka, topic, partition, 200)
    with GroupReader(kafka, topic, options=QUICK_TO_LOSE) as reader:
        until(lambda: reader.queue.paused == {0, 1})
        if how == "the session is lost":
            step = reader.member._step

            def step_late(consumer: Consumer) -> None:
                time.sleep(3.5)  # longer than max.poll.interval.ms
                step(consumer)

            monkeypatch.setattr(reader.member, "_step", step_late)
            until(lambda: reader.queue.partitions == [])
            monkeypatch.undo()
        else:
            with GroupReader(kafka, topic) as other:
                until(lambda: len(other.queue.partitions) == 1)
        reader.wait_assigned(0, 1)
        for partition in range(2):
            write(kafka, topic, partition, 100)
        found = reader.take(600)
    assert {p: sorted(offsets) for p, offsets in found.items()} == {0: list(range(300)), 1: list(range(300))}


# ---- several topics of a group


def test_topics_of_a_group_share_a_member_and_come_and_go(kafka: str, kafka_topic: MakeTopic) -> None:
    topics = [kafka_topic(1) for _ in range(3)]
    for topic in topics:
        write(kafka, topic, 0, 10)
    first = GroupReader(kafka, topics[0], group=topics[0])
    first.take(10)
    readers = [GroupReader(kafka, topic, member=first.member) for topic in topics[1:]]
    for reader in readers:
        assert reader.take(10) == {0: list(range(10))}
    first.stop()
    again = GroupReader(kafka, topics[0], member=first.member)
    for topic in topics:
        write(kafka, topic, 0, 5)
    for reader in (again, *readers):
        assert reader.take(5) == {0: list(range(10, 15))}
    for reader in (again, *readers):
        reader.stop()
    assert not first.member.read(first.reading)


def test_topic_that_is_stopped_and_read_again_at_once_continues(kafka: str, kafka_topic: MakeTopic) -> None:
    topic, other = kafka_topic(2), kafka_topic(1)
    write(kafka, topic, 1, 10)
    kept = GroupReader(kafka, other, group=other)
    first = GroupReader(kafka, topic, member=kept.member)
    first.take(4)
    for _ in range(3):
        first.member.stop(first.reading)
        first = GroupReader(kafka, topic, member=kept.member)
    assert first.take(6) == {1: list(range(4, 10))}
    first.stop()
    kept.stop()


# ---- set offsets


def test_reading_continues_at_set_offsets(kafka: str, kafka_topic: MakeTopic) -> None:
    topic, count = kafka_topic(2), 2_000
    for partition in range(2):
        write(kafka, topic, partition, count)
    reader = GroupReader(kafka, topic)

    def set_offsets(wanted: dict[int, int]) -> None:
        commits = {partition: (offset, "") for partition, offset in wanted.items()}
        reader.member.set_offsets(topic, commits).result(WAIT_SECONDS)

    def take_each(partitions: dict[int, int], least: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {0: [], 1: []}
        while any(len(found[partition]) < least for partition in partitions):
            for partition, offsets in reader.take(1, ack=False).items():
                found[partition] += offsets
        return found

    reader.wait_assigned(0, 1)
    for paused in (True, False):
        for wanted in ({0: 7}, {1: 1_000, 0: 3}, {0: 1_500, 1: 0}):
            set_offsets({0: 0, 1: 0})
            if paused:
                until(lambda: reader.queue.paused == {0, 1})
            set_offsets(wanted)
            found = take_each(wanted, 100)
            for partition, start in wanted.items():
                assert found[partition] == list(range(start, start + len(found[partition])))
    with pytest.raises(NotAssigned, match=r"\[2\]"):
        reader.member.set_offsets(topic, {0: (0, ""), 2: (0, "")}).result(WAIT_SECONDS)
    reader.stop()
    with pytest.raises(NotRead, match="no longer read"):
        reader.member.set_offsets(topic, {0: (0, "")}).result(WAIT_SECONDS)


# ---- nothing is skipped


def test_added_partitions_are_read_from_their_beginning(kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    with GroupReader(kafka, topic, NEWEST) as reader:
        reader.wait_assigned(0)
        write(kafka, topic, 0, 5)
        reader.take(5)
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT_SECONDS)
        until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 3)
        for partition in range(3):
            write(kafka, topic, partition, 30)
        # librdkafka looks for new partitions every 5 s; the rest is for a rebalance and a loaded machine
        assert reader.take(90, seconds=20) == {0: list(range(5, 35)), 1: list(range(30)), 2: list(range(30))}


def test_new_group_without_commits_starts_at_the_end_where_it_is_told_so(kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(2)
    write(kafka, topic, 1, 5)
    with GroupReader(kafka, topic, NEWEST) as reader:
        reader.wait_assigned(0, 1).wait_committed()
        write(kafka, topic, 1, 3)
        assert reader.take(3) == {1: [5, 6, 7]}


@pytest.mark.parametrize("count", [200, 800], ids=["shorter", "longer"])
def test_topic_created_again_while_it_is_read_is_read_from_its_beginning(
    kafka: str, kafka_topic: MakeTopic, count: int
) -> None:
    topic = kafka_topic(1)
    write(kafka, topic, 0, 500)
    with GroupReader(kafka, topic, ReadRules()) as reader:
        reader.take(500)
        reader.wait_committed()
        reader.member.note_topic_id(topic, topic_id(kafka, topic))
        create_again(kafka, topic, 1)
        write(kafka, topic, 0, count)
        reader.member.note_topic_id(topic, topic_id(kafka, topic))  # as the services do every few seconds
        seen: set[int] = set()
        while len(seen) < count:
            seen.update(*reader.take(1).values())
        reader.wait_committed()
        assert reader.progress()[0].lowest_unacked == count
        assert reader.queue.gone_back >= 1, "counted; the consumer may see it before the services do"
    with GroupReader(kafka, topic) as again:
        write(kafka, topic, 0, 1)
        assert again.take(1) == {0: [count]}


def test_deleted_topic_stops_nothing_and_is_read_when_it_returns(kafka: str, kafka_topic: MakeTopic) -> None:
    topic, other = kafka_topic(2), kafka_topic(1)
    write(kafka, topic, 0, 50)
    quick = {"topic.metadata.refresh.interval.ms": 500}
    with (
        GroupReader(kafka, topic, NEWEST, options=quick) as reader,
        GroupReader(kafka, other, member=reader.member) as beside,
    ):
        reader.wait_assigned(0, 1)
        write(kafka, topic, 0, 50)
        reader.take(50)
        reader.member.note_topic_id(topic, topic_id(kafka, topic))
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
        until(lambda: reader.queue.partitions == [])
        write(kafka, other, 0, 3)
        assert beside.take(3) == {0: [0, 1, 2]}
        create_topic(kafka, 1, name=topic)
        write(kafka, topic, 0, 200)
        # The last commit in the old topic may reach the new one, whose id tells that its beginning is to be read.
        reader.member.note_topic_id(topic, topic_id(kafka, topic))
        seen: set[int] = set()
        while len(seen) < 200:
            seen.update(*reader.take(1).values())


def test_log_that_went_back_while_nobody_read_it_is_read_from_its_beginning(kafka_jars: Path, tmp_path: Path) -> None:
    """The epoch of the leaders tells, which a restart of the broker raises and another topic begins at 0."""
    broker = RunningKafka(tmp_path)
    try:
        topic = create_topic(broker.bootstrap, 1)
        broker.stop(signal.SIGTERM)
        broker = RunningKafka(tmp_path, (broker.port, int(_controller_port(tmp_path))))
        write(broker.bootstrap, topic, 0, 500)
        with GroupReader(broker.bootstrap, topic) as reader:
            reader.take(500)
            reader.wait_committed()
        commits = _commit_of(broker.bootstrap, topic)
        create_again(broker.bootstrap, topic, 1)
        _commit_again(broker.bootstrap, topic, commits)  # as if the cluster was restored: the deletion removed it
        write(broker.bootstrap, topic, 0, 700)
        with GroupReader(broker.bootstrap, topic) as reader:
            assert reader.take(700) == {0: list(range(700))}
    finally:
        broker.stop(signal.SIGKILL)


def _controller_port(suite_dir: Path) -> str:
    text = (suite_dir / "kafka/server.properties").read_text()
    return text.split("CONTROLLER://127.0.0.1:")[1].split()[0]


def _commit_of(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    consumer.close()
    assert found.leader_epoch
    return found.offset, found.leader_epoch


def _commit_again(bootstrap: str, topic: str, commit: tuple[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    part = TopicPartition(topic, 0, commit[0], "", leader_epoch=commit[1])
    consumer.commit(offsets=[part], asynchronous=False)
    consumer.close()


# ---- membership


def test_fenced_static_member_ends_with_the_reason(kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    write(kafka, topic, 0, 5)
    first = GroupReader(kafka, topic, options={"group.instance.id": "one"})
    first.take(5)
    first.wait_committed()
    with GroupReader(kafka, topic, options={"group.instance.id": "one"}) as second:
        failure = first.wait_for_end()
        assert isinstance(failure, Unavailable) and "fenced" in str(failure)
        write(kafka, topic, 0, 5)
        assert second.take(5) == {0: [5, 6, 7, 8, 9]}


@pytest.fixture
def guarded_broker(kafka_jars: Path, tmp_path: Path) -> RunningKafka:
    """Run a broker with ACLs; what has none is allowed."""
    rules = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
    return RunningKafka(tmp_path, properties=lambda *_: f"{rules}allow.everyone.if.no.acl.found=true\n")


def test_refused_topic_ends_alone_and_a_refused_group_ends_with_the_reason(guarded_broker: RunningKafka) -> None:
    kafka = guarded_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": kafka})

    def deny(kind: ResourceType, name: str) -> None:
        where = (kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
        acl = AclBinding(*where, AclOperation.READ, AclPermissionType.DENY)
        for done in admin.create_acls([acl]).values():
            done.result(WAIT_SECONDS)
        any_acl = AclBindingFilter(*where, AclOperation.ANY, AclPermissionType.ANY)
        until(lambda: len(admin.describe_acls(any_acl).result(WAIT_SECONDS)) == 1)

    try:
        topic, other = create_topic(kafka, 1), create_topic(kafka, 1)
        write(kafka, topic, 0, 5)
        reader = GroupReader(kafka, topic, group="g")
        with GroupReader(kafka, other, member=reader.member) as beside:
            reader.take(5)
            deny(ResourceType.TOPIC, topic)
            failure = reader.wait_for_end()
            assert isinstance(failure, NotAllowed) and topic in str(failure)
            write(kafka, other, 0, 3)
            assert beside.take(3) == {0: [0, 1, 2]}
            deny(ResourceType.GROUP, "g")
            failure = beside.wait_for_end()
            assert isinstance(failure, NotAllowed) and "'g'" in str(failure)
    finally:
        guarded_broker.stop(signal.SIGKILL)
