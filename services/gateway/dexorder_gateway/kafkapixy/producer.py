"""Producer of one cluster: takes requests from the event loop, returns delivery reports from librdkafka's thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from dexorder_common.kafka.client_errors import produce_error
from dexorder_common.model.errors import Exhausted, Uncertain
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, producer_options
from dexorder_gateway.kafkapixy.inline_future import InlineFuture
from dexorder_gateway.kafkapixy.metrics import ClusterMetrics, Mode
from dexorder_gateway.keys.ledger import Placed, Placing

log = structlog.get_logger(__name__)
Headers = Sequence[tuple[str, bytes]]
Waiting = Placing | InlineFuture[Placed]
Report = tuple[Waiting | None, KafkaError | None, str, int, Placed]
"""What the caller waits for (None: async), error, topic, bytes, partition and offset."""

_POLL_SECONDS = 0.1
_SYNC_LINGER_MS = 5.0
"""If ``linger_ms`` is longer, a sync record and those queued before it are sent at once."""
_FLUSH_SECONDS = 0.001
_ANY = -1
"""Partition that librdkafka's partitioner chooses."""
_EMPTY_KEY_HASH = 2_128_831_035
"""FNV-1a of an empty key, as the absolute value of a signed number of 32 bits."""


class RoundRobin:
    """Partitions of each topic in turn from 0 on; ``partitions`` returns their number, 0 if it is unknown."""

    def __init__(self, partitions: Callable[[str], int]) -> None:
        self._partitions = partitions
        self._last: dict[str, int] = {}

    def next(self, topic: str) -> int:
        """Return the partition of the topic's next record; any while the number of partitions is unknown."""
        count = self._partitions(topic)
        if count == 0:
            return _ANY
        self._last[topic] = (self._last.get(topic, -1) + 1) % count
        return self._last[topic]


class RecordProducer:
    """Idempotent producer with acks of all replicas; records of one key keep the order of the calls.

    All methods but the constructor are for the event loop that called ``start``.

    Args:
        partitions: Returns the number of a topic's partitions, 0 if it is unknown.
    Attributes:
        queued: Records without a delivery report so far; librdkafka's own count includes its error events.
    """

    def __init__(
        self, config: ClusterConfig, metrics: ClusterMetrics, partitions: Callable[[str], int] = lambda _: 0
    ) -> None:
        self._config = config
        self._options = producer_options(config)
        self._timeout_s = config.produce.timeout_seconds
        self._lingers = float(self._options["linger.ms"]) > _SYNC_LINGER_MS
        self._partitions = partitions
        self._partitioner = config.produce.partitioner
        self._round_robin = RoundRobin(partitions)
        self._producer = Producer(self._options)
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._reports: deque[Report] = deque()
        self._waking = False  # whether the loop was woken and has not taken the reports yet
        self._fatal_error = False
        self._deadlines: dict[InlineFuture[Placed], tuple[float, str]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self.queued = 0
        # The first is the event loop's, the second the thread's: their difference is the number still awaited.
        self._sync_queued = 0
        self._sync_reported = 0
        self._sync_came = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=f"produce-{config.name}", daemon=True)

    def start(self) -> None:
        """Start to report deliveries to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def send(self, topic: str, key: bytes | None, value: bytes, headers: Headers) -> Placed:
        """Write one record; return once all in-sync replicas have it, or raise `produce_error` within the timeout."""
        loop = asyncio.get_running_loop()
        record = InlineFuture[Placed](loop)
        self._queue(topic, key, value, headers, record)
        self._deadlines[record] = loop.time() + self._timeout_s, topic
        if self._expiry is None:
            self._expiry = loop.call_later(self._timeout_s, self._expire)
        try:
            return await record
        finally:
            del self._deadlines[record]

    def begin(
        self, topic: str, key: bytes | None, value: bytes, headers: Headers, partition: int | None = None
    ) -> Placing:
        """Queue one record and return the future of its place, which fails with `produce_error`.

        Args:
            partition: None for the partitioner's.
        """
        future: Placing = asyncio.get_running_loop().create_future()
        self._queue(topic, key, value, headers, future, partition)
        return future

    async def placed(self, record: Placing, topic: str, since_s: float) -> Placed:
        """Return the place of a record for one of its callers, or raise as ``send``; the others wait on.

        Args:
            since_s: The loop's time at which the call started.
        """
        left_s = since_s + self._timeout_s - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait((record,), timeout=max(0.0, left_s))
        if not done:
            raise self._not_acknowledged(topic)
        return record.result()

    def send_async(self, topic: str, key: bytes | None, value: bytes, headers: Headers) -> None:
        """Queue one record and return; it stays queued until Kafka has it, refuses it, or the gateway stops."""
        self._queue(topic, key, value, headers, None)

    def _queue(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Headers,
        future: Waiting | None,
        partition: int | None = None,
    ) -> None:
        chosen = self._partition(topic, key) if partition is None else partition
        try:
            report = partial(self._report, future, len(value))
            # `or None`: Kafka-Pixy stores an empty key as none
            self._producer.produce(topic, value, key or None, chosen, report, None, 0, list(headers) or None)
        except BufferError as error:
            raise Exhausted(f"{self.queued} records wait for Kafka, the queue is full") from error
        except KafkaException as error:
            raise produce_error(error.args[0], topic, len(value)) from error
        self._metrics.declare(topic, "async" if future is None else "sync")
        self.queued += 1
        if self._lingers and future is not None:
            self._sync_queued += 1
            if not self._sync_came.is_set():
                self._sync_came.set()

    def _partition(self, topic: str, key: bytes | None) -> int:
        if self._partitioner == "roundrobin":
            return self._round_robin.next(topic)
        count = self._partitions(topic)
        if key == b"" and self._partitioner == "hash" and count:
            return _EMPTY_KEY_HASH % count
        return _ANY

    def _expire(self) -> None:
        """Fail the records that wait too long; all wait equally long, so the first one is the next."""
        loop = asyncio.get_running_loop()
        now_s, self._expiry = loop.time(), None
        for record, (deadline_s, topic) in list(self._deadlines.items()):
            if deadline_s > now_s:
                self._expiry = loop.call_at(deadline_s, self._expire)
                break
            if not record.done():
                record.set_exception(self._not_acknowledged(topic))

    def _not_acknowledged(self, topic: str) -> Uncertain:
        waited = f"no acknowledgement for topic {topic!r} within {self._timeout_s:g} s"
        return Uncertain(f"{waited}, the record may have been written or may still be")

    def _report(self, future: Waiting | None, size: int, error: KafkaError | None, message: Any) -> None:
        offset = message.offset()
        placed = (message.partition(), -1 if offset is None else offset)  # none with acks of no replica
        self._reports.append((future, error, message.topic(), size, placed))
        self._sync_reported += self._lingers and future is not None
        self._fatal_error |= error is not None and error.fatal()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._wait_for_reports()
            self._hand_over()
            if self._fatal_error:
                self._renew()

    def _wait_for_reports(self) -> None:
        if not self._lingers:
            self._producer.poll(_POLL_SECONDS)
        elif self._sync_queued != self._sync_reported:
            self._producer.flush(_FLUSH_SECONDS)  # during a flush, librdkafka lets no record linger
        else:
            self._sync_came.wait(_POLL_SECONDS)
            self._sync_came.clear()
            self._producer.poll(0)

    def _hand_over(self) -> None:
        """Have the event loop take all reports; a loop that is busy is woken once, however many come until it runs."""
        if self._reports and not self._waking and self._loop is not None:
            self._waking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_reports)

    def _take_reports(self) -> None:
        self._waking = False  # first: the thread adds a report, then looks whether to wake
        self._settle(self._collect())

    def _collect(self) -> list[Report]:
        reports = []
        with suppress(IndexError):
            while True:
                reports.append(self._reports.popleft())
        return reports

    def _renew(self) -> None:
        """Replace the producer: after a fatal error (its sequence is broken) it takes no more records."""
        old = self._producer
        self._producer = Producer(self._options)
        log.error("producer failed and was replaced", cluster=self._config.name)
        old.purge()
        old.flush(1.0)
        self._fatal_error = False  # the reports of the purge have set it again
        self._hand_over()

    def _settle(self, reports: list[Report]) -> None:
        self.queued -= len(reports)
        for future, error, topic, size, placed in reports:
            mode: Mode = "sync" if future is not None else "async"
            if error is None:
                self._metrics.produced[topic, mode] += 1
                if future is not None and not future.done():
                    future.set_result(placed)
                continue
            self._metrics.produce_failed[topic, mode] += 1
            if future is None:
                log.error("async record lost", cluster=self._config.name, topic=topic, bytes=size, reason=error.str())
            elif not future.done():
                future.set_exception(produce_error(error, topic, size))

    async def close(self, timeout_seconds: float) -> None:
        """Write the queued records and stop; records that Kafka does not get in time are reported as failed."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)  # reports come from one thread at a time
        await asyncio.to_thread(self._producer.flush, timeout_seconds)
        if self._producer:
            self._producer.purge()
            await asyncio.to_thread(self._producer.flush, 1.0)
        self._settle(self._collect())
