"""One topic read for one group: requests wait here on the event loop, Kafka is read in a thread.

Callers are unary calls, each of which takes a record, and streams, each of which takes a batch. First come first
served; who was served and wants more waits behind the others.

The thread owns the Kafka consumer: it fetches, commits, and is told of rebalances. What may be handed out is in
``Offers``, which both sides touch under one lock, never held while anything blocks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Protocol

import structlog

from services.common.model.errors import Exhausted, NotFound, SuiteError, Unavailable
from services.gateway.config import ClusterConfig
from services.gateway.kafkapixy.ack_tracker import AckRules
from services.gateway.kafkapixy.callers import ONE, Caller, Deliveries, Stream, UnaryCaller
from services.gateway.kafkapixy.delivery_queue import DeliveryQueue
from services.gateway.kafkapixy.metrics import ClusterMetrics
from services.gateway.kafkapixy.pending_runs import UNARY
from services.gateway.kafkapixy.start_position import Commit
from services.gateway.kafkapixy.topic_reader import Record, TopicReader
from services.gateway.kafkapixy.types import Buffer, Delivery, Demand, Progress, RefusedAck, Span

log = structlog.get_logger(__name__)
BUFFER, STREAM_BUFFER = Buffer(64), Buffer(2_000)
"""Fetched records of a partition at which fetching pauses; the second while there are streams."""
_TICK_SECONDS = 0.25


class OnLeft(Protocol):
    """Told twice: when the subscription takes no more requests, and when its thread has ended."""

    def __call__(self, subscription: Subscription, *, ended: bool) -> None:
        """Runs on the event loop."""


class Subscription:
    """Everything but the constructor is for the event loop that called ``start``.

    Attributes:
        kafka_up: Whether the cluster answers; decides what an empty long poll ends with.
    """

    def __init__(self, config: ClusterConfig, group: str, topic: str, metrics: ClusterMetrics, on_left: OnLeft) -> None:
        self.group = group
        self.topic = topic
        self.kafka_up = True
        self._rules = config.consume
        self._on_left = on_left
        self._log = log.bind(cluster=config.name, group=group, topic=topic)
        rules = AckRules(
            int(self._rules.ack_timeout_seconds * 1e9), self._rules.max_retries, self._rules.max_pending_messages
        )
        self._lock = threading.Lock()
        self._queue: DeliveryQueue[Record] = DeliveryQueue(rules, buffer=BUFFER)
        self._reader = TopicReader(config, group, topic, self._queue, self._lock, self._wake, self._thread_ended)
        self._waiters: deque[Caller] = deque()
        self._streams: dict[int, Stream] = {}
        self._stopping: dict[int, SuiteError] = {}
        self._numbers = count(UNARY + 1)
        # Somebody waits: for any record that is fetched; for acks, as records are there that its limits keep from it.
        self._hungry = self._held_back = False
        self._last_request_s = self._kafka_seen_s = time.monotonic()
        self._open = True
        self._drained = asyncio.Event()
        self._end = asyncio.Event()
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
            return self._queue.progress()

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
        if not self._waiters and (found := self._take(ONE)):
            return found[0]
        if len(self._waiters) >= self._rules.channel_buffer_size:
            raise Exhausted(f"{len(self._waiters)} requests wait for group {self.group!r}, topic {self.topic!r}")
        waiter = UnaryCaller(self._loop.create_future())
        self._waiters.append(waiter)
        if self._streams:
            self._serve()  # those before may only wait because of their own limits
        timer = self._loop.call_later(self._rules.long_polling_timeout_ms / 1_000, self._time_out, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.gone and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.give_back(waiter.future.result())
            raise
        finally:
            timer.cancel()
            self._last_request_s = time.monotonic()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> None:
        """Ack a record; see `Offers.ack`."""
        with self._lock:
            if self._queue.ack(partition, offset, delivered_only=delivered_only):
                self._tally.acked += 1
        self._acks_came()

    def _acks_came(self) -> None:
        if self._stopping:
            self._stop_streams_that_are_done()
        if not self._open:
            self._check_drained()
        elif self._held_back:
            self._held_back = False
            self._serve()  # who had too many unacked may go on

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
            self._queue.give_back(delivery, now_ns=time.monotonic_ns())
        self._serve()

    # ---- streams

    def attach(self, stream: Stream) -> int:
        """A stream begins to read; ``detach`` must follow.

        Returns:
            Its number, the ``caller`` of what it asks for.
        Raises:
            Exhausted: There are too many.
            Unavailable: The gateway is going away.
        """
        self._refuse_if_closed()
        if len(self._streams) >= self._rules.channel_buffer_size:
            raise Exhausted(f"{len(self._streams)} streams read group {self.group!r}, topic {self.topic!r}")
        number = next(self._numbers)
        self._streams[number] = stream
        self._queue.buffer = STREAM_BUFFER
        return number

    def detach(self, number: int) -> None:
        """The stream is over: others get what it had and did not ack, at once."""
        stream = self._streams.pop(number)
        self._stopping.pop(number, None)
        with suppress(ValueError):
            self._waiters.remove(stream)
        with self._lock:
            self._queue.release(number, now_ns=time.monotonic_ns())
        self._queue.buffer = STREAM_BUFFER if self._streams else BUFFER
        self._last_request_s = time.monotonic()
        self._records_came_back()

    def wait(self, number: int) -> None:
        """Give a stream something as soon as it is its turn."""
        stream = self._streams[number]
        if self._open and number not in self._stopping and stream not in self._waiters:
            self._waiters.append(stream)
            self._serve()

    def ack_spans(self, number: int, spans: Iterable[Span]) -> list[RefusedAck]:
        """Ack what a stream was given of these; returns those that were not its to ack."""
        with self._lock:
            acked, refused = self._queue.ack_spans(number, spans)
            self._tally.acked += acked
        self._acks_came()
        return refused

    def give_back_spans(self, number: int, spans: Iterable[Span]) -> None:
        """A stream will not deal with these: they go to whoever asks next."""
        with self._lock:
            self._queue.give_back_spans(number, spans, now_ns=time.monotonic_ns())
        self._records_came_back()

    def _records_came_back(self) -> None:
        self._held_back = True  # whoever waits may have them
        self._acks_came()

    # ---- what there is

    def _refuse_if_closed(self) -> None:
        if not self._open:
            raise Unavailable(f"group {self.group!r} is leaving topic {self.topic!r}")

    def _take(self, ask: Demand) -> Deliveries:
        now_ns = time.monotonic_ns()
        with self._lock:
            spent = self._queue.give_up(now_ns=now_ns)
            found = self._queue.take(ask, now_ns=now_ns)
            if not found:
                # Read by the thread under the same lock, so that a record fetched after this wakes who waits.
                self._hungry = True
                self._held_back |= self._queue.holds_back
            room = False
            for delivery in found:
                room |= self._queue.has_room(delivery.partition)
        if room:
            self._reader.resume_fetching()
        for partition, run in spent:
            self._tally.dropped += len(run.records)
            self._log.error("dropped after the last retry", partition=partition, offsets=[o for o, _ in run.records])
        for delivery in found:
            self._tally.consumed += len(delivery.records)
            if delivery.again:
                self._tally.redelivered[delivery.again] += len(delivery.records)
        return found

    def _serve(self) -> None:
        """Hand out what there is to those who wait, first come first served."""
        no_more_unary = False
        for caller in tuple(self._waiters):
            if caller.gone:
                self._waiters.remove(caller)
                continue
            ask = caller.ask()
            if no_more_unary and ask.caller == UNARY:
                continue
            if found := self._take(ask):
                self._waiters.remove(caller)
                caller.give(found)
            elif not self._streams:
                return
            else:
                no_more_unary |= ask.caller == UNARY  # but a stream has limits of its own

    def _time_out(self, waiter: UnaryCaller) -> None:
        if self.kafka_up:
            waiter.fail(NotFound(f"nothing new in topic {self.topic!r} for group {self.group!r}"))
        else:
            waiter.fail(Unavailable("Kafka can't be reached"))

    # ---- life

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._serve()
        self._look_at_kafka()
        self._stop_streams_that_are_done()
        if not self._open:
            self._check_drained()
        elif not self._waiters and not self._streams and self._idle():
            self._log.info("nobody asks any more, leaving")
            self.leave()

    def _idle(self) -> bool:
        if time.monotonic() - self._last_request_s < self._rules.subscription_timeout_seconds:
            return False
        with self._lock:  # acks may still come for what is within its timeout
            return self._queue.last_ack_deadline_ns <= time.monotonic_ns()

    def _look_at_kafka(self) -> None:
        """A stream that waits is told when Kafka is away for longer than a long poll may last."""
        now_s = time.monotonic()
        if self.kafka_up:
            self._kafka_seen_s = now_s
        elif now_s - self._kafka_seen_s >= self._rules.long_polling_timeout_ms / 1_000:
            for number, stream in self._streams.items():
                if stream in self._waiters:
                    self._waiters.remove(stream)
                    self._stopping.setdefault(number, Unavailable("Kafka can't be reached"))

    def _wake(self) -> None:
        """From the thread, with the lock held: records are there. Hops to the loop only if somebody waits."""
        if self._hungry:
            self._hungry = False
            self._loop.call_soon_threadsafe(self._serve)

    def stop_taking(self, error: SuiteError | None = None) -> None:
        """Refuse new requests and end those that wait; acks are still taken."""
        self._open = False
        reason = error or Unavailable("the gateway is stopping")
        for waiter in self._waiters:
            if isinstance(waiter, UnaryCaller):
                waiter.fail(reason)
        self._waiters.clear()
        for number in self._streams:
            self._stopping.setdefault(number, reason)
        self._stop_streams_that_are_done()

    def _stop_streams_that_are_done(self) -> None:
        """Those that are to stop may ack what they have before, within its ack timeout."""
        for number in tuple(self._stopping):
            with self._lock:
                done = self._queue.last_ack_deadline_of(number) <= time.monotonic_ns()
            if done:
                self._streams[number].stop(self._stopping.pop(number))

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until all that was handed out is acked or past its ack timeout, at most so long."""
        self._check_drained()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_seconds)

    def _check_drained(self) -> None:
        with self._lock:
            if self._queue.last_ack_deadline_ns <= time.monotonic_ns():
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
