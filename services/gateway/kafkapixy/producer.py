"""One cluster's producer: requests from the event loop in, delivery reports from librdkafka's thread back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from services.common.model.errors import Exhausted, InvalidRequest, SuiteError, Unavailable
from services.gateway.config import ClusterConfig
from services.gateway.kafkapixy.batches import Batch
from services.gateway.kafkapixy.metrics import ClusterMetrics, Mode
from services.gateway.kafkapixy.options import producer_options
from services.gateway.kafkapixy.produce_errors import produce_error
from services.gateway.kafkapixy.round_robin import RoundRobin

log = structlog.get_logger(__name__)
Headers = Sequence[tuple[str, bytes]]
Placed = tuple[int, int]
"""Partition and offset."""
Report = tuple[asyncio.Future[Placed] | None, KafkaError | None, str, int, Placed]
"""Who waits for it (None: async), what went wrong, topic, bytes, where it was written."""

_POLL_SECONDS = 0.1
_SYNC_LINGER_MS = 5.0
"""Where ``linger_ms`` is longer, a sync record and what was queued before it go out at once."""
_FLUSH_SECONDS = 0.001
_AT_ONCE = 500
"""Records of a batch that are queued before the event loop has a turn."""


class RecordProducer:
    """Idempotent with acks of all replicas; records of one key keep the order of the calls.

    All methods but the constructor are for the event loop that called ``start``.

    Args:
        partitions: How many a topic has, 0 for one that is not known.
    """

    def __init__(
        self, config: ClusterConfig, metrics: ClusterMetrics, partitions: Callable[[str], int] = lambda _: 0
    ) -> None:
        self._config = config
        self._options = producer_options(config)
        self._patience_s = config.produce.timeout_seconds
        self._lingers = float(self._options["linger.ms"]) > _SYNC_LINGER_MS
        self._round_robin = RoundRobin(partitions) if config.produce.partitioner == "roundrobin" else None
        self._producer = Producer(self._options)
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._reports: list[Report] = []
        self._touched: list[Batch] = []
        self._failed_for_good = False
        self._settled = asyncio.Event()
        self._unreported = 0
        # Streams wait until there is room; what they leave free is for unary calls, which are refused without it.
        self._stream_share = max(1, config.produce.queue_messages * 3 // 4)
        # The first is the event loop's, the second the thread's: their difference is what is still awaited.
        self._sync_queued = 0
        self._sync_reported = 0
        self._sync_came = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=f"produce-{config.name}", daemon=True)

    def start(self) -> None:
        """Begin to report deliveries to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def send(self, topic: str, key: bytes | None, value: bytes, headers: Headers) -> Placed:
        """Write one record; returns once all in-sync replicas have it.

        Raises:
            SuiteError: As `produce_error` has it; within the produce timeout.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Placed] = loop.create_future()
        self._queue(topic, key, value, headers, future)
        timer = loop.call_later(self._patience_s, self._expire, future, topic)
        try:
            return await future
        finally:
            timer.cancel()

    def post(self, topic: str, key: bytes | None, value: bytes, headers: Headers) -> None:
        """Queue one record and return; it stays queued until Kafka has it, refuses it, or the gateway stops.

        Raises:
            SuiteError: It was not queued.
        """
        self._queue(topic, key, value, headers, None)

    def _queue(
        self, topic: str, key: bytes | None, value: bytes, headers: Headers, future: asyncio.Future[Placed] | None
    ) -> None:
        try:
            report = partial(self._report, future, len(value))
            partition = (
                -1 if self._round_robin is None else self._round_robin.next(topic)
            )  # -1: librdkafka's partitioner
            self._producer.produce(topic, value, key, partition, report, None, 0, list(headers) or None)
        except BufferError as error:
            raise Exhausted(f"{self.queued} records wait for Kafka, the queue is full") from error
        except KafkaException as error:
            raise produce_error(error.args[0], topic, len(value)) from error
        self._metrics.writes(topic, "async" if future is None else "sync")
        self._queued(1, waited_for=future is not None)

    async def write(self, batch: Batch) -> None:
        """Queue a batch, waiting while the queue is full; ``batch.done`` tells when it is known what became of it.

        Batches that are written one after the other keep their order. Cancelled, it may have queued a part.
        """
        self._metrics.writes(batch.topic, "stream")
        timer = asyncio.get_running_loop().call_later(self._patience_s, self._expire_batch, batch)
        batch.done.add_done_callback(lambda _: timer.cancel())
        while not batch.is_queued:
            if self._stopping.is_set():
                batch.fail_the_rest(Unavailable("the gateway is stopping"))
            elif self._fill(batch):
                await asyncio.sleep(0)
            else:
                self._settled.clear()
                await self._settled.wait()
        self._finish(batch)

    def _fill(self, batch: Batch) -> bool:
        """Queue some more of it; False when the queue is full."""
        produce, topic, report, turns = self._producer.produce, batch.topic, self._report_of, self._round_robin
        begin, queued = batch.next, 0
        end = min(len(batch.records), begin + _AT_ONCE, begin + self._stream_share - self._unreported)
        for index in range(begin, end):
            key, value, headers, timestamp_ms = batch.records[index]
            try:
                if timestamp_ms < 0:  # Kafka would store it
                    raise InvalidRequest(f"timestamp_ms {timestamp_ms} is negative")
                partition = -1 if turns is None else turns.next(topic)
                # By place, its alias left out: named arguments make the call take twice its time.
                produce(topic, value, key, partition, partial(report, batch, index), None, timestamp_ms, headers)
                queued += 1
            except BufferError:
                if self._unreported or queued:
                    end = index
                    break
                batch.failures.append((index, Exhausted("the record is larger than the queue to Kafka")))
            except KafkaException as error:
                reason = produce_error(error.args[0], topic, batch.value_bytes(index))
                batch.failures.append((index, reason))
            except SuiteError as error:
                batch.failures.append((index, error))
        batch.next = max(begin, end)
        batch.queued += queued
        self._queued(queued, waited_for=True)
        return batch.next > begin

    def _queued(self, count: int, *, waited_for: bool) -> None:
        self._unreported += count
        if self._lingers and waited_for:
            self._sync_queued += count
            self._sync_came.set()

    def _finish(self, batch: Batch) -> None:
        if batch.finish_if_settled():
            self._count(batch)

    def _count(self, batch: Batch) -> None:
        self._metrics.produced[batch.topic, "stream"] += len(batch.records) - len(batch.failures)
        self._metrics.produce_failed[batch.topic, "stream"] += len(batch.failures)

    # ---- callers that waited long enough

    def _expire(self, future: asyncio.Future[Placed], topic: str) -> None:
        if not future.done():
            future.set_exception(self._no_answer(topic))

    def _expire_batch(self, batch: Batch) -> None:
        if batch.expire(self._no_answer(batch.topic)):
            self._count(batch)
            self._settled.set()  # it may wait for room

    def _no_answer(self, topic: str) -> Unavailable:
        waited = f"no acknowledgement for topic {topic!r} within {self._patience_s:g} s"
        return Unavailable(f"{waited}, the record may have been written or may still be")

    # ---- reports, from librdkafka to the thread to the event loop

    def _report(self, future: asyncio.Future[Placed] | None, size: int, error: KafkaError | None, message: Any) -> None:
        offset = message.offset()
        placed = (message.partition(), -1 if offset is None else offset)  # none: no replica was asked to tell it
        self._reports.append((future, error, message.topic(), size, placed))
        self._sync_reported += self._lingers and future is not None
        self._failed_for_good |= error is not None and error.fatal()

    def _report_of(self, batch: Batch, index: int, error: KafkaError | None, message: Any) -> None:
        if batch.expired:
            self._failed_for_good |= error is not None and error.fatal()
        elif error is None:
            batch.partitions[index] = message.partition()
            if (offset := message.offset()) is not None:
                batch.offsets[index] = offset
        else:
            batch.failures.append((index, produce_error(error, batch.topic, batch.value_bytes(index))))
            self._failed_for_good |= error.fatal()
        batch.reported += 1
        self._sync_reported += self._lingers
        if not batch.touched:
            batch.touched = True
            self._touched.append(batch)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._wait_for_reports()
            self._hand_over()
            if self._failed_for_good:
                self._renew()

    def _wait_for_reports(self) -> None:
        if not self._lingers:
            self._producer.poll(_POLL_SECONDS)
        elif self._sync_queued != self._sync_reported:
            self._producer.flush(_FLUSH_SECONDS)  # while it runs, librdkafka lets no record linger
        else:
            self._sync_came.wait(_POLL_SECONDS)
            self._sync_came.clear()
            self._producer.poll(0)

    def _hand_over(self) -> None:
        """One hop to the event loop for all the reports of a poll."""
        reports, batches = self._collect()
        if (reports or batches) and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._settle, reports, batches)

    def _collect(self) -> tuple[list[Report], list[Batch]]:
        reports = self._reports
        self._reports = []
        batches = self._touched
        self._touched = []
        for batch in batches:
            batch.touched = False
        return reports, batches

    def _renew(self) -> None:
        """After a fatal error (its sequence is broken) a producer takes no more records: go on with a new one."""
        old = self._producer
        self._producer = Producer(self._options)
        log.error("producer failed, a new one goes on", cluster=self._config.name)
        old.purge()
        old.flush(1.0)
        self._failed_for_good = False  # the reports of the purge say so again
        self._hand_over()

    def _settle(self, reports: list[Report], batches: list[Batch]) -> None:
        self._unreported -= len(reports)
        for batch in batches:
            reported = batch.reported
            self._unreported -= reported - batch.settled
            batch.settled = reported
            self._finish(batch)
        self._settled.set()
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

    @property
    def queued(self) -> int:
        """Records whose delivery is not reported yet; librdkafka's own count has its error events in it."""
        return self._unreported

    async def close(self, timeout_seconds: float) -> None:
        """Write what is queued and stop; what Kafka has not got by then is reported as failed."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)  # reports come from one thread at a time
        await asyncio.to_thread(self._producer.flush, timeout_seconds)
        if self._producer:
            self._producer.purge()
            await asyncio.to_thread(self._producer.flush, 1.0)
        self._settle(*self._collect())
