"""A group's member while one of two brokers is away: the other's partitions are read on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from dexorder_common.kafka.partition_queue import END, ReadRules
from tests.integration.services.common.kafka.group_reader import (
    QUICK_TO_LOSE,
    WAIT_SECONDS,
    GroupReader,
    create_placed,
    write,
)
from tests.rig.processes import until
from tests.two_brokers import TwoBrokers

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.fixture
def brokers(two_brokers: TwoBrokers) -> Iterator[TwoBrokers]:
    """Return the cluster; a broker that the test killed is started again."""
    yield two_brokers
    if two_brokers.second is None:
        two_brokers.start_second()


NEWEST = ReadRules(new_group_start=END)


@pytest.mark.parametrize(
    ("has_commits", "rules"),
    [
        pytest.param(True, ReadRules(), id="commits-earliest"),
        pytest.param(False, NEWEST, id="none-newest"),
        pytest.param(True, NEWEST, id="commits-newest", marks=pytest.mark.nightly),
        pytest.param(False, ReadRules(), id="none-earliest", marks=pytest.mark.nightly),
    ],
)
def test_partition_without_a_leader_delays_only_itself(
    brokers: TwoBrokers, rules: ReadRules, has_commits: bool, request: pytest.FixtureRequest
) -> None:
    topic = create_placed(brokers.bootstrap, request.node.name.replace("[", ".").strip("]"), [1, 2, 1, 2])
    if has_commits:
        with GroupReader(brokers.bootstrap, topic, rules) as reader:
            reader.wait_assigned(0, 1, 2, 3).wait_committed()
    brokers.kill_second()
    with GroupReader(brokers.bootstrap, topic, rules) as reader:
        until(lambda: reader.progress().keys() >= {0, 2})  # the others begin as well where they have commits
        for partition in (0, 2):
            write(brokers.bootstrap, topic, partition, 20)
        assert reader.take(40) == {0: list(range(20)), 2: list(range(20))}
        assert reader.queue.partitions == [0, 1, 2, 3]
        brokers.start_second()
        reader.wait_assigned(0, 1, 2, 3)
        for partition in (1, 3):
            write(brokers.bootstrap, topic, partition, 20)
        assert reader.take(40) == {1: list(range(20)), 3: list(range(20))}


OFFSETS = "__consumer_offsets"


def leaders(bootstrap: str) -> dict[int, int]:
    """Return the coordinators, by partition of the groups' offsets, after they have returned to their first places."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_SECONDS)
    found = admin.list_topics(OFFSETS, timeout=10).topics[OFFSETS].partitions
    return {number: partition.leader for number, partition in found.items()}


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def test_coordinator_that_moves_stops_nothing(brokers: TwoBrokers) -> None:
    bootstrap = brokers.bootstrap
    topic = create_placed(bootstrap, "coordinator-moves", [1])
    with GroupReader(bootstrap, topic, group="any"):  # so that Kafka has the topic of the groups' offsets
        until(lambda: 2 in leaders(bootstrap).values(), explain=lambda: f"{leaders(bootstrap)}")
    second = {number for number, broker in leaders(bootstrap).items() if broker == 2}
    group = next(name for n in range(100) if abs(java_hash(name := f"group-{n}")) % 4 in second)
    with GroupReader(bootstrap, topic, group=group) as reader:
        write(bootstrap, topic, 0, 10)
        reader.take(10)
        reader.wait_committed()
        brokers.kill_second()
        write(bootstrap, topic, 0, 10)
        assert reader.take(10) == {0: list(range(10, 20))}
        reader.wait_committed()
    with GroupReader(bootstrap, topic, group=group) as again:
        write(bootstrap, topic, 0, 1)
        assert again.take(1) == {0: [20]}


@pytest.mark.parametrize(
    "count", [pytest.param(20, id="shorter", marks=pytest.mark.nightly), pytest.param(1_000, id="longer")]
)
def test_lost_log_of_the_same_topic_is_noticed_and_its_new_records_are_read(brokers: TwoBrokers, count: int) -> None:
    """As after an unclean election, the topic keeps its id, and the leader has another log."""
    topic = create_placed(brokers.bootstrap, f"lost-log-{count}", [2])
    with GroupReader(brokers.bootstrap, topic) as reader:
        write(brokers.bootstrap, topic, 0, 500)
        reader.take(500)
        reader.wait_committed()
        brokers.kill_second()
        shutil.rmtree(brokers.second_data / f"{topic}-0")
        brokers.start_second()
        write(brokers.bootstrap, topic, 0, count, b"new-%d")
        seen: set[bytes] = set()

        def all_seen() -> bool:
            for each in reader.take_some():
                seen.add(each.record.value())
                reader.ack(each.partition, each.offset)
            return {b"new-%d" % number for number in range(count)} <= seen

        until(all_seen, explain=lambda: f"{len(seen)} seen, {reader.progress()}")
        reader.wait_committed()
        assert (reader.queue.gone_back, reader.progress()[0].lowest_unacked) == (1, count)


def test_log_that_was_lost_under_another_member_is_noticed_by_the_one_that_takes_over(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client knows the partition's new leaders already, so librdkafka does not compare the log."""
    topic = create_placed(brokers.bootstrap, "taken-over", [2, 2])
    with (
        GroupReader(brokers.bootstrap, topic) as reader,
        GroupReader(brokers.bootstrap, topic, options=QUICK_TO_LOSE) as other,
    ):
        until(lambda: len(reader.queue.partitions) == len(other.queue.partitions) == 1)
        (lost,) = other.queue.partitions
        write(brokers.bootstrap, topic, lost, 500)
        other.take(500)
        other.wait_committed()
        frozen = threading.Event()
        monkeypatch.setattr(other.member, "_step", lambda _: frozen.wait(WAIT_SECONDS))
        brokers.kill_second()
        shutil.rmtree(brokers.second_data / f"{topic}-{lost}")
        brokers.start_second()
        write(brokers.bootstrap, topic, lost, 1_000, b"new-%d")
        seen: set[bytes] = set()

        def all_seen() -> bool:
            seen.update(each.record.value() for each in reader.take_some())
            return len(seen) == 1_000

        until(all_seen, explain=lambda: f"{len(seen)} seen, {reader.progress()}")
        assert reader.queue.gone_back == 1
        monkeypatch.undo()
        frozen.set()
