"""One topic read for one group: requests wait here on the event loop, Kafka is read in a thread.

The thread owns the Kafka consumer: it fetches, commits, and is told of rebalances. What may be handed out is in
``Offers``, which both sides touch under one lock, never held while anything blocks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import structlog

from services.common.errors import Exhausted, NotFound, SuiteError, Unavailable
from services.gateway.config import ClusterConfig
from services.gateway.pixy.acks import AckRules
from services.gateway.pixy.metrics import ClusterMetrics
from services.gateway.pixy.offers import Commit, Delivery, Offers, Progress
from services.gateway.pixy.topic_reader import Record, TopicReader

log = structlog.get_logger(__name__)
BUFFERED_RECORDS = 64
"""Fetched records of a partition at which fetching pauses."""
_TICK_SECONDS = 0.25


class OnLeft(Protocol):
    """Told twice: when the subscription takes no more requests, and when its thread has ended."""

    def __call__(self, subscription: Subscription, *, ended: bool) -> None:
        """Runs on the event loop."""


Waiter = asyncio.Future[Delivery[Record]]


class Subscription:
    """Everything but the constructor is for the event loop that called ``start``.

    Attributes:
        kafka_up: Whether the cluster answers; decides what an empty long poll ends with.
    """

    def __init__(self, config: ClusterConfig, group: str, topic: str, metrics: ClusterMetrics, on_left: OnLeft) -> None:
        self.group, self.topic, self.kafka_up = group, topic, True
        self._rules, self._on_left = config.consume, on_left
        self._log = log.bind(cluster=config.name, group=group, topic=topic)
        rules = AckRules(
            int(self._rules.ack_timeout_seconds * 1e9), self._rules.max_retries, self._rules.max_pending_messages
        )
        self._lock = threading.Lock()
        self._offers: Offers[Record] = Offers(rules, buffer=BUFFERED_RECORDS)
        self._reader = TopicReader(config, group, topic, self._offers, self._lock, self._wake, self._thread_ended)
        self._waiters: deque[Waiter] = deque()
        self._hungry = False
        self._last_request_s = time.monotonic()
        self._open = True
        self._drained, self._end = asyncio.Event(), asyncio.Event()
        self._metrics = metrics
        self._tally = metrics.opened(group, topic)

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
        """How far each partition is; any thread."""
        with self._lock:
            return self._offers.progress()

    # ---- requests

    async def consume(self) -> Delivery[Record]:
        """The next record of the group, waiting for one as long as the long poll lasts.

        A caller that goes away while it waits takes nothing; call ``give_back`` when it goes away later.

        Raises:
            NotFound: Nothing came.
            Exhausted: Too many callers wait already.
            Unavailable: The cluster or the gateway is going away.
        """
        self._refuse_if_closed()
        self._last_request_s = time.monotonic()
        if not self._waiters and (delivery := self._next()) is not None:
            return delivery
        if len(self._waiters) >= self._rules.channel_buffer_size:
            raise Exhausted(f"{len(self._waiters)} requests wait for group {self.group!r}, topic {self.topic!r}")
        waiter: Waiter = self._loop.create_future()
        self._waiters.append(waiter)
        timer = self._loop.call_later(self._rules.long_polling_timeout_ms / 1_000, self._time_out, waiter)
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

    def ack(self, partition: int, offset: int, *, offered_only: bool = False) -> None:
        """Ack a record; see `Offers.ack`."""
        with self._lock:
            if self._offers.ack(partition, offset, offered_only=offered_only):
                self._tally.acked += 1
        if self._open:
            self._serve()  # a partition that had too many pending may go on
        else:
            self._check_drained()

    @property
    def member_id(self) -> str:
        """How Kafka calls this member of the group; empty before it has joined."""
        return self._reader.member_id

    async def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> None:
        """Commit these as a member of the group; see `TopicReader.set_offsets`."""
        await asyncio.wrap_future(self._reader.set_offsets(topic, wanted))

    def give_back(self, delivery: Delivery[Record]) -> None:
        """The caller is gone: the next one gets the record at once."""
        with self._lock:
            self._offers.give_back(delivery.partition, delivery.offset, now_ns=time.monotonic_ns())
        self._serve()

    def _refuse_if_closed(self) -> None:
        if not self._open:
            raise Unavailable(f"group {self.group!r} is leaving topic {self.topic!r}")

    def _next(self) -> Delivery[Record] | None:
        now_ns = time.monotonic_ns()
        with self._lock:
            spent = self._offers.give_up(now_ns=now_ns)
            delivery = self._offers.next(now_ns=now_ns)
            # Read by the thread under the same lock, so a record fetched after this wakes the caller that waits next.
            self._hungry = delivery is None
            room = delivery is not None and self._offers.has_room(delivery.partition)
        for partition, offer in spent:
            self._tally.dropped += 1
            self._log.error("record dropped after its last retry", partition=partition, offset=offer.offset)
        if delivery is None:
            return None
        if room:
            self._reader.go_on()
        self._tally.consumed += 1
        if delivery.again:
            self._tally.redelivered[delivery.again] += 1
        return delivery

    def _serve(self) -> None:
        """Hand out what there is to those who wait, first come first served."""
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
                continue
            delivery = self._next()
            if delivery is None:
                return
            self._waiters.popleft().set_result(delivery)

    def _time_out(self, waiter: Waiter) -> None:
        if waiter.done():
            return
        if self.kafka_up:
            error: SuiteError = NotFound(f"nothing new in topic {self.topic!r} for group {self.group!r}")
        else:
            error = Unavailable("Kafka can't be reached")
        waiter.set_exception(error)

    # ---- life

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._serve()
        if not self._open:
            self._check_drained()
        elif not self._waiters and self._idle():
            self._log.info("nobody asks any more, leaving")
            self.leave()

    def _idle(self) -> bool:
        if time.monotonic() - self._last_request_s < self._rules.subscription_timeout_seconds:
            return False
        with self._lock:  # acks may still come for what is within its timeout
            return self._offers.waits_for_ack <= time.monotonic_ns()

    def _wake(self) -> None:
        """From the thread, with the lock held: records are there. Hops to the loop only if somebody waits."""
        if self._hungry:
            self._hungry = False
            self._loop.call_soon_threadsafe(self._serve)

    def stop_taking(self, error: SuiteError | None = None) -> None:
        """Refuse new requests and end those that wait; acks are still taken."""
        self._open = False
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error or Unavailable("the gateway is stopping"))

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until all that was handed out is acked or past its ack timeout, at most so long."""
        self._check_drained()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_seconds)

    def _check_drained(self) -> None:
        with self._lock:
            if self._offers.waits_for_ack <= time.monotonic_ns():
                self._drained.set()

    def leave(self, error: SuiteError | None = None) -> None:
        """Commit and leave the group; ``ended`` waits for it."""
        self.stop_taking(error)
        self._tick_timer.cancel()
        self._on_left(self, ended=False)
        self._reader.stop()

    async def ended(self, timeout_seconds: float) -> None:
        """Wait until the group is left; after so long the thread is left to itself."""
        try:
            await asyncio.wait_for(self._end.wait(), timeout_seconds)
        except TimeoutError:
            self._log.warning("could not leave the group in time; its last acks may come again")

    def _thread_ended(self, error: SuiteError | None) -> None:
        """From the thread, as its last act."""
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: SuiteError | None) -> None:
        if error is not None:
            self._log.warning("reading failed", reason=str(error))
        self.leave(error)
        self._metrics.closed(self.group, self.topic)
        self._on_left(self, ended=True)
        self._end.set()
