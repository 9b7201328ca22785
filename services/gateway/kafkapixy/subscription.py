"""Subscription of a group to one topic: callers wait here on the event loop, a thread reads Kafka.

Callers are unary calls, each of which takes one record, and streams, each of which takes batches. They are served in
the order of their requests; a caller that was served and wants more waits behind the others.

The thread owns the Kafka consumer: it fetches, commits and takes part in rebalances. Records to deliver are in the
`DeliveryQueue`, which both sides use under one lock that is never held across a blocking call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import structlog

from services.common.model.errors import Exhausted, NotFound, SuiteError, Unavailable
from services.gateway.kafkapixy.ack_tracker import AckRules
from services.gateway.kafkapixy.cluster_config import ClusterConfig
from services.gateway.kafkapixy.commits import Commit
from services.gateway.kafkapixy.delivery_queue import DeliveryQueue
from services.gateway.kafkapixy.metrics import ClusterMetrics
from services.gateway.kafkapixy.pending_runs import UNARY, Amount
from services.gateway.kafkapixy.topic_reader import TopicReader
from services.gateway.kafkapixy.types import (
    Caller,
    Deliveries,
    Delivery,
    Demand,
    Progress,
    Record,
    RefusedAck,
    Span,
    Stream,
)

log = structlog.get_logger(__name__)
BUFFER, STREAM_BUFFER = Amount(64, 1 << 22), Amount(2_000, 1 << 22)
"""Fetched records of a partition at which fetching pauses; the second while there are streams."""
_ONE = Demand()
_TICK_SECONDS = 0.25


@dataclass(eq=False, slots=True)
class _UnaryCaller:
    """Unary call that waits; ``future`` is its record."""

    future: asyncio.Future[Delivery[Record]]

    @property
    def done(self) -> bool:
        return self.future.done()

    def demand(self) -> Demand:
        return _ONE

    def give(self, deliveries: Deliveries) -> None:
        self.future.set_result(deliveries[0])

    def fail(self, error: SuiteError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class OnLeft(Protocol):
    """Called twice: when the subscription takes no more requests, and when its thread has ended."""

    def __call__(self, subscription: Subscription, *, ended: bool) -> None:
        """Run on the event loop."""


class Subscription:
    """All methods but the constructor are for the event loop that called ``start``.

    Attributes:
        kafka_up: Whether the cluster answers; decides the error of an empty long poll.
    """

    def __init__(self, config: ClusterConfig, group: str, topic: str, metrics: ClusterMetrics, on_left: OnLeft) -> None:
        self.group = group
        self.topic = topic
        self.kafka_up = True
        self._config = config.consume
        self._on_left = on_left
        self._log = log.bind(cluster=config.name, group=group, topic=topic)
        rules = AckRules(
            int(self._config.ack_timeout_seconds * 1e9), self._config.max_retries, self._config.max_pending_messages
        )
        self._lock = threading.Lock()
        self._queue: DeliveryQueue[Record] = DeliveryQueue(rules, buffer=BUFFER)
        self._reader = TopicReader(config, group, topic, self._queue, self._lock, self._wake, self._thread_ended)
        self._waiters: deque[Caller] = deque()
        self._streams: dict[int, Stream] = {}
        self._stopping: dict[int, SuiteError] = {}
        self._numbers = count(UNARY + 1)
        # A caller waits: for fetched records; for acks, because its limits keep it from the records there are.
        self._waits_for_records = self._waits_for_acks = False
        self._last_request_s = self._kafka_seen_s = time.monotonic()
        self._open = True
        self._drained = asyncio.Event()
        self._end = asyncio.Event()
        self._metrics = metrics
        self._counts = metrics.opened(group, topic)

    def start(self) -> None:
        """Join the group."""
        self._loop = asyncio.get_running_loop()
        self._tick_timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._reader.start()

    @property
    def waiting(self) -> int:
        """Callers that wait for a record; any thread."""
        return len(self._waiters)

    def progress(self) -> dict[int, Progress]:
        """Return the progress of each partition; any thread."""
        with self._lock:
            return self._queue.progress()

    async def consume(self) -> Delivery[Record]:
        """Return the next record of the group; wait for one as long as the long poll lasts.

        A caller that is cancelled while it waits takes nothing; call ``give_back`` for one that goes away later.

        Raises:
            NotFound: No record came.
            Exhausted: Too many callers wait already.
            Unavailable: The cluster is unavailable, or the subscription ends.
        """
        self._refuse_if_closed()
        self._last_request_s = time.monotonic()
        if not self._waiters and (found := self._take(_ONE)):
            return found[0]
        if len(self._waiters) >= self._config.channel_buffer_size:
            raise Exhausted(f"{len(self._waiters)} requests wait for group {self.group!r}, topic {self.topic!r}")
        waiter = _UnaryCaller(self._loop.create_future())
        self._waiters.append(waiter)
        if self._streams:
            self._serve()  # the callers before may only wait because of their own limits
        timer = self._loop.call_later(self._config.long_polling_timeout_ms / 1_000, self._time_out, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.done and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.give_back(waiter.future.result())
            raise
        finally:
            timer.cancel()
            self._last_request_s = time.monotonic()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> None:
        """Ack a record; see `DeliveryQueue.ack`."""
        with self._lock:
            if self._queue.ack(partition, offset, delivered_only=delivered_only):
                self._counts.acked += 1
        self._after_acks()

    def _after_acks(self) -> None:
        if self._stopping:
            self._stop_finished_streams()
        if not self._open:
            self._check_drained()
        elif self._waits_for_acks:
            self._waits_for_acks = False
            self._serve()

    @property
    def member_id(self) -> str:
        """Id that Kafka gave this member of the group; empty before it has joined."""
        return self._reader.member_id

    async def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> None:
        """Commit as a member of the group; see `TopicReader.set_offsets`."""
        await asyncio.wrap_future(self._reader.set_offsets(topic, wanted))

    def give_back(self, delivery: Delivery[Record]) -> None:
        """Deliver the record of a unary caller that went away to the next one at once."""
        with self._lock:
            self._queue.give_back(delivery, now_ns=time.monotonic_ns())
        self._serve()

    def attach(self, stream: Stream) -> int:
        """Add a stream; ``detach`` must follow. Return its number, the ``caller`` of its demands.

        Raises:
            Exhausted: Too many streams.
            Unavailable: The subscription ends.
        """
        self._refuse_if_closed()
        if len(self._streams) >= self._config.channel_buffer_size:
            raise Exhausted(f"{len(self._streams)} streams read group {self.group!r}, topic {self.topic!r}")
        number = next(self._numbers)
        self._streams[number] = stream
        self._queue.buffer = STREAM_BUFFER
        return number

    def detach(self, number: int) -> None:
        """Remove a stream: its unacked records go to others at once."""
        stream = self._streams.pop(number)
        self._stopping.pop(number, None)
        with suppress(ValueError):
            self._waiters.remove(stream)
        with self._lock:
            self._queue.release(number, now_ns=time.monotonic_ns())
        self._queue.buffer = STREAM_BUFFER if self._streams else BUFFER
        self._last_request_s = time.monotonic()
        self._after_give_back()

    def wait(self, number: int) -> None:
        """Let a stream wait for records."""
        stream = self._streams[number]
        if self._open and number not in self._stopping and stream not in self._waiters:
            self._waiters.append(stream)
            self._serve()

    def ack_spans(self, number: int, spans: Iterable[Span]) -> list[RefusedAck]:
        """Ack records that a stream was given; return the acks of others."""
        with self._lock:
            acked, refused = self._queue.ack_spans(number, spans)
            self._counts.acked += acked
        self._after_acks()
        return refused

    def give_back_spans(self, number: int, spans: Iterable[Span]) -> None:
        """Take back records that a stream will not process."""
        with self._lock:
            self._queue.give_back_spans(number, spans, now_ns=time.monotonic_ns())
        self._after_give_back()

    def _after_give_back(self) -> None:
        self._waits_for_acks = True  # any waiting caller may have the records
        self._after_acks()

    def _refuse_if_closed(self) -> None:
        if not self._open:
            raise Unavailable(f"group {self.group!r} is leaving topic {self.topic!r}")

    def _take(self, demand: Demand) -> Deliveries:
        now_ns = time.monotonic_ns()
        with self._lock:
            spent = self._queue.give_up(now_ns=now_ns)
            found = self._queue.take(demand, now_ns=now_ns)
            if not found:
                # The thread reads it under the same lock, so a record that is fetched after this wakes the waiters.
                self._waits_for_records = True
                self._waits_for_acks |= self._queue.has_undelivered
            room = False
            for delivery in found:
                room |= self._queue.has_room(delivery.partition)
        if room:
            self._reader.resume_fetching()
        for partition, run in spent:
            self._counts.dropped += len(run.records)
            self._log.error("dropped after the last retry", partition=partition, offsets=[o for o, _ in run.records])
        for delivery in found:
            self._counts.consumed += len(delivery.records)
            if delivery.redelivery:
                self._counts.redelivered[delivery.redelivery] += len(delivery.records)
        return found

    def _serve(self) -> None:
        """Deliver records to the waiters, in their order."""
        no_more_unary = False
        for caller in tuple(self._waiters):
            if caller.done:
                self._waiters.remove(caller)
                continue
            demand = caller.demand()
            if no_more_unary and demand.caller == UNARY:
                continue
            if found := self._take(demand):
                self._waiters.remove(caller)
                caller.give(found)
            elif not self._streams:
                return
            else:
                no_more_unary |= demand.caller == UNARY  # but a stream has its own limits

    def _wake(self) -> None:
        """Serve fetched records; from the thread, with the lock held. Enters the loop only if a caller waits."""
        if self._waits_for_records:
            self._waits_for_records = False
            self._loop.call_soon_threadsafe(self._serve)

    def _time_out(self, waiter: _UnaryCaller) -> None:
        if self.kafka_up:
            waiter.fail(NotFound(f"nothing new in topic {self.topic!r} for group {self.group!r}"))
        else:
            waiter.fail(Unavailable("Kafka can't be reached"))

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._serve()
        self._check_kafka()
        self._stop_finished_streams()
        if not self._open:
            self._check_drained()
        elif not self._waiters and not self._streams and self._idle():
            self._log.info("no requests, leaving the group")
            self.leave()

    def _idle(self) -> bool:
        if time.monotonic() - self._last_request_s < self._config.subscription_timeout_seconds:
            return False
        with self._lock:  # a record within its ack timeout may still be acked
            return self._queue.last_ack_deadline_ns() <= time.monotonic_ns()

    def _check_kafka(self) -> None:
        """Stop the streams that wait while Kafka is unavailable for longer than a long poll."""
        now_s = time.monotonic()
        if self.kafka_up:
            self._kafka_seen_s = now_s
        elif now_s - self._kafka_seen_s >= self._config.long_polling_timeout_ms / 1_000:
            for number, stream in self._streams.items():
                if stream in self._waiters:
                    self._waiters.remove(stream)
                    self._stopping.setdefault(number, Unavailable("Kafka can't be reached"))

    def stop_taking(self, error: SuiteError | None = None) -> None:
        """Refuse new requests and end those that wait; acks are still taken."""
        self._open = False
        reason = error or Unavailable("the gateway is stopping")
        for waiter in self._waiters:
            if isinstance(waiter, _UnaryCaller):
                waiter.fail(reason)
        self._waiters.clear()
        for number in self._streams:
            self._stopping.setdefault(number, reason)
        self._stop_finished_streams()

    def _stop_finished_streams(self) -> None:
        """Stop the streams that are to stop and have nothing left to ack within its ack timeout."""
        for number in tuple(self._stopping):
            with self._lock:
                done = self._queue.last_ack_deadline_ns(number) <= time.monotonic_ns()
            if done:
                self._streams[number].stop(self._stopping.pop(number))

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until every delivered record is acked or past its ack timeout, at most ``timeout_seconds``."""
        self._check_drained()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_seconds)

    def _check_drained(self) -> None:
        with self._lock:
            if self._queue.last_ack_deadline_ns() <= time.monotonic_ns():
                self._drained.set()

    def leave(self, error: SuiteError | None = None) -> None:
        """Commit and leave the group; ``ended`` waits for it."""
        self.stop_taking(error)
        for number, reason in self._stopping.items():
            self._streams[number].stop(reason)
        self._stopping.clear()
        self._tick_timer.cancel()
        self._on_left(self, ended=False)
        self._reader.stop()

    async def ended(self, timeout_seconds: float) -> None:
        """Wait until the group is left; after ``timeout_seconds`` do not wait for the thread."""
        try:
            await asyncio.wait_for(self._end.wait(), timeout_seconds)
        except TimeoutError:
            self._log.warning("could not leave the group in time; its last acks may be lost")

    def _thread_ended(self, error: SuiteError | None) -> None:
        """Report the end of the thread, from the thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: SuiteError | None) -> None:
        if error is not None:
            self._log.warning("reading failed", reason=str(error))
        self.leave(error)
        self._metrics.closed(self.group, self.topic)
        self._on_left(self, ended=True)
        self._end.set()
