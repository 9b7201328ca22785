"""The thread that reads one topic as a member of a Kafka group, and commits its acks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from services.common.kafka.client_options import WithHeaders
from services.common.model.errors import NotAllowed, NotFound, SuiteError, Unavailable
from services.gateway.config import ClusterConfig
from services.gateway.kafkapixy.committing import commit_now, committed, metadata_of
from services.gateway.kafkapixy.delivery_queue import DeliveryQueue
from services.gateway.kafkapixy.options import consumer_options
from services.gateway.kafkapixy.start_position import Commit, StartPosition, start_position
from services.gateway.kafkapixy.types import NotAssigned

log = structlog.get_logger(__name__)
_POLL_SECONDS = 0.1
_MOST_RECORDS = 1_000
_ASK_SECONDS = 10.0
_SET_SECONDS = 3.0


class Record(WithHeaders, Protocol):
    """A record as Kafka's client has it; it is read where it is answered. Its length is its value's."""

    def __len__(self) -> int: ...

    def key(self) -> bytes | None:
        """None: it has none."""

    def value(self) -> bytes | None:
        """None: a null value."""

    def timestamp(self) -> tuple[int, int]:
        """Its kind, 0 for none, and milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Offsets and metadata that somebody wants committed."""

    topic: str
    wanted: Mapping[int, Commit]
    done: Future[None]


class TopicReader:
    """Fetches into ``offers`` under ``lock`` and calls ``wake`` with the lock held when something came.

    Args:
        ended: Called from the thread as its last act, with what went wrong or None.
    """

    def __init__(
        self,
        config: ClusterConfig,
        group: str,
        topic: str,
        offers: DeliveryQueue[Record],
        lock: threading.Lock,
        wake: Callable[[], None],
        ended: Callable[[SuiteError | None], None],
    ) -> None:
        rules = config.consume
        self._topic = topic
        self._earliest = rules.new_group_start == "earliest"
        self._commit_seconds = rules.offsets_commit_interval_ms / 1_000
        self._options: dict[str, Any] = {
            **consumer_options(config),
            "group.id": group,
            "on_commit": self._committed,
        }
        self._log = log.bind(cluster=config.name, group=group, topic=topic)
        self._queue = offers
        self._lock = lock
        self._wake = wake
        self._ended = ended
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._paused: set[int] = set()
        self._committing: dict[int, Commit] | None = None
        self._next_commit_s = 0.0
        self._asked: deque[_Asked] | None = deque()
        self._member_id = ""
        self._thread = threading.Thread(target=self._run, name=f"consume-{group}-{topic}", daemon=True)

    def start(self) -> None:
        """Start the thread; it joins the group."""
        self._thread.start()

    @property
    def paused(self) -> set[int]:
        """Partitions that are not fetched, because nobody takes what was fetched of them."""
        return set(self._paused)

    def resume_fetching(self) -> None:
        """A record was taken from the buffer; any thread."""
        self._room.set()

    @property
    def member_id(self) -> str:
        """How Kafka calls this member of the group; empty before it has joined."""
        return self._member_id

    def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> Future[None]:
        """Commit these as a member of the group, and go on from there if the topic is the one read here; any thread.

        Cancelling the future before it runs takes that back. It raises NotAssigned for a partition of our topic that is
        not ours now, KafkaException when Kafka refuses, Unavailable when the reader ends first; then nothing is set.
        """
        done: Future[None] = Future()
        with self._lock:
            if self._asked is None:
                done.set_exception(Unavailable(f"topic {self._topic!r} is not read any more"))
            else:
                self._asked.append(_Asked(topic, wanted, done))
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
            self._refuse_asked()
            self._ended(failure)

    def _step(self, consumer: Consumer) -> None:
        if self._asked:
            self._serve_asked(consumer)
        else:
            self._commit_now_and_then(consumer)
        self._resume(consumer)
        with self._lock:
            full = {p: count for p, count in self._queue.full_partitions().items() if p not in self._paused}
            if full:
                self._room.clear()
        if not full:
            self._fetch(consumer, _POLL_SECONDS, min(self._queue.buffer.records, _MOST_RECORDS))
        elif not self._room.wait(_POLL_SECONDS):
            self._pause(consumer, full)
            self._fetch(consumer, 0, 1)  # Kafka wants to be polled all the same

    def _pause(self, consumer: Consumer, full: Mapping[int, int]) -> None:
        with self._lock:
            partitions_to_pause = self._queue.partitions_to_pause(
                full, set(self._queue.partitions) - full.keys() - self._paused
            )
        consumer.pause([TopicPartition(self._topic, p) for p in partitions_to_pause])
        self._paused.update(partitions_to_pause)

    def _fetch(self, consumer: Consumer, timeout_seconds: float, most: int) -> None:
        first: Any = consumer.poll(timeout_seconds)
        if first is None:
            return
        fetched: dict[int, list[tuple[int, Record]]] = {}
        for message in (first, *(consumer.consume(most - 1, 0) if most > 1 else ())):
            if (error := message.error()) is None:
                fetched.setdefault(message.partition(), []).append((message.offset(), message))
            else:
                self._heed(error)
        with self._lock:
            for partition, records in fetched.items():
                self._queue.fetched(partition, records)
            self._wake()

    def _resume(self, consumer: Consumer) -> None:
        if not self._paused:
            return
        with self._lock:
            ready = [p for p in self._paused if self._queue.has_room(p)]
        if ready:
            self._paused.difference_update(ready)
            consumer.resume([TopicPartition(self._topic, p) for p in ready])

    def _heed(self, error: KafkaError) -> None:
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise NotFound(f"topic {self._topic!r} does not exist")
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            raise NotAllowed(f"topic {self._topic!r}: {error.str()}")
        if error.fatal():
            raise Unavailable(f"topic {self._topic!r}: {error.str()}")
        self._log.warning("Kafka reports", reason=error.str())  # librdkafka goes on by itself

    # ---- commits

    def _commit_now_and_then(self, consumer: Consumer) -> None:
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
        """Kafka's answer to an asynchronous commit; what failed stays to be committed."""
        commits = self._committing or {}
        self._committing = None
        failed = {p.partition for p in partitions if p.error is not None}
        if error is not None or failed:
            self._log.warning("commit failed, will be repeated", reason=error.str() if error else str(sorted(failed)))
        if error is None:
            with self._lock:
                self._queue.committed({p: c for p, c in commits.items() if p not in failed})

    def _commit_last(self, consumer: Consumer, commits: dict[int, Commit]) -> None:
        """Before partitions go to somebody else; a failure only means that they deliver records again."""
        if not commits:
            return
        try:
            consumer.commit(offsets=self._positions(commits), asynchronous=False)
        except KafkaException as error:
            self._log.warning("last commit failed, records will come again", reason=error.args[0].str())

    def _positions(self, commits: dict[int, Commit]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, p, offset, metadata) for p, (offset, metadata) in commits.items()]

    # ---- offsets set by somebody

    def _serve_asked(self, consumer: Consumer) -> None:
        # A commit that is on its way could be repeated by librdkafka and so land behind ours: its answer comes first.
        while self._asked and self._committing is None:
            with self._lock:
                asked = self._asked.popleft()
            if asked.done.set_running_or_notify_cancel():
                self._serve_one(consumer, asked)

    def _serve_one(self, consumer: Consumer, asked: _Asked) -> None:
        try:
            starts = self._starts(consumer, asked.wanted) if asked.topic == self._topic else {}
            positions = [TopicPartition(asked.topic, p, *commit) for p, commit in asked.wanted.items()]
            commit_now(consumer, positions, _SET_SECONDS)
        except Exception as error:
            asked.done.set_exception(error)
            return
        with self._lock:
            for partition, start in starts.items():
                self._queue.restart(partition, start)
        asked.done.set_result(None)
        self._seek(consumer, starts)

    def _starts(self, consumer: Consumer, wanted: Mapping[int, Commit]) -> dict[int, StartPosition]:
        with self._lock:
            elsewhere = sorted(wanted.keys() - set(self._queue.partitions))
        if elsewhere:
            raise NotAssigned(f"partitions {elsewhere} are not assigned to this gateway")
        starts = {}
        for partition, (offset, metadata) in wanted.items():
            part = TopicPartition(self._topic, partition)
            low, high = consumer.get_watermark_offsets(part, timeout=_SET_SECONDS)
            start = start_position(offset, metadata, low=low, high=high, earliest=self._earliest)
            # What is committed stays as it was set, whatever its metadata is, until an ack changes it.
            starts[partition] = replace(start, committed=True)
        return starts

    def _seek(self, consumer: Consumer, starts: Mapping[int, StartPosition]) -> None:
        paused = self._paused & starts.keys()
        if paused:
            self._paused -= paused
            consumer.resume([TopicPartition(self._topic, p) for p in paused])
        for partition, start in starts.items():
            consumer.seek(TopicPartition(self._topic, partition, start.offset))
        if starts:
            self._log.info("offsets were set", partitions={p: s.offset for p, s in starts.items()})

    def _refuse_asked(self) -> None:
        with self._lock:
            left = self._asked or ()
            self._asked = None
        for asked in left:
            if asked.done.set_running_or_notify_cancel():
                asked.done.set_exception(Unavailable(f"topic {self._topic!r} is not read any more"))

    # ---- rebalances; Kafka calls these from within poll()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._member_id = consumer.memberid() or ""
        if not partitions:
            return
        starts = []
        for part in committed(consumer, partitions, _ASK_SECONDS):
            low, high = consumer.get_watermark_offsets(part, timeout=_ASK_SECONDS)
            start = start_position(part.offset, metadata_of(part), low=low, high=high, earliest=self._earliest)
            if start.remark:
                self._log.warning("commit not used as it is", partition=part.partition, reason=start.remark)
            with self._lock:
                starts.append((part.partition, self._queue.start(part.partition, start, end=high)))
        with self._lock:
            for partition, start in starts:
                self._queue.assign(partition, start)
        consumer.incremental_assign([TopicPartition(self._topic, p, start.offset) for p, start in starts])
        self._next_commit_s = 0.0  # a new group's first position is committed at once
        self._log.info("assigned", partitions={p: s.offset for p, s in starts})

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit_last(consumer, self._forget(partitions))
        self._log.info("revoked", partitions=[p.partition for p in partitions])

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        # Somebody else may have them already: a commit would be refused. If nobody had, we go on where we were: Kafka
        # was away for longer than the session, and what was acked meanwhile is not to come again.
        self._paused.difference_update(p.partition for p in partitions)
        with self._lock:
            for part in partitions:
                self._queue.lose(part.partition)
        self._log.warning("lost", partitions=[p.partition for p in partitions])

    def _forget(self, partitions: list[TopicPartition]) -> dict[int, Commit]:
        self._paused.difference_update(p.partition for p in partitions)
        with self._lock:
            commits = {p.partition: self._queue.revoke(p.partition) for p in partitions}
        return {p: commit for p, commit in commits.items() if commit is not None}

    def _leave(self, consumer: Consumer) -> None:
        with self._lock:
            owned = [TopicPartition(self._topic, p) for p in self._queue.partitions]
        self._commit_last(consumer, self._forget(owned))
        consumer.close()
