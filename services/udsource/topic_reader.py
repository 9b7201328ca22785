"""Plain reads by one member of the consumer group, in a thread of its own.

Only the thread uses the consumer. The ack tracker is shared with acks, under a lock. Kafka gets no commits but the
tracker's, so a crash loses no record and may repeat records that were not acked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.common.model.errors import Conflict, Unavailable
from services.udsource.ack_tracker import AckTracker
from services.udsource.config import UdsourceSettings
from services.udsource.topic_monitor import TopicState, client_options

log = structlog.get_logger(__name__)
T = TypeVar("T")

MAX_RECORDS = 10_000
"""Largest number of records in one batch, however many are requested; bounds the memory."""
WAIT_SLICE_S = 0.05
PAUSE_AFTER_S = 5.0
"""Without a read for this time the consumer stops fetching, but stays in the group."""


class UdsourceMetrics:
    """Metrics of one process. Label ``mode`` is plain or replay."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="dexorder_udsource", registry=registry)
        gauge = partial(Gauge, namespace="dexorder_udsource", registry=registry)
        read = counter("records_read", "Records delivered.", ["mode"])
        acked = counter("records_acked", "Records acked for the first time.", ["mode"])
        self.plain_read = read.labels("plain")
        self.replay_read = read.labels("replay")
        self.plain_acked = acked.labels("plain")
        self.replay_acked = acked.labels("replay")
        self.redelivered = counter("records_redelivered", "Records delivered again.")
        self.nacked = counter("records_nacked", "Records given back by NackFn.")
        self.lost = counter("records_lost", "Records that the topic dropped before they were acked.")
        self.replay_ranges = counter("replay_ranges", "Ranges replayed to their end.")
        self.pending = gauge("pending", "Records not acked by the group; -1 if unknown.")
        self.kafka_up = gauge("kafka_up", "Whether Kafka and the topic are available.")


class TopicReader:
    """Plain reads of one client. Joins the group at the first `open` and leaves it at `close`.

    The newest stream owns the records: `open` takes back everything in flight, to be issued again on that stream.
    """

    def __init__(
        self, settings: UdsourceSettings, metrics: UdsourceMetrics, reachable: Callable[[], bool] = lambda: True
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._reachable = reachable
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topic")
        self._lock = threading.Lock()
        self._tracker = AckTracker()
        self._consumer: Consumer | None = None
        self._held: list[Message] = []
        self._paused = False
        self._read_s = time.monotonic()
        self._stream = 0
        self._draining = False

    # ---- called from the event loop

    async def open(self) -> int:
        """Start a new stream and return its number; the next `read` of an older stream fails."""
        self._stream += 1
        stream = self._stream
        await self._run(self._start)
        return stream

    async def read(self, stream: int, limit: int, timeout_s: float) -> list[Message]:
        """Return at most ``limit`` records as soon as there are any, or none after ``timeout_s``.

        They are in flight from now on. While draining there are none.

        Raises:
            Conflict: There is a newer stream.
            Unavailable: Kafka can't be read.
            KafkaException: The consumer failed permanently.
        """
        given_up = threading.Event()
        try:
            return await self._run(lambda: self._read(stream, min(limit, MAX_RECORDS), timeout_s, given_up))
        finally:
            given_up.set()

    def ack(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        """Ack (partition, offset) pairs; the commit follows by itself.

        Raises:
            InvalidRequest: One was never issued; none is acked then.
        """
        with self._lock:
            self._metrics.plain_acked.inc(self._tracker.ack(pairs, state.committed))
        self._thread.submit(self._commit)

    def nack(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        """Take back (partition, offset) pairs; a later read returns them again.

        Raises:
            InvalidRequest: One was never issued; none is taken back then.
        """
        with self._lock:
            self._metrics.nacked.inc(self._tracker.nack(pairs, state.committed))

    def partitions(self) -> list[int]:
        """Return the partitions that this process serves."""
        with self._lock:
            return self._tracker.assigned()

    def pending(self, state: TopicState) -> int:
        """Return the number of records of the topic that the group has not acked."""
        with self._lock:
            return self._tracker.lag(state.starts, state.ends, state.committed)

    def in_flight(self) -> int:
        """Return the number of records issued and not answered."""
        with self._lock:
            return self._tracker.in_flight()

    def drain(self) -> None:
        """Issue no more records; acks are still accepted."""
        self._draining = True

    async def tick(self) -> None:
        """Keep the membership alive and commit while there are no reads; call about twice a second."""
        await self._run(self._serve_idle)

    async def close(self) -> None:
        """Commit the acked records and leave the group; without Kafka do neither, as both would wait for it."""
        if self._reachable():
            await self._run(self._stop)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # ---- called in the thread

    def _start(self) -> None:
        if self._consumer is None:
            self._consumer = Consumer(self._options())
            self._consumer.subscribe(
                [self._settings.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        with self._lock:
            self._tracker.restart()

    def _read(self, stream: int, limit: int, timeout_s: float, given_up: threading.Event) -> list[Message]:
        deadline_s = time.monotonic() + timeout_s
        self._resume()
        while True:
            if stream != self._stream:
                raise Conflict("another client has opened ReadFn and owns the records now")
            left_s = deadline_s - time.monotonic()
            if self._draining:
                given_up.wait(max(0.0, min(left_s, WAIT_SLICE_S)))
                records: list[Message] = []
            else:
                self._rewind()
                records = self._issue(self._fetch(limit, min(max(left_s, 0.0), WAIT_SLICE_S)))
            self._commit()
            self._read_s = time.monotonic()
            if records or limit <= 0 or left_s <= 0 or given_up.is_set():
                return records

    def _fetch(self, limit: int, wait_s: float) -> list[Message]:
        assert self._consumer is not None
        if limit <= 0:
            return []
        if self._held:
            taken, self._held = self._held[:limit], self._held[limit:]
            return taken
        return fetch(self._consumer, limit, wait_s)

    def _issue(self, messages: list[Message]) -> list[Message]:
        good: list[Message] = []
        error: KafkaError | None = None
        with self._lock:
            redelivered, lost = self._tracker.redelivered, self._tracker.lost
            for message in messages:
                if (problem := message.error()) is not None:
                    error = problem
                elif self._tracker.issue(message.partition() or 0, message.offset() or 0):
                    good.append(message)
            redelivered, lost = self._tracker.redelivered - redelivered, self._tracker.lost - lost
        self._metrics.redelivered.inc(redelivered)
        if lost:
            self._metrics.lost.inc(lost)
            log.error("the topic dropped records before they were acked", count=lost)
        if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):  # it will never read again
            raise KafkaException(error)
        if error is not None and not good:
            raise Unavailable(f"topic {self._settings.topic} can't be read: {error.str()}")
        return good

    def _rewind(self) -> None:
        assert self._consumer is not None
        with self._lock:
            wanted = self._tracker.rewinds()
        for partition, offset in wanted.items():
            try:
                self._consumer.seek(TopicPartition(self._settings.topic, partition, offset))
            except KafkaException as error:  # just assigned and not fetched yet; the next read tries again
                log.debug("rewind delayed", partition=partition, offset=offset, reason=error.args[0].str())
                continue
            self._held = [m for m in self._held if m.partition() != partition]
            with self._lock:
                self._tracker.rewound(partition)

    def _commit(self, *, wait: bool = False) -> None:
        # Without Kafka a commit would wait in librdkafka and delay a stop; the acks stay in the tracker.
        if self._consumer is None or not self._reachable():
            return
        with self._lock:
            positions = self._tracker.commits()
        offsets = [TopicPartition(self._settings.topic, p, o) for p, o in positions.items()]
        if not offsets:
            return
        try:
            if wait:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], offsets)

    def _serve_idle(self) -> None:
        if self._consumer is None:
            return
        self._commit()
        if time.monotonic() - self._read_s < PAUSE_AFTER_S:
            return
        self._consumer.pause(self._consumer.assignment())
        self._paused = True
        # Handles rebalances and results of commits. A record that was already fetched is kept for the next read.
        if (message := self._consumer.poll(0)) is not None:
            self._held.append(message)

    def _resume(self) -> None:
        assert self._consumer is not None
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _stop(self) -> None:
        if self._consumer is not None:
            self._commit(wait=True)
            self._consumer.close()
            self._consumer = None

    # ---- called by the consumer, in the thread

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            committed = consumer.committed(partitions, timeout=10)
        except KafkaException as error:
            # The consumer starts at the commit even so; the tracker learns it from the first record.
            log.warning("the group's commits are unknown", reason=error.args[0].str())
            committed = partitions
        with self._lock:
            for part in committed:
                self._tracker.assign(part.partition, part.offset if part.offset >= 0 else None)
        log.info("partitions assigned", partitions=[p.partition for p in partitions])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(wait=True)
        self._on_lost(consumer, partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = {p.partition for p in partitions}
        self._held = [m for m in self._held if m.partition() not in revoked]
        with self._lock:
            for partition in revoked:
                self._tracker.revoke(partition)
        log.info("partitions revoked", partitions=sorted(revoked))

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        failed = [p.partition for p in offsets if error is not None or p.error is not None]
        if failed:
            with self._lock:
                self._tracker.commit_failed(failed)
            log.warning("commit failed and will be repeated", partitions=failed, reason=error.str() if error else "")

    def _options(self) -> dict[str, object]:
        return {
            **client_options(self._settings),
            "group.id": self._settings.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "on_commit": self._on_commit,
            # Time that others wait for a killed process, and a stop for a commit that finds no coordinator.
            "session.timeout.ms": 10_000,
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 50,
            "queued.max.messages.kbytes": 32 * 1024,
        }


def fetch(consumer: Consumer, limit: int, wait_s: float) -> list[Message]:
    """Return at most ``limit`` messages as soon as there are any, or none after ``wait_s``.

    consume() with a timeout waits for the full number, so this waits for one message and takes the others that are
    there.
    """
    messages = consumer.consume(limit, 0)
    if not messages and (first := consumer.poll(wait_s)) is not None:
        messages = [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]
    return messages
