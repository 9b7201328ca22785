"""Replays of ranges of the topic by a pool of consumers that assign themselves and join no group.

A consumer that has finished a range keeps its position: Spark's next range of the partition starts there, and its
records are already being fetched. Another topic than the one of plain reads is opened at the first call that names it
(metadata ``x-topic``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message

from dexorder_common.kafka.member_commits import position_of
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.replay import OffsetsGone, ReplayRange
from dexorder_udsource.topic_monitor import TopicMonitor, client_options
from dexorder_udsource.topic_reader import MAX_RECORDS

WAIT_SLICE_S = 0.1
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
IDLE_SECONDS = 30.0
"""An unused consumer is closed after this time."""


@dataclass(eq=False)
class _PooledConsumer:
    consumer: Consumer
    log: tuple[str, Mapping[int, int]]
    """Topic that it reads, and its leaders' epochs; it may have fetched records or errors of it in advance."""
    at: tuple[int, int] | None = None
    """Partition and offset that it reads next; None without a position."""
    held: list[Message] = field(default_factory=list)
    """Records fetched from Kafka, at or after ``at``."""
    used_s: float = 0.0


class RangeReader:
    """Reads one range once. `read` runs in a thread, one call at a time.

    Args:
        check_log: Have Kafka check first that the log up to the range's end has the range's epoch.
    """

    def __init__(self, topic: str, span: ReplayRange, pooled: _PooledConsumer, *, check_log: bool = False) -> None:
        self._topic = topic
        self._span = span
        self._pooled = pooled
        self._stopped = False
        self._again = False
        self._checking = check_log
        self.position = span.start
        """Offset after the last record that was returned."""
        self.done = span.start >= span.end and not check_log
        """All records of the range were returned."""
        self.short = False
        """At the last read the log ended before the range."""
        self.running: asyncio.Future[list[Message]] | None = None
        """The running `read`."""
        if check_log:
            self._assign(span.end)
        elif not self.done and pooled.at != (span.partition, span.start):
            self._assign(span.start)

    def _assign(self, offset: int) -> None:
        """Continue at an offset; with an epoch, Kafka's client first compares the log before it."""
        self._pooled.held.clear()
        self._pooled.consumer.assign([position_of(self._topic, self._span.partition, offset, epoch=self._span.epoch)])

    def stop(self) -> None:
        """Make a running `read` return soon; may be called from any thread."""
        self._stopped = True

    def remaining(self) -> ReplayRange:
        """Return the part of the range that was not returned yet."""
        return ReplayRange(self._span.partition, self.position, self._span.end)

    def next_position(self) -> tuple[int, int] | None:
        """Return the partition and offset of the consumer; None unless it has read the range to its end."""
        if self.done and self.position > self._span.start:
            return self._span.partition, self._span.end
        return None

    def read(self, limit: int, timeout_s: float) -> list[Message]:
        """Return at most ``limit`` records of the range as soon as there are any; none after ``timeout_s``.

        Raises:
            OffsetsGone: The next record is no longer in the topic, or the log lost records of the range's epoch.
            Unavailable: Kafka can't be read.
        """
        self.short = False
        if self._checking:
            return self._check_log(time.monotonic() + timeout_s)
        limit = min(limit, MAX_RECORDS, self._span.end - self.position)
        deadline_s = time.monotonic() + timeout_s
        good: list[Message] = []
        while limit > 0 and not self.done and not good and not self._stopped:
            left_s = deadline_s - time.monotonic()
            good = self._take(self._fetch(limit, min(max(left_s, 0.0), WAIT_SLICE_S)))
            if left_s <= 0:
                break
        return good

    def _check_log(self, deadline_s: float) -> list[Message]:
        """Wait for Kafka's answer about the log before the range's end, which is a record or the log's end there."""
        while self._checking and not self._stopped and (left_s := deadline_s - time.monotonic()) > 0:
            for message in self._fetch(1, min(left_s, WAIT_SLICE_S)):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    self._note(error, message.offset(), self._span.end)
                else:
                    self._checking, self.done = False, self._span.start >= self._span.end
                    if not self.done:
                        self._assign(self._span.start)
        return []

    def _fetch(self, limit: int, wait_s: float) -> list[Message]:
        if self._pooled.held:
            taken, self._pooled.held = self._pooled.held, []
            return taken
        # consume() with a timeout waits for the full number, so this waits for one and takes the others that are there.
        consumer = self._pooled.consumer
        messages = consumer.consume(limit, 0)
        if not messages and (first := consumer.poll(wait_s)) is not None:
            messages = [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]
        return messages

    def _take(self, messages: list[Message]) -> list[Message]:
        good: list[Message] = []
        for index, message in enumerate(messages):
            error = message.error()
            offset = message.offset() or 0
            if error is not None:
                self._note(error, message.offset(), self.position)
            elif offset >= self._span.end:  # a hole at the end of the range
                self._pooled.held = messages[index:]
                self.done = True
                break
            elif offset >= self.position:
                good.append(message)
                self.position = offset + 1
        self.done = self.done or self.position >= self._span.end
        return good

    def _note(self, error: KafkaError, offset: int | None, position: int) -> None:
        partition, code = self._span.partition, error.code()
        if code == KafkaError._PARTITION_EOF:
            # Offsets without a record (compaction, transaction markers) may follow the last record.
            self.done = self.done or (offset or 0) >= self._span.end
            self.short = not self.done
        elif code in _GONE:
            # The consumer met it before this range; an error about the log as a whole comes without an offset.
            if offset is not None and offset != position and not self._again:
                self._again = True
                self._assign(position)
                return
            raise OffsetsGone(f"offset {position} of partition {partition} is gone: {error.str()}")
        elif code != KafkaError._TRANSPORT and code != KafkaError._ALL_BROKERS_DOWN:
            raise Unavailable(f"partition {partition} can't be read at offset {position}: {error.str()}")


class ReplayPool:
    """Pool of consumers. Ranges beyond ``replay_consumers`` wait for another to end."""

    def __init__(self, settings: UdsourceSettings, monitor: TopicMonitor) -> None:
        self._settings = settings
        self._monitor = monitor
        self._idle: list[_PooledConsumer] = []
        self._free = asyncio.Semaphore(settings.replay_consumers)
        self._threads = ThreadPoolExecutor(settings.replay_consumers, thread_name_prefix="replay")
        self.active = 0
        """Ranges that are being read."""
        self.record_bytes = 0
        """Average size of the latest records; 0 before the first."""

    @asynccontextmanager
    async def open(self, span: ReplayRange) -> AsyncIterator[RangeReader]:
        """Lend a reader at the start of a range.

        Raises:
            InvalidRequest, OffsetsGone, Unavailable: The topic does not hold the range, or can't be queried.
        """
        await self._monitor.check_range(span)
        await self._free.acquire()
        self.active += 1
        state = self._monitor.state
        # Without another leader since the epoch, no record was lost. Records that retention removed can't be compared.
        check_log = span.epoch >= 0 and state.epochs.get(span.partition, span.epoch) != span.epoch
        check_log &= span.end >= state.starts.get(span.partition, 0)
        # librdkafka compares a log only for a consumer that has not read it yet.
        pooled = self._new_consumer() if check_log else self._pick(span)
        reader = RangeReader(self._settings.topic, span, pooled, check_log=check_log)
        try:
            yield reader
        finally:
            reader.stop()
            if reader.running is None:
                self._put_back(reader, pooled)
            else:  # the call was cancelled; its thread returns soon after stop()
                reader.running.add_done_callback(lambda _: self._put_back(reader, pooled))

    async def read(self, reader: RangeReader, limit: int, timeout_s: float) -> list[Message]:
        """Call `RangeReader.read` in a thread; a cancelled call ends it early.

        Raises:
            OffsetsGone: Records of the range are gone.
            InvalidRequest: The log now ends inside the range because the topic was created again or lost records.
            Unavailable: Kafka can't be read.
        """
        loop = asyncio.get_running_loop()
        reader.running = loop.run_in_executor(self._threads, reader.read, limit, timeout_s)
        records = await asyncio.shield(reader.running)
        reader.running = None
        if records:
            latest = sum(map(len, records)) // len(records)
            self.record_bytes = max(1, (self.record_bytes + latest) // 2 if self.record_bytes else latest)
        if not records and not reader.done:
            if self._monitor.failure is not None:
                raise Unavailable(self._monitor.failure)
            if reader.short:
                await self._monitor.check_range(reader.remaining())
        return records

    def trim(self) -> None:
        """Close consumers that were not used for ``IDLE_SECONDS``; call periodically."""
        now_s = time.monotonic()
        self._close_idle([p for p in self._idle if now_s - p.used_s > IDLE_SECONDS])

    def _close_idle(self, unused: Iterable[_PooledConsumer]) -> None:
        for pooled in unused:
            self._idle.remove(pooled)
            self._threads.submit(pooled.consumer.close)

    async def close(self, *, reachable: bool) -> None:
        """Close every consumer; call when no range is being read. Without Kafka, closing would wait for it."""
        if reachable:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(self._threads, p.consumer.close) for p in self._idle))
        self._idle.clear()
        self._threads.shutdown(wait=False)

    def _pick(self, span: ReplayRange) -> _PooledConsumer:
        """Return the best consumer: at the range's start, of the same partition or none, new, or longest unused."""
        self._close_idle([p for p in self._idle if p.log != self._log])

        def rank(pooled: _PooledConsumer) -> int:
            if pooled.at == (span.partition, span.start):
                return 0
            return 1 if pooled.at is None or pooled.at[0] == span.partition else 2

        best = min(self._idle, key=lambda p: (rank(p), p.used_s), default=None)
        if best is None or (rank(best) == 2 and self.active + len(self._idle) <= self._settings.replay_consumers):
            return self._new_consumer()
        self._idle.remove(best)
        return best

    @property
    def _log(self) -> tuple[str, Mapping[int, int]]:
        return self._monitor.state.topic_id, self._monitor.state.epochs

    def _new_consumer(self) -> _PooledConsumer:
        return _PooledConsumer(Consumer(self._options()), self._log)

    def _put_back(self, reader: RangeReader, pooled: _PooledConsumer) -> None:
        pooled.at = reader.next_position()
        if pooled.at is None:
            pooled.held.clear()
        pooled.used_s = time.monotonic()
        self._idle.append(pooled)
        self.active -= 1
        self._free.release()

    def _options(self) -> dict[str, object]:
        return {
            **client_options(self._settings),
            # required by librdkafka; the consumer never joins the group
            "group.id": self._settings.replay_group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            # A fetch that waits for new records delays the first record of a new range by up to this time.
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 50,
            "queued.max.messages.kbytes": 16 * 1024,
        }


@dataclass(frozen=True)
class ReplayTopic:
    """One topic: its state, and the consumers of its ranges."""

    monitor: TopicMonitor
    ranges: ReplayPool


class ReplayTopics:
    """All topics of one process."""

    def __init__(self, settings: UdsourceSettings, main: ReplayTopic) -> None:
        """Create the topics; ``main`` is the topic of plain reads."""
        self._settings = settings
        self._opened = {settings.topic: main}

    def of(self, name: str) -> ReplayTopic:
        """Return a topic by its name, the one of plain reads for an empty name; InvalidRequest if it is not served."""
        topic = self._opened.get(name or self._settings.topic)
        if topic is None:
            if name not in self._settings.further_topics:
                served = ", ".join([self._settings.topic, *self._settings.further_topics])
                raise InvalidRequest(f"metadata x-topic {name!r} is not one of the topics served: {served}")
            settings = self._settings.model_copy(update={"topic": name})
            monitor = TopicMonitor(settings, has_plain_reads=False)
            topic = self._opened[name] = ReplayTopic(monitor, ReplayPool(settings, monitor))
        return topic

    @property
    def active(self) -> int:
        """Ranges that are being read."""
        return sum(each.ranges.active for each in self._opened.values())

    def trim(self) -> None:
        """Close consumers that were not used for some time; call periodically."""
        for each in self._opened.values():
            each.ranges.trim()

    async def close(self) -> None:
        """Close everything; call when no range is being read."""
        topics = self._opened.values()
        await asyncio.gather(*(each.ranges.close(reachable=each.monitor.ready) for each in topics))
        await asyncio.gather(*(each.monitor.close() for each in topics))
