"""Plain reads: one member of the consumer group, in a thread of its own.

The thread alone touches the consumer; the ledger is shared with acks, under a lock. Kafka gets no commit but the
ledger's, so a crash loses no record and may repeat what was not acked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.common.model.errors import Conflict, Unavailable
from services.udsource.ack_tracker import AckTracker
from services.udsource.config import UdsourceSettings
from services.udsource.metrics import UdsourceMetrics
from services.udsource.topic_state import TopicState, client_options

log = structlog.get_logger(__name__)
T = TypeVar("T")

MOST_RECORDS = 10_000
"""Most records of one answer, however many are asked for; bounds what is in memory at once."""
WAIT_SLICE_S = 0.05
REST_AFTER_S = 5.0
"""Without a read for this time the consumer stops fetching but stays in the group."""


class TopicReader:
    """What one client of plain reads sees. Joins the group at the first `open`, leaves it at `close`.

    The newest stream owns the records: `open` makes all that is in flight due again, on that stream.
    """

    def __init__(
        self, settings: UdsourceSettings, metrics: UdsourceMetrics, reachable: Callable[[], bool] = lambda: True
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._reachable = reachable
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topic")
        self._lock = threading.Lock()
        self._acks = AckTracker()
        self._consumer: Consumer | None = None
        self._held: list[Message] = []
        self._paused = False
        self._read_s = time.monotonic()
        self._stream = 0
        self._draining = False

    # ---- called from the event loop

    async def open(self) -> int:
        """A new client; returns the number of its stream. An older stream's next `read` fails."""
        self._stream += 1
        stream = self._stream
        await self._run(self._start)
        return stream

    async def read(self, stream: int, most: int, timeout_s: float) -> list[Message]:
        """The next records, at most ``most``; as soon as there are any, none after ``timeout_s``.

        They are in flight from now on. While draining there are none.

        Raises:
            Conflict: A newer stream has taken over.
            Unavailable: Kafka refuses to be read.
            KafkaException: The consumer is broken for good.
        """
        given_up = threading.Event()
        try:
            return await self._run(lambda: self._read(stream, min(most, MOST_RECORDS), timeout_s, given_up))
        finally:
            given_up.set()

    def ack(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        """Settle (partition, offset) pairs; the commit follows by itself.

        Raises:
            InvalidRequest: One was never handed out; none is settled then.
        """
        with self._lock:
            self._metrics.plain_acked.inc(self._acks.ack(pairs, state.committed))
        self._thread.submit(self._commit)

    def nack(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        """Give (partition, offset) pairs back; they come again with a later read.

        Raises:
            InvalidRequest: One was never handed out; none is given back then.
        """
        with self._lock:
            self._metrics.nacked.inc(self._acks.nack(pairs, state.committed))

    def partitions(self) -> list[int]:
        """Partitions that this process serves."""
        with self._lock:
            return self._acks.assigned()

    def pending(self, state: TopicState) -> int:
        """Records of the topic that the group has not acked."""
        with self._lock:
            return self._acks.lag(state.starts, state.ends, state.committed)

    def in_flight(self) -> int:
        """Records handed out and not answered."""
        with self._lock:
            return self._acks.in_flight()

    def drain(self) -> None:
        """Hand out nothing more; acks go on."""
        self._draining = True

    async def tick(self) -> None:
        """Keep the group membership alive and commits moving while nobody reads; call about twice a second."""
        await self._run(self._rest)

    async def close(self) -> None:
        """Commit what is acked and leave the group; without Kafka neither is possible and both would wait for it."""
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
            self._acks.restart()

    def _read(self, stream: int, most: int, timeout_s: float, given_up: threading.Event) -> list[Message]:
        deadline_s = time.monotonic() + timeout_s
        self._resume()
        while True:
            if stream != self._stream:
                raise Conflict("another client has opened ReadFn and taken the records over")
            left_s = deadline_s - time.monotonic()
            if self._draining:
                given_up.wait(max(0.0, min(left_s, WAIT_SLICE_S)))
                records: list[Message] = []
            else:
                self._rewind()
                records = self._deliver(self._fetch(most, min(max(left_s, 0.0), WAIT_SLICE_S)))
            self._commit()
            self._read_s = time.monotonic()
            if records or most <= 0 or left_s <= 0 or given_up.is_set():
                return records

    def _fetch(self, most: int, wait_s: float) -> list[Message]:
        assert self._consumer is not None
        if most <= 0:
            return []
        if self._held:
            taken = self._held[:most]
            self._held = self._held[most:]
            return taken
        # consume() with a time limit waits for the full number, so wait for one and take what is there with it.
        messages = self._consumer.consume(most, 0)
        if not messages and (first := self._consumer.poll(wait_s)) is not None:
            messages = [first, *self._consumer.consume(most - 1, 0)] if most > 1 else [first]
        return messages

    def _deliver(self, messages: list[Message]) -> list[Message]:
        good: list[Message] = []
        error: KafkaError | None = None
        with self._lock:
            redelivered, lost = self._acks.redelivered, self._acks.lost
            for message in messages:
                if (problem := message.error()) is not None:
                    error = problem
                elif self._acks.deliver(message.partition() or 0, message.offset() or 0):
                    good.append(message)
            redelivered, lost = self._acks.redelivered - redelivered, self._acks.lost - lost
        self._metrics.redelivered.inc(redelivered)
        if lost:
            self._metrics.lost.inc(lost)
            log.error("records were dropped by the topic before they were acked", count=lost)
        if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):  # it will never read again
            raise KafkaException(error)
        if error is not None and not good:
            raise Unavailable(f"topic {self._settings.topic} can't be read: {error.str()}")
        return good

    def _rewind(self) -> None:
        assert self._consumer is not None
        with self._lock:
            wanted = self._acks.rewinds()
        for partition, offset in wanted.items():
            try:
                self._consumer.seek(TopicPartition(self._settings.topic, partition, offset))
            except KafkaException as error:  # just assigned, not fetched yet; the next read tries again
                log.debug("rewind has to wait", partition=partition, offset=offset, reason=error.args[0].str())
                continue
            self._held = [m for m in self._held if m.partition() != partition]
            with self._lock:
                self._acks.rewound(partition)

    def _commit(self, *, wait: bool = False) -> None:
        # A commit without Kafka would wait in librdkafka, and hold up a stop; what is acked stays in the ledger.
        if self._consumer is None or not self._reachable():
            return
        with self._lock:
            positions = self._acks.commits()
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

    def _rest(self) -> None:
        if self._consumer is None:
            return
        self._commit()
        if time.monotonic() - self._read_s < REST_AFTER_S:
            return
        self._consumer.pause(self._consumer.assignment())
        self._paused = True
        # Serves rebalances and commit results. A record that was already on its way is kept for the next read.
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
            # The consumer starts at the commit all the same; the ledger then knows it from the first record.
            log.warning("commits of the group are unknown", reason=error.args[0].str())
            committed = partitions
        with self._lock:
            for part in committed:
                self._acks.assign(part.partition, part.offset if part.offset >= 0 else None)
        log.info("partitions assigned", partitions=[p.partition for p in partitions])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(wait=True)
        self._on_lost(consumer, partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {p.partition for p in partitions}
        self._held = [m for m in self._held if m.partition() not in gone]
        with self._lock:
            for partition in gone:
                self._acks.revoke(partition)
        log.info("partitions revoked", partitions=sorted(gone))

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        failed = [p.partition for p in offsets if error is not None or p.error is not None]
        if failed:
            with self._lock:
                self._acks.commit_failed(failed)
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
            # How long others wait for a killed process, and a stop for a commit that finds no coordinator.
            "session.timeout.ms": 10_000,
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 50,
            "queued.max.messages.kbytes": 32 * 1024,
        }
