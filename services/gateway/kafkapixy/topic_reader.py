"""Thread that reads one topic as a member of a Kafka group, and commits its acks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from services.common.kafka.client_errors import read_error
from services.common.model.errors import SuiteError, Unavailable
from services.gateway.kafkapixy.cluster_config import ClusterConfig
from services.gateway.kafkapixy.commits import Commit, StartPosition, start_position
from services.gateway.kafkapixy.delivery_queue import DeliveryQueue
from services.gateway.kafkapixy.group_commits import commit_now, committed, metadata_of
from services.gateway.kafkapixy.options import consumer_options
from services.gateway.kafkapixy.types import NotAssigned, Record

log = structlog.get_logger(__name__)
_POLL_SECONDS = 0.1
_MAX_FETCH_RECORDS = 1_000
_REBALANCE_TIMEOUT_SECONDS = 10.0
_SET_OFFSETS_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class _CommitRequest:
    topic: str
    wanted: Mapping[int, Commit]
    done: Future[None]


class TopicReader:
    """Fetches into ``queue`` under ``lock``, and calls ``wake`` with the lock held when records came.

    Args:
        ended: Called from the thread as its last action, with the failure or None.

    Attributes:
        member_id: Id that Kafka gave this member of the group; empty before it has joined.
        paused: Partitions that are not fetched, because nobody takes their fetched records.
    """

    def __init__(
        self,
        config: ClusterConfig,
        group: str,
        topic: str,
        queue: DeliveryQueue[Record],
        lock: threading.Lock,
        wake: Callable[[], None],
        ended: Callable[[SuiteError | None], None],
    ) -> None:
        consume = config.consume
        self._topic = topic
        self._earliest = consume.new_group_start == "earliest"
        self._commit_seconds = consume.offsets_commit_interval_ms / 1_000
        self._options: dict[str, Any] = {**consumer_options(config), "group.id": group, "on_commit": self._committed}
        self._log = log.bind(cluster=config.name, group=group, topic=topic)
        self._queue = queue
        self._lock = lock
        self._wake = wake
        self._ended = ended
        self._stopping = threading.Event()
        self._room = threading.Event()
        self.paused: set[int] = set()
        self._committing: dict[int, Commit] | None = None
        self._next_commit_s = 0.0
        self._commit_requests: deque[_CommitRequest] | None = deque()
        self.member_id = ""
        self._thread = threading.Thread(target=self._run, name=f"consume-{group}-{topic}", daemon=True)

    def start(self) -> None:
        """Start the thread; it joins the group."""
        self._thread.start()

    def resume_fetching(self) -> None:
        """Fetch again after a record was taken from the buffer; any thread."""
        self._room.set()

    def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> Future[None]:
        """Commit as a member of the group, and continue from there if the topic is the one read here; any thread.

        Cancelling the future before it runs withdraws the request. It raises NotAssigned for a partition of our topic
        that is not ours now, KafkaException if Kafka refuses, Unavailable if the reader ends first; then nothing is
        committed.
        """
        done: Future[None] = Future()
        with self._lock:
            if self._commit_requests is None:
                done.set_exception(Unavailable(f"topic {self._topic!r} is no longer read"))
            else:
                self._commit_requests.append(_CommitRequest(topic, wanted, done))
        self._room.set()
        return done

    def stop(self) -> None:
        """Commit, leave the group and end; any thread."""
        self._stopping.set()
        self._room.set()

    def _run(self) -> None:
        failure: SuiteError | None = None
        try:
            consumer = Consumer(self._options)
            try:
                consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
                while not self._stopping.is_set():
                    self._step(consumer)
            finally:
                self._leave(consumer)
        except SuiteError as error:
            failure = error
        except KafkaException as error:
            failure = Unavailable(f"topic {self._topic!r}: {error.args[0].str()}")
        except Exception as error:
            self._log.exception("reader crashed")
            failure = Unavailable(f"topic {self._topic!r}: {type(error).__name__}")
        finally:
            self._refuse_commit_requests()
            self._ended(failure)

    def _step(self, consumer: Consumer) -> None:
        if self._commit_requests:
            self._serve_commit_requests(consumer)
        else:
            self._commit_regularly(consumer)
        self._resume(consumer)
        with self._lock:
            full = {p: count for p, count in self._queue.full_partitions().items() if p not in self.paused}
            if full:
                self._room.clear()
        if not full:
            self._fetch(consumer, _POLL_SECONDS, min(self._queue.buffer.records, _MAX_FETCH_RECORDS))
        elif not self._room.wait(_POLL_SECONDS):
            self._pause(consumer, full)
            self._fetch(consumer, 0, 1)  # Kafka needs polls to keep the membership

    def _pause(self, consumer: Consumer, full: Mapping[int, int]) -> None:
        with self._lock:
            fetching = set(self._queue.partitions) - full.keys() - self.paused
            partitions = self._queue.partitions_to_pause(full, fetching)
        consumer.pause([TopicPartition(self._topic, p) for p in partitions])
        self.paused.update(partitions)

    def _fetch(self, consumer: Consumer, timeout_seconds: float, limit: int) -> None:
        first: Any = consumer.poll(timeout_seconds)
        if first is None:
            return
        fetched: dict[int, list[tuple[int, Record]]] = {}
        for message in (first, *(consumer.consume(limit - 1, 0) if limit > 1 else ())):
            if (error := message.error()) is None:
                fetched.setdefault(message.partition(), []).append((message.offset(), message))
            else:
                self._check_error(error)
        with self._lock:
            for partition, records in fetched.items():
                self._queue.fetched(partition, records)
            self._wake()

    def _resume(self, consumer: Consumer) -> None:
        if not self.paused:
            return
        with self._lock:
            ready = [p for p in self.paused if self._queue.has_room(p)]
        if ready:
            self.paused.difference_update(ready)
            consumer.resume([TopicPartition(self._topic, p) for p in ready])

    def _check_error(self, error: KafkaError) -> None:
        if (failure := read_error(error, self._topic)) is not None:
            raise failure
        self._log.warning("error of Kafka's client", reason=error.str())  # librdkafka recovers by itself

    def _commit_regularly(self, consumer: Consumer) -> None:
        now_s = time.monotonic()
        if self._committing is not None or now_s < self._next_commit_s:
            return
        self._next_commit_s = now_s + self._commit_seconds
        with self._lock:
            commits = self._queue.commits()
        if commits:
            self._committing = commits
            consumer.commit(offsets=self._positions(commits), asynchronous=True)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take Kafka's answer to an asynchronous commit; partitions that failed are committed again later."""
        commits = self._committing or {}
        self._committing = None
        failed = {p.partition for p in partitions if p.error is not None}
        if error is not None or failed:
            self._log.warning("commit failed, will be retried", reason=error.str() if error else str(sorted(failed)))
        if error is None:
            with self._lock:
                self._queue.committed({p: c for p, c in commits.items() if p not in failed})

    def _positions(self, commits: dict[int, Commit]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, p, offset, metadata) for p, (offset, metadata) in commits.items()]

    def _serve_commit_requests(self, consumer: Consumer) -> None:
        # librdkafka could retry a commit in progress, which would then overwrite ours: wait for its answer first.
        while self._commit_requests and self._committing is None:
            with self._lock:
                request = self._commit_requests.popleft()
            if request.done.set_running_or_notify_cancel():
                self._serve_commit_request(consumer, request)

    def _serve_commit_request(self, consumer: Consumer, request: _CommitRequest) -> None:
        try:
            starts = self._starts(consumer, request.wanted) if request.topic == self._topic else {}
            positions = [TopicPartition(request.topic, p, *commit) for p, commit in request.wanted.items()]
            commit_now(consumer, positions, _SET_OFFSETS_TIMEOUT_SECONDS)
        except Exception as error:
            request.done.set_exception(error)
            return
        with self._lock:
            for partition, start in starts.items():
                self._queue.restart(partition, start)
        request.done.set_result(None)
        self._seek(consumer, starts)

    def _starts(self, consumer: Consumer, wanted: Mapping[int, Commit]) -> dict[int, StartPosition]:
        with self._lock:
            others = sorted(wanted.keys() - set(self._queue.partitions))
        if others:
            raise NotAssigned(f"partitions {others} are not assigned to this gateway")
        starts = {}
        for partition, (offset, metadata) in wanted.items():
            place = TopicPartition(self._topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=_SET_OFFSETS_TIMEOUT_SECONDS)
            start = start_position(offset, metadata, low=low, high=high, earliest=self._earliest)
            # The commit stays as it was set, whatever its metadata is, until an ack changes it.
            starts[partition] = replace(start, committed=True)
        return starts

    def _seek(self, consumer: Consumer, starts: Mapping[int, StartPosition]) -> None:
        paused = self.paused & starts.keys()
        if paused:
            self.paused -= paused
            consumer.resume([TopicPartition(self._topic, p) for p in paused])
        for partition, start in starts.items():
            consumer.seek(TopicPartition(self._topic, partition, start.offset))
        if starts:
            self._log.info("offsets were set", partitions={p: s.offset for p, s in starts.items()})

    def _refuse_commit_requests(self) -> None:
        with self._lock:
            left = self._commit_requests or ()
            self._commit_requests = None
        for request in left:
            if request.done.set_running_or_notify_cancel():
                request.done.set_exception(Unavailable(f"topic {self._topic!r} is no longer read"))

    # Kafka's client calls the next three inside poll().

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.member_id = consumer.memberid() or ""
        if not partitions:
            return
        starts = []
        for part in committed(consumer, partitions, _REBALANCE_TIMEOUT_SECONDS):
            low, high = consumer.get_watermark_offsets(part, timeout=_REBALANCE_TIMEOUT_SECONDS)
            start = start_position(part.offset, metadata_of(part), low=low, high=high, earliest=self._earliest)
            if start.warning:
                self._log.warning("commit was not used as it is", partition=part.partition, reason=start.warning)
            with self._lock:
                starts.append((part.partition, self._queue.resume_position(part.partition, start, end=high)))
        with self._lock:
            for partition, start in starts:
                self._queue.assign(partition, start)
        consumer.incremental_assign([TopicPartition(self._topic, p, start.offset) for p, start in starts])
        self._next_commit_s = 0.0  # a new group's first position is committed at once
        self._log.info("assigned", partitions={p: s.offset for p, s in starts})

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = [p.partition for p in partitions]
        self._hand_over(consumer, revoked)
        self._log.info("revoked", partitions=revoked)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        # Another member may have them already: a commit would be refused. If none had (Kafka was unavailable for longer
        # than the session), we continue where we were: records acked meanwhile are not delivered again.
        self.paused.difference_update(p.partition for p in partitions)
        with self._lock:
            for part in partitions:
                self._queue.lose(part.partition)
        self._log.warning("lost", partitions=[p.partition for p in partitions])

    def _hand_over(self, consumer: Consumer, partitions: list[int]) -> None:
        """Commit before partitions go to another member; after a failure it delivers some records again."""
        self.paused.difference_update(partitions)
        with self._lock:
            last = {p: self._queue.revoke(p) for p in partitions}
        commits = {p: commit for p, commit in last.items() if commit is not None}
        try:
            if commits:
                consumer.commit(offsets=self._positions(commits), asynchronous=False)
        except KafkaException as error:
            self._log.warning("last commit failed, records will be delivered again", reason=error.args[0].str())

    def _leave(self, consumer: Consumer) -> None:
        with self._lock:
            owned = self._queue.partitions
        self._hand_over(consumer, owned)
        consumer.close()
