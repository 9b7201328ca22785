"""A reader of one topic by a group's member, which takes and acks as a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dexorder_common.kafka.group_member import GroupMember
from dexorder_common.kafka.member_commits import TopicReading
from dexorder_common.kafka.partition_queue import Delivery, ReadRules
from dexorder_common.kafka.topic_queue import TopicQueue
from dexorder_common.model.errors import SuiteError
from tests.rig.kafka import create_topic
from tests.rig.processes import until

WAIT_SECONDS = 60.0
OPTIONS = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 50}
QUICK_TO_LOSE = {"session.timeout.ms": 3_000, "max.poll.interval.ms": 3_000}
"""Options of a member that loses its partitions 3 s after its last poll."""


class GroupReader:
    """Member of the group of the topic's name, or ``member``, another reader's, which reads this topic as well."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        rules: ReadRules | None = None,
        *,
        group: str = "",
        member: GroupMember | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.topic = topic
        self.queue: TopicQueue[Any] = TopicQueue(rules or ReadRules())
        self.failures: list[SuiteError | None] = []
        given = {**OPTIONS, "bootstrap.servers": bootstrap, **options}
        self.member = member or GroupMember(group or topic, given, commit_seconds=0.05)
        self._came, self._ended = threading.Event(), threading.Event()
        self.reading = TopicReading(topic, self.queue, self._came.set, self._end)
        assert self.member.read(self.reading)

    def _end(self, failure: SuiteError | None) -> None:
        self.failures.append(failure)
        self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop to read the topic and wait for its end."""
        self.member.stop(self.reading)
        self.wait_for_end()

    def wait_for_end(self) -> SuiteError | None:
        """Wait until the topic is no longer read; return the reason."""
        assert self._ended.wait(WAIT_SECONDS)
        return self.failures[0]

    def wait_assigned(self, *partitions: int) -> Self:
        """Wait until exactly these partitions are assigned, and begun."""
        until(lambda: sorted(self.progress()) == sorted(partitions), explain=lambda: f"{self.progress()}")
        return self

    def progress(self) -> dict[int, Any]:
        with self.member.lock:
            return self.queue.progress()

    def take_some(self, limit: int = 500) -> list[Delivery[Any]]:
        """Return the records that are there."""
        with self.member.lock:
            found = self.queue.take(limit, now_ns=time.monotonic_ns())
        self.member.resume_fetching()
        return found

    def take(self, count: int, *, ack: bool = True, seconds: float = WAIT_SECONDS) -> dict[int, list[int]]:
        """Return the offsets of the next ``count`` records by partition."""
        found: dict[int, list[int]] = {}
        deadline = time.monotonic() + seconds
        while (left := count - sum(map(len, found.values()))) > 0:
            assert time.monotonic() < deadline, f"{left} of {count} did not come; {self.progress()}"
            self._came.clear()
            deliveries = self.take_some(left)
            for each in deliveries:
                found.setdefault(each.partition, []).append(each.offset)
                if ack:
                    self.ack(each.partition, each.offset)
            if not deliveries:
                self._came.wait(0.05)
        return found

    def ack(self, partition: int, *offsets: int) -> None:
        with self.member.lock:
            for offset in offsets:
                self.queue.ack(partition, offset)

    def wait_committed(self) -> None:
        """Wait until Kafka has all acks."""

        def committed() -> bool:
            with self.member.lock:
                return not self.queue.commits()

        until(committed)


def write(bootstrap: str, topic: str, partition: int, count: int, value: bytes = b"%d") -> None:
    """Write numbered records to a partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, value % number, partition=partition)
    assert producer.flush(WAIT_SECONDS) == 0


def create_again(bootstrap: str, topic: str, partitions: int) -> None:
    """Delete a topic and create it, at once."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS)

    def created() -> bool:
        try:
            create_topic(bootstrap, partitions, name=topic)
        except KafkaException:  # the old one is not gone yet
            return False
        return True

    until(created)


def create_placed(bootstrap: str, topic: str, brokers: list[int]) -> str:
    """Create a topic with a partition on each of these brokers."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    placed = NewTopic(topic, len(brokers), replica_assignment=[[broker] for broker in brokers])
    admin.create_topics([placed])[topic].result(WAIT_SECONDS)
    until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == len(brokers))
    return topic
