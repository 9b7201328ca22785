"""Commits of a group: of a member, which follow from acks or are set by callers, and of any consumer.

Only the member's thread uses its consumer; the queues are shared under the member's lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from dexorder_common.kafka.client_errors import COORDINATOR_CHANGING, error_text
from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.topic_queue import TopicQueue
from dexorder_common.model.errors import SuiteError, Unavailable

Place = tuple[str, int]
"""Topic and partition."""
_COMMIT_SECONDS = 3.0
_RETRY_SECONDS = 0.2


class NotAssigned(SuiteError):
    """The partition is read by another member of the group, or by none."""


class NotRead(Unavailable):
    """The topic is no longer read here."""


@dataclass(eq=False, slots=True)
class TopicReading:
    """One topic of a member.

    Attributes:
        wake: Called from the thread when records came, with the lock held.
        ended: Called from the thread when the topic is no longer read, with the failure or None.
    """

    topic: str
    queue: TopicQueue[Any]
    wake: Callable[[], None]
    ended: Callable[[SuiteError | None], None]


@dataclass(frozen=True, slots=True)
class _Request:
    topic: str
    wanted: Mapping[int, Commit]
    done: Future[None]


class MemberCommits:
    """Commits of one member. All methods but `request` are for its thread.

    Args:
        lock: Guards ``topics`` and their queues.
    """

    def __init__(
        self,
        lock: threading.Lock,
        topics: Mapping[str, TopicReading],
        commit_seconds: float,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._lock = lock
        self._topics = topics
        self._commit_seconds = commit_seconds
        self._log = log
        self._committing: dict[Place, Commit] | None = None
        self._next_commit_s = 0.0
        self._requests: deque[_Request] = deque()

    def request(self, topic: str, wanted: Mapping[int, Commit]) -> Future[None]:
        """Commit the offsets that a caller gives, and continue there; any thread, with the lock held."""
        done: Future[None] = Future()
        self._requests.append(_Request(topic, wanted, done))
        return done

    def refuse(self, error: SuiteError) -> None:
        """Refuse the requests that wait."""
        with self._lock:
            requests, self._requests = self._requests, deque()
        for request in requests:
            if request.done.set_running_or_notify_cancel():
                request.done.set_exception(error)

    def reset(self) -> None:
        """Start with a new consumer, without a commit in progress."""
        self._committing = None

    def soon(self) -> None:
        """Commit at the next step."""
        self._next_commit_s = 0.0

    def step(self, consumer: Consumer) -> None:
        """Serve the requests, or commit the acks if it is time."""
        if self._requests:
            self._serve_requests(consumer)
        else:
            self._commit_regularly(consumer)

    def _positions(self, commits: Mapping[Place, Commit]) -> list[TopicPartition]:
        positions = []
        for (topic, partition), (offset, metadata) in commits.items():
            reading = self._topics.get(topic)
            epoch = -1 if reading is None else reading.queue.epoch(partition)
            positions.append(position_of(topic, partition, offset, metadata, epoch=epoch))
        return positions

    def _note_committed(self, commits: Mapping[Place, Commit]) -> None:
        with self._lock:
            for (topic, partition), commit in commits.items():
                if (reading := self._topics.get(topic)) is not None:
                    reading.queue.committed({partition: commit})

    def _commit_regularly(self, consumer: Consumer) -> None:
        now_s = time.monotonic()
        if self._committing is not None or now_s < self._next_commit_s:
            return
        self._next_commit_s = now_s + self._commit_seconds
        with self._lock:
            commits = {(t, p): c for t, r in self._topics.items() for p, c in r.queue.commits().items()}
        if commits:
            self._committing = commits
            consumer.commit(offsets=self._positions(commits), asynchronous=True)

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take Kafka's answer to an asynchronous commit; partitions that failed are committed again later."""
        commits, self._committing = self._committing or {}, None
        failed = {(p.topic, p.partition) for p in partitions if p.error is not None}
        if error is not None or failed:
            self._log.warning("commit failed, will be retried", reason=error.str() if error else str(sorted(failed)))
        if error is None:
            self._note_committed({place: commit for place, commit in commits.items() if place not in failed})

    def _serve_requests(self, consumer: Consumer) -> None:
        # librdkafka could retry a commit in progress, which would then overwrite ours: wait for its answer first.
        while self._requests and self._committing is None:
            request = self._requests.popleft()
            if request.done.set_running_or_notify_cancel():
                try:
                    self._set_offsets(consumer, request.topic, request.wanted)
                except Exception as error:
                    request.done.set_exception(error)
                else:
                    request.done.set_result(None)

    def _set_offsets(self, consumer: Consumer, topic: str, wanted: Mapping[int, Commit]) -> None:
        reading = self._topics.get(topic)
        if reading is not None and (others := sorted(wanted.keys() - set(reading.queue.partitions))):
            raise NotAssigned(f"partitions {others} are not assigned to this gateway")
        commit_now(consumer, self._positions({(topic, p): c for p, c in wanted.items()}), _COMMIT_SECONDS)
        if reading is not None:
            with self._lock:
                for partition, commit in wanted.items():
                    reading.queue.restart(partition, commit)
            self._log.info("offsets were set", topic=topic, partitions={p: c[0] for p, c in wanted.items()})

    # ---- partitions that go away

    def hand_over(self, consumer: Consumer, places: Iterable[Place]) -> None:
        """Commit before partitions go to another member; after a failure it delivers some records again."""
        commits = self.stop_delivering(places)
        try:
            if commits:
                commit_now(consumer, self._positions(commits), _COMMIT_SECONDS)
                self._note_committed(commits)
        except BaseException as error:
            self._log.warning("last commit failed, records will be delivered again", reason=error_text(error))

    def stop_delivering(self, places: Iterable[Place]) -> dict[Place, Commit]:
        """Return the last commits: they have every accepted ack, and later acks are refused."""
        commits = {}
        with self._lock:
            for topic, partition in places:
                if (reading := self._topics.get(topic)) is not None:
                    commits.update({(topic, p): c for p, c in reading.queue.commits([partition]).items()})
                    reading.queue.leave(partition)
        return commits


def position_of(topic: str, partition: int, offset: int, metadata: str = "", *, epoch: int) -> TopicPartition:
    """Return an offset with the epoch of the record before it, by which Kafka tells a log that went back."""
    if epoch < 0:
        return TopicPartition(topic, partition, offset, metadata)
    return TopicPartition(topic, partition, offset, metadata, leader_epoch=epoch)


def committed(consumer: Consumer, partitions: Sequence[TopicPartition], timeout_seconds: float) -> list[TopicPartition]:
    """Return the commits of the consumer's group; retry while its coordinator changes, then raise KafkaException."""
    deadline_s = time.monotonic() + timeout_seconds
    while True:
        try:
            found = consumer.committed(list(partitions), timeout=max(0.1, deadline_s - time.monotonic()))
            _raise_first(found)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_CHANGING or time.monotonic() + _RETRY_SECONDS > deadline_s:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return found


def commit_now(consumer: Consumer, positions: Sequence[TopicPartition], timeout_seconds: float) -> None:
    """Commit and wait for the answer; raise KafkaException if Kafka refuses or does not answer."""
    # A commit waits for a coordinator for up to a minute, which can't be configured; this query can.
    committed(consumer, positions, timeout_seconds)
    _raise_first(consumer.commit(offsets=list(positions), asynchronous=False) or ())


def metadata_of(part: TopicPartition) -> str:
    """Return a commit's metadata; bytes that are not UTF-8 are not ours."""
    try:
        return part.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


async def topic_ids(admin: AdminClient, topics: Collection[str], timeout_seconds: float) -> dict[str, str]:
    """Return the ids that topics got when they were created; none for a topic that does not exist or is not known."""
    if not topics:
        return {}
    described = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=timeout_seconds)
    found = await asyncio.gather(*map(asyncio.wrap_future, described.values()), return_exceptions=True)
    answers: Any = zip(described, found, strict=True)
    return {topic: str(answer.topic_id) for topic, answer in answers if not isinstance(answer, BaseException)}


def _raise_first(partitions: Sequence[TopicPartition]) -> None:
    for part in partitions:
        if part.error is not None:
            raise KafkaException(part.error)
