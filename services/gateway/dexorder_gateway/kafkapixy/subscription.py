"""Subscription of a group to one topic: callers wait here on the event loop, the group's member reads Kafka.

A caller takes one record. Callers are served in the order of their requests. Records to deliver are in the topic's
queue, which the member's thread fills; see `dexorder_common.kafka.group_member`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Protocol

import structlog
from confluent_kafka import Message

from dexorder_common.kafka.group_member import GroupMember
from dexorder_common.kafka.member_commits import NotAssigned, TopicReading
from dexorder_common.kafka.partition_queue import BEGINNING, END, Delivery, QueueProgress, ReadRules
from dexorder_common.kafka.topic_queue import TopicQueue
from dexorder_common.model.errors import Exhausted, NotFound, SuiteError, Unavailable
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig
from dexorder_gateway.kafkapixy.metrics import ClusterMetrics

log = structlog.get_logger(__name__)
_MAX_TICK_SECONDS = 1.0
BUFFER_RECORDS, BUFFER_BYTES = 4_000, 1 << 22
"""Fetched records of a group's topic, and their bytes, at which fetching pauses.

A partition that was paused waits for a running fetch, up to ``fetch_wait_ms``, before it is fetched again: the buffer
must last so long.
"""


class OnLeft(Protocol):
    """Called twice: when the subscription takes no more requests, and when its topic is no longer read."""

    def __call__(self, subscription: PixySubscription, *, ended: bool) -> None:
        """Run on the event loop."""


def read_rules(config: ConsumeConfig) -> ReadRules:
    """Return the rules of Kafka-Pixy's consumers."""
    return ReadRules(
        new_group_start=BEGINNING if config.new_group_start == "earliest" else END,
        ack_timeout_ns=int(config.ack_timeout_seconds * 1e9),
        max_pending=config.max_pending_messages,
        max_retries=config.max_retries,
        buffer_records=BUFFER_RECORDS,
        buffer_bytes=BUFFER_BYTES,
        buffer_shared=True,
    )


class PixySubscription:
    """All methods but the constructor are for the event loop that called ``start``.

    Attributes:
        kafka_up: Whether the cluster answers; decides the error of an empty long poll.
        member: The group's member; it is shared by the group's subscriptions.
    """

    def __init__(self, config: ClusterConfig, group: str, topic: str, metrics: ClusterMetrics, on_left: OnLeft) -> None:
        self.group = group
        self.topic = topic
        self.kafka_up = True
        self._config = config.consume
        # Each tick looks for timeouts, which need no more than a quarter of their time.
        shortest = min(config.consume.ack_timeout_seconds, config.consume.subscription_timeout_seconds)
        self._tick_seconds = min(_MAX_TICK_SECONDS, shortest / 4)
        self._on_left = on_left
        self._log = log.bind(cluster=config.name, group=group, topic=topic)
        self._queue: TopicQueue[Message] = TopicQueue(read_rules(config.consume))
        self._reading = TopicReading(topic, self._queue, self._wake, self._reading_ended)
        self._waiters: deque[asyncio.Future[Delivery[Message]]] = deque()
        # A caller waits: for fetched records; for acks, because the limits keep it from the records there are.
        self._waits_for_records = self._waits_for_acks = False
        self._last_request_s = time.monotonic()
        self._open = True
        self._drained = asyncio.Event()
        self._end = asyncio.Event()
        self._metrics = metrics
        self._counts = metrics.opened(group, topic)

    def start(self, member: GroupMember) -> bool:
        """Read the topic as the group's member; return False if this member takes no more topics."""
        self.member = member
        self._loop = asyncio.get_running_loop()
        if not member.read(self._reading):
            return False
        self._tick_timer = self._loop.call_later(self._tick_seconds, self._tick)
        return True

    @property
    def waiting(self) -> int:
        """Callers that wait for a record; any thread."""
        return len(self._waiters)

    def progress(self) -> dict[int, QueueProgress]:
        """Return the progress of each partition; any thread."""
        with self.member.lock:
            return self._queue.progress()

    async def consume(self) -> Delivery[Message]:
        """Return the next record of the group; wait for one as long as the long poll lasts.

        A caller that is cancelled while it waits takes no record; call ``give_back`` for one that goes away later.

        Raises:
            NotFound: No record came.
            Exhausted: Too many callers wait already.
            Unavailable: The cluster is unavailable, or the subscription ends.
        """
        if not self._open:
            raise Unavailable(f"group {self.group!r} is leaving topic {self.topic!r}")
        self._last_request_s = time.monotonic()
        if not self._waiters and (found := self._take()) is not None:
            return found
        if len(self._waiters) >= self._config.channel_buffer_size:
            raise Exhausted(f"{len(self._waiters)} requests wait for group {self.group!r}, topic {self.topic!r}")
        waiter: asyncio.Future[Delivery[Message]] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = self._loop.call_later(self._config.long_polling_timeout_ms / 1_000, self._time_out, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())
            raise
        finally:
            timer.cancel()
            self._last_request_s = time.monotonic()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> None:
        """Ack a record; see `TopicQueue.ack`. Raises NotAssigned if the partition is not read here."""
        with self.member.lock:
            if not self._queue.is_assigned(partition):
                raise NotAssigned(f"partition {partition} is not assigned to this gateway")
            if self._queue.ack(partition, offset, delivered_only=delivered_only):
                self._counts.acked += 1
        if not self._open:
            self._check_drained()
        elif self._waits_for_acks:
            self._waits_for_acks = False
            self._serve()

    def give_back(self, delivery: Delivery[Message]) -> None:
        """Deliver the record of a caller that went away to the next one at once."""
        with self.member.lock:
            self._queue.give_back(delivery.partition, delivery.offset, now_ns=time.monotonic_ns())
        self._serve()

    def _take(self) -> Delivery[Message] | None:
        now_ns = time.monotonic_ns()
        with self.member.lock:
            spent = self._queue.give_up(now_ns=now_ns) if self._config.max_retries >= 0 else ()
            found = self._queue.take(now_ns=now_ns)
            if not found:
                # The thread reads it under the same lock, so a record that is fetched after this wakes the waiters.
                self._waits_for_records = True
                self._waits_for_acks |= self._queue.has_undelivered
            went_back, self._queue.gone_back = self._queue.gone_back, 0
            room = bool(found) and self._queue.has_room(found[0].partition)
        if room:
            self.member.resume_fetching()
        self._counts.went_back += went_back
        for partition, offsets in spent:
            self._counts.dropped += len(offsets)
            self._log.error("dropped after the last retry", partition=partition, offsets=offsets)
        if not found:
            return None
        self._counts.consumed += 1
        if found[0].redelivery:
            self._counts.redelivered[found[0].redelivery] += 1
        return found[0]

    def _serve(self) -> None:
        """Deliver records to the waiters, in their order."""
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
            elif (found := self._take()) is None:
                return
            else:
                self._waiters.popleft().set_result(found)

    def _wake(self) -> None:
        """Serve fetched records; from the thread, with the lock held. Enters the loop only if a caller waits."""
        if self._waits_for_records:
            self._waits_for_records = False
            self._loop.call_soon_threadsafe(self._serve)

    def _time_out(self, waiter: asyncio.Future[Delivery[Message]]) -> None:
        if self.kafka_up:
            _fail(waiter, NotFound("long polling timeout"))  # Kafka-Pixy's words, which clients match
        else:
            _fail(waiter, Unavailable("Kafka can't be reached"))

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(self._tick_seconds, self._tick)
        self._serve()
        if not self._open:
            self._check_drained()
        elif not self._waiters and self._idle():
            self._log.info("no requests, leaving the group")
            self.leave()

    def _idle(self) -> bool:
        if time.monotonic() - self._last_request_s < self._config.subscription_timeout_seconds:
            return False
        with self.member.lock:  # a record within its ack timeout may still be acked
            return self._queue.last_ack_deadline_ns() <= time.monotonic_ns()

    def stop_taking(self, error: SuiteError | None = None) -> None:
        """Refuse new requests and end waiting ones; acks are still taken."""
        self._open = False
        for waiter in self._waiters:
            _fail(waiter, error or Unavailable("the gateway is stopping"))
        self._waiters.clear()

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until every delivered record is acked or past its ack timeout, at most ``timeout_seconds``."""
        self._check_drained()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_seconds)

    def _check_drained(self) -> None:
        with self.member.lock:
            if self._queue.last_ack_deadline_ns() <= time.monotonic_ns():
                self._drained.set()

    def leave(self, error: SuiteError | None = None) -> None:
        """Commit and read the topic no longer; ``ended`` waits for it."""
        self.stop_taking(error)
        self._tick_timer.cancel()
        self._on_left(self, ended=False)
        self.member.stop(self._reading)

    async def ended(self, timeout_seconds: float) -> None:
        """Wait until the topic is no longer read; after ``timeout_seconds`` do not wait for the thread."""
        try:
            await asyncio.wait_for(self._end.wait(), timeout_seconds)
        except TimeoutError:
            self._log.warning("could not leave the group in time; its last acks may be lost")

    def _reading_ended(self, error: SuiteError | None) -> None:
        """Report the end of reading, from the thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: SuiteError | None) -> None:
        if error is not None:
            self._log.warning("reading failed", reason=str(error))
        self.leave(error)
        self._metrics.closed(self.group, self.topic)
        self._on_left(self, ended=True)
        self._end.set()


def _fail(waiter: asyncio.Future[Delivery[Message]], error: SuiteError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
