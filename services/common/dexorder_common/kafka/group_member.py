"""Member of a Kafka group: one thread with one consumer, for all topics that this process reads in the group.

The topics' queues decide when the thread fetches, commits and takes part in rebalances. Only it uses the consumer. The
queues are shared with the callers, under one lock that is never held across a blocking call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dexorder_common.kafka.client_errors import error_text, group_error, topic_error
from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.member_commits import (
    MemberCommits,
    NotRead,
    Place,
    TopicReading,
    committed,
    metadata_of,
    position_of,
)
from dexorder_common.kafka.partition_queue import BEGINNING
from dexorder_common.model.errors import SuiteError

log = structlog.get_logger(__name__)
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.1, 0.25
_MAX_FETCH_RECORDS = 1_000
_QUERY_SECONDS = 10.0
_REJOIN_SECONDS = 1.0
MEMBER_OPTIONS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A position that the log does not have: before it after retention, behind it if it went back.
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    # A member that joins or leaves, even for another topic of the group, does not interrupt other partitions.
    "partition.assignment.strategy": "cooperative-sticky",
    # Partitions that are added to a topic are found after this time.
    "topic.metadata.refresh.interval.ms": 5_000,
}
"""Options on which `GroupMember` relies."""


class GroupMember:
    """Call ``read`` for each topic; the thread ends when the last one is stopped.

    Args:
        options: Properties of the consumer; they extend `MEMBER_OPTIONS`.

    Attributes:
        lock: Guards the queues.
        member_id: Id that Kafka gave this member of the group; empty before it has joined.
    """

    def __init__(self, group: str, options: Mapping[str, Any], *, commit_seconds: float, **labels: str) -> None:
        self.lock = threading.Lock()
        self.member_id = ""
        self._group = group
        # A commit is late by up to one poll, and each costs processor time.
        self._poll_seconds = min(max(commit_seconds / 2, _MIN_POLL_SECONDS), _MAX_POLL_SECONDS)
        self._log = log.bind(group=group, **labels)
        self._topics: dict[str, TopicReading] = {}
        self._commits = MemberCommits(self.lock, self._topics, commit_seconds, self._log)
        self._options = {**MEMBER_OPTIONS, **options, "group.id": group, "on_commit": self._commits.on_commit}
        self._stopping: list[TopicReading] = []
        self._waiting: list[TopicReading] = []
        self._subscribed: dict[str, TopicReading] = {}
        self._topic_ids: dict[str, str] = {}
        self._room = threading.Event()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"group-{group}", daemon=True)

    # ---- for any thread

    @property
    def topics(self) -> list[str]:
        """Topics that are read."""
        return list(self._topics)

    def read(self, reading: TopicReading) -> bool:
        """Start to read a topic that is not read or was stopped; return False if the thread has ended."""
        with self.lock:
            if self._closed:
                return False
            if reading.topic in self._topics:
                self._waiting.append(reading)  # for the end of the one that was stopped
            else:
                self._topics[reading.topic] = reading
            if self._thread.ident is None:
                self._thread.start()
        self._room.set()
        return True

    def stop(self, reading: TopicReading) -> None:
        """Commit, read the topic no longer, and call its ``ended``."""
        with self.lock:
            if reading not in self._stopping and reading in (*self._topics.values(), *self._waiting):
                self._stopping.append(reading)
        self._room.set()

    def resume_fetching(self) -> None:
        """Fetch again after records were taken from a queue."""
        if not self._room.is_set():  # a caller for each record; to set it takes a lock
            self._room.set()

    def note_topic_id(self, topic: str, topic_id: str) -> None:
        """Read a topic from its start if its id has changed: it was deleted and created again."""
        before = self._topic_ids.get(topic)
        self._topic_ids[topic] = topic_id
        if before is not None and before != topic_id:
            with self.lock:
                if (reading := self._topics.get(topic)) is not None:
                    reading.queue.go_back()
            self._log.error("topic was created again, reading it from its start", topic=topic)

    def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> Future[None]:
        """Commit as a member of the group, and continue from there if the topic is one read here.

        Cancelling the future before it runs withdraws the request. It raises NotAssigned for a partition of a topic
        read here that is not ours now, KafkaException if Kafka refuses, NotRead if the thread ends first; in these
        cases no offset is committed.
        """
        with self.lock:
            if self._closed:
                done: Future[None] = Future()
                done.set_exception(NotRead(f"group {self._group!r} is no longer read"))
            else:
                done = self._commits.request(topic, wanted)
        self._room.set()
        return done

    # ---- the thread

    def _run(self) -> None:
        failure: SuiteError | None = None
        while failure is None and not self._close_if_unused():
            try:
                self._read_until_unused()
            except BaseException as error:  # a KafkaError, which is not an Exception, among others
                failure = group_error(error, self._group)
                if failure is None:
                    ours = None if isinstance(error, KafkaException) else error
                    self._log.error("consumer failed, joining again", reason=error_text(error), exc_info=ours)
                    time.sleep(_REJOIN_SECONDS)
        self._end(failure)

    def _read_until_unused(self) -> None:
        self._failure = None
        self._subscribed = {}
        self._commits.reset()
        consumer = Consumer(self._options)
        try:
            while not self._unused():
                self._end_stopped(consumer)
                self._subscribe(consumer)
                self._step(consumer)
                if self._failure is not None:
                    raise self._failure
        finally:
            self._leave(consumer)

    def _unused(self) -> bool:
        """Return whether every topic was stopped: these end only when the group is left."""
        return not self._waiting and all(reading in self._stopping for reading in list(self._topics.values()))

    def _close_if_unused(self) -> bool:
        with self.lock:
            self._closed = self._unused()
        return self._closed

    def _end(self, failure: SuiteError | None) -> None:
        with self.lock:
            self._closed = True
            topics = [*self._topics.values(), *self._waiting]
            self._topics.clear()
            self._waiting.clear()
        self._commits.refuse(NotRead(f"group {self._group!r} is no longer read"))
        for reading in topics:
            reading.ended(failure)

    def _end_topic(self, reading: TopicReading, failure: SuiteError | None) -> None:
        topic = reading.topic
        with self.lock:
            if reading in self._waiting:
                self._waiting.remove(reading)
            else:
                del self._topics[topic]
                if (after := next((each for each in self._waiting if each.topic == topic), None)) is not None:
                    self._waiting.remove(after)
                    self._topics[topic] = after
            if reading in self._stopping:
                self._stopping.remove(reading)
        reading.ended(failure)

    def _end_stopped(self, consumer: Consumer) -> None:
        for reading in list(self._stopping):
            self._commits.hand_over(consumer, [(reading.topic, p) for p in reading.queue.partitions])
            self._end_topic(reading, None)

    def _subscribe(self, consumer: Consumer) -> None:
        topics = dict(self._topics)
        if topics == self._subscribed or not topics:
            return
        before, self._subscribed = self._subscribed, topics
        if topics.keys() != before.keys():
            consumer.subscribe(
                sorted(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        # The partitions of a topic that was read until now may still be assigned; then they are not assigned again.
        added = {topic for topic, reading in topics.items() if before.get(topic) is not reading}
        if kept := [part for part in consumer.assignment() if part.topic in added]:
            consumer.incremental_unassign(kept)
            self._begin(consumer, kept)

    def _step(self, consumer: Consumer) -> None:
        self._commits.step(consumer)
        self._reposition(consumer)
        with self.lock:
            ready = [TopicPartition(t, p) for t, reading in self._topics.items() for p in reading.queue.resume()]
            full = {t: found for t, reading in self._topics.items() if (found := reading.queue.full_partitions())}
            if full:
                self._room.clear()
        if ready:
            consumer.resume(ready)
        if not full:
            self._fetch(consumer, self._poll_seconds, _MAX_FETCH_RECORDS)
        elif not self._room.wait(self._poll_seconds):
            self._pause(consumer, full)
            self._fetch(consumer, 0, 1)  # Kafka needs polls to keep the membership

    def _pause(self, consumer: Consumer, full: Mapping[str, dict[int, int]]) -> None:
        with self.lock:
            others = len(self._topics) > 1
            paused = [
                TopicPartition(topic, partition)
                for topic, partitions in full.items()
                if (reading := self._topics.get(topic)) is not None
                for partition in reading.queue.pause(partitions, others=others)
            ]
        consumer.pause(paused)

    def _fetch(self, consumer: Consumer, timeout_seconds: float, limit: int) -> None:
        first: Any = consumer.poll(timeout_seconds)
        if first is None:
            return
        fetched: dict[Place, list[Message]] = {}
        for message in (first, *(consumer.consume(limit - 1, 0) if limit > 1 else ())):
            error = message.error()
            place = message.topic(), message.partition()
            if error is None:
                fetched.setdefault(place, []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._add(place, fetched.pop(place, []), end=message.offset())
            else:
                self._check_error(message.topic(), error)
        for place, messages in fetched.items():
            self._add(place, messages)

    def _add(self, place: Place, messages: list[Message], end: int | None = None) -> None:
        topic, partition = place
        if (reading := self._topics.get(topic)) is None:
            return
        forward = True
        with self.lock:
            if messages:
                records: Any = [(message.offset(), message) for message in messages]
                first_epoch, epoch = (_known(message.leader_epoch()) for message in (messages[0], messages[-1]))
                forward = reading.queue.fetched(
                    partition, records, epoch=epoch, first_epoch=first_epoch, stamp_of=_stamp
                )
                reading.wake()
            if end is not None:
                forward &= reading.queue.log_end(partition, end)
        if not forward:
            self._log.error("log went back, reading it from its start", topic=topic, partition=partition)

    def _check_error(self, topic: str | None, error: KafkaError) -> None:
        """Act on an error that Kafka's client reports; it recovers by itself from errors that are only logged."""
        if (failure := group_error(KafkaException(error), self._group)) is not None:
            raise failure
        if error.fatal():
            raise KafkaException(error)
        reading = self._topics.get(topic) if topic else None
        if reading is not None and (refused := topic_error(error, reading.topic)) is not None:
            self._end_topic(reading, refused)
        self._log.warning("error of Kafka's client", topic=topic, reason=error.str())

    def _reposition(self, consumer: Consumer) -> None:
        with self.lock:
            wanted = [(r, p, at) for r in self._topics.values() for p, at in r.queue.positions().items()]
        for reading, partition, position in wanted:
            try:
                consumer.resume([TopicPartition(reading.topic, partition)])  # a later one would undo the seek
                consumer.seek(TopicPartition(reading.topic, partition, position))
            except KafkaException as error:  # just assigned and not fetched yet; the next step tries again
                self._log.debug("seek delayed", topic=reading.topic, partition=partition, reason=error_text(error))
                continue
            with self.lock:
                reading.queue.repositioned(partition, position)

    # ---- rebalances; Kafka's client calls these inside poll(), which would change an exception from them

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self.member_id = consumer.memberid() or ""
            self._begin(consumer, partitions)
        except BaseException as error:
            self._failure = error

    def _begin(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        wanted = [TopicPartition(p.topic, p.partition) for p in partitions if p.topic in self._topics]
        if not wanted:
            return
        found = committed(consumer, wanted, _QUERY_SECONDS)
        with_commits = self._topics_with_commits(consumer, found)
        starts = []
        for part in found:
            commit = (part.offset, metadata_of(part)) if part.offset >= 0 else None
            with self.lock:
                queue = self._topics[part.topic].queue
                epoch = _known(part.leader_epoch)
                new_group = part.topic not in with_commits
                start = queue.assign(part.partition, commit, new_group=new_group, epoch=epoch)
            epoch = epoch if 0 <= start <= part.offset else -1
            starts.append(position_of(part.topic, part.partition, start, epoch=epoch))
        consumer.incremental_assign(starts)
        consumer.resume(wanted)  # librdkafka keeps a pause over a revocation
        self._commits.soon()  # a new group's first position is committed at once
        self._log.info("assigned", partitions={f"{p.topic}/{p.partition}": p.offset for p in starts})

    def _topics_with_commits(self, consumer: Consumer, found: Sequence[TopicPartition]) -> set[str]:
        """Return the topics in which the group has commits, of those in ``found``."""
        with_commits = {part.topic for part in found if _is_commit(part.offset)}
        highest = {part.topic: max(p.partition for p in found if p.topic == part.topic) for part in found}
        others = [
            TopicPartition(topic, partition)
            for topic, last in highest.items()
            if topic not in with_commits
            for partition in range(last)
        ]
        if others:  # the partitions of other members
            found_others = committed(consumer, others, _QUERY_SECONDS)
            with_commits |= {part.topic for part in found_others if _is_commit(part.offset)}
        return with_commits

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.hand_over(consumer, [(p.topic, p.partition) for p in partitions])
        self._log.info("revoked", partitions=[f"{p.topic}/{p.partition}" for p in partitions])

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        # Another member may have them already: a commit would be refused.
        self._commits.stop_delivering((p.topic, p.partition) for p in partitions)
        self._log.warning("lost", partitions=[f"{p.topic}/{p.partition}" for p in partitions])

    def _leave(self, consumer: Consumer) -> None:
        self._commits.hand_over(
            consumer, [(t, p) for t, reading in list(self._topics.items()) for p in reading.queue.partitions]
        )
        consumer.close()


def _is_commit(offset: int) -> bool:
    """Return whether a group has a commit: ``BEGINNING``, which other programs commit, is none and starts there."""
    return offset >= 0 or offset == BEGINNING


def _stamp(message: Message) -> tuple[object, ...]:
    """Return values that distinguish a record from another log's record at its offset."""
    return message.timestamp(), message.leader_epoch(), message.key(), len(message)


def _known(epoch: int | None) -> int:
    return -1 if epoch is None else epoch
