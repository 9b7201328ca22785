"""Ranges of the topic, read again and again the same: assign()-consumers without a group's members, kept in a pool.

A consumer that has finished a range stays where it is: Spark's next range of the partition starts there, with its
records already on the way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from services.common.model.errors import Unavailable
from services.udsource.config import UdsourceSettings
from services.udsource.replay import OffsetRange, OffsetsGone
from services.udsource.topic_state import TopicMonitor, client_options

MOST_RECORDS = 10_000
"""Most records of one answer, however many are asked for; bounds what is in memory at once."""
WAIT_SLICE_S = 0.1
IDLE_SECONDS = 30.0
"""A consumer nobody uses stops fetching after this time."""


@dataclass(eq=False)
class _Pooled:
    consumer: Consumer
    at: tuple[int, int] | None = None
    """Partition and offset it reads next; none: anywhere."""
    held: list[Message] = field(default_factory=list)
    """Records taken from Kafka that lie at or after ``at``."""
    used_s: float = 0.0


class RangeReader:
    """Reads one range once. `read` runs in a thread, one call at a time.

    Attributes:
        position: Offset of the next record to hand out; holes may put it anywhere in the range.
        done: Everything in the range has been handed out.
    """

    def __init__(self, topic: str, span: OffsetRange, pooled: _Pooled) -> None:
        self._topic = topic
        self._span = span
        self._pooled = pooled
        self._stopped = False
        self.position = span.start
        self.done = span.start >= span.end
        self.short = False
        """The log ended before the range did when last seen."""
        self.running: asyncio.Future[list[Message]] | None = None
        """The `read` under way."""
        if not self.done and pooled.at != (span.partition, span.start):
            pooled.held.clear()
            pooled.consumer.assign([TopicPartition(topic, span.partition, span.start)])

    def stop(self) -> None:
        """Make a running `read` return soon; from any thread."""
        self._stopped = True

    def remaining(self) -> OffsetRange:
        """What has not been handed out."""
        return OffsetRange(self._span.partition, self.position, self._span.end)

    def next_position(self) -> tuple[int, int] | None:
        """Partition and offset at which the consumer stands; none unless it has read the range to its end."""
        if self.done and self.position > self._span.start:
            return self._span.partition, self._span.end
        return None

    def read(self, most: int, timeout_s: float) -> list[Message]:
        """The next records of the range, at most ``most``; as soon as there are any, none after ``timeout_s``.

        Raises:
            OffsetsGone: The next record is no longer in the topic.
            Unavailable: Kafka refuses to be read.
        """
        self.short = False
        most = min(most, MOST_RECORDS, self._span.end - self.position)
        deadline_s = time.monotonic() + timeout_s
        good: list[Message] = []
        while most > 0 and not self.done and not good and not self._stopped:
            left_s = deadline_s - time.monotonic()
            good = self._take(self._fetch(most, min(max(left_s, 0.0), WAIT_SLICE_S)))
            if left_s <= 0:
                break
        return good

    def _fetch(self, most: int, wait_s: float) -> list[Message]:
        if self._pooled.held:
            taken = self._pooled.held
            self._pooled.held = []
            return taken
        consumer = self._pooled.consumer
        # consume() with a time limit waits for the full number, so wait for one and take what is there with it.
        messages = consumer.consume(most, 0)
        if not messages and (first := consumer.poll(wait_s)) is not None:
            messages = [first, *consumer.consume(most - 1, 0)] if most > 1 else [first]
        return messages

    def _take(self, messages: list[Message]) -> list[Message]:
        good: list[Message] = []
        for index, message in enumerate(messages):
            error = message.error()
            offset = message.offset() or 0
            if error is not None:
                self._note(error, offset)
            elif offset >= self._span.end:  # a hole at the end of the range
                self._pooled.held = messages[index:]
                self.done = True
                break
            elif offset >= self.position:
                good.append(message)
                self.position = offset + 1
        self.done = self.done or self.position >= self._span.end
        return good

    def _note(self, error: KafkaError, offset: int) -> None:
        partition, code = self._span.partition, error.code()
        if code == KafkaError._PARTITION_EOF:
            # Behind the last record may lie offsets without one (compaction, transaction markers).
            self.done = self.done or offset >= self._span.end
            self.short = not self.done
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise OffsetsGone(f"offset {self.position} of partition {partition} is gone: {error.str()}")
        elif code != KafkaError._TRANSPORT and code != KafkaError._ALL_BROKERS_DOWN:
            raise Unavailable(f"partition {partition} can't be read at offset {self.position}: {error.str()}")


class ReplayPool:
    """The pool. Ranges beyond ``replay_consumers`` wait for one to end.

    Attributes:
        active: Ranges being read now.
    """

    def __init__(self, settings: UdsourceSettings, watch: TopicMonitor) -> None:
        self._settings = settings
        self._watch = watch
        self._idle: list[_Pooled] = []
        self._free = asyncio.Semaphore(settings.replay_consumers)
        self._threads = ThreadPoolExecutor(settings.replay_consumers, thread_name_prefix="replay")
        self.active = 0

    @asynccontextmanager
    async def lease(self, span: OffsetRange) -> AsyncIterator[RangeReader]:
        """A reader at the start of the range.

        Raises:
            InvalidRequest, OffsetsGone, Unavailable: The topic does not hold the range, or can't be asked.
        """
        await self._watch.check_range(span)
        await self._free.acquire()
        self.active += 1
        pooled = self._pick(span)
        reader = RangeReader(self._settings.topic, span, pooled)
        try:
            yield reader
        finally:
            reader.stop()
            if reader.running is None:
                self._put_back(reader, pooled)
            else:  # the call was cancelled; its thread is about to see stop()
                reader.running.add_done_callback(lambda _: self._put_back(reader, pooled))

    async def read(self, reader: RangeReader, most: int, timeout_s: float) -> list[Message]:
        """`RangeReader.read` in a thread; a cancelled call ends it early.

        Raises:
            OffsetsGone: Records of the range are gone.
            InvalidRequest: The log now ends inside the range (the topic was made anew or lost records).
            Unavailable: Kafka can't be read.
        """
        loop = asyncio.get_running_loop()
        reader.running = loop.run_in_executor(self._threads, reader.read, most, timeout_s)
        records = await asyncio.shield(reader.running)
        reader.running = None
        if not records and not reader.done:
            if self._watch.failure is not None:
                raise Unavailable(self._watch.failure)
            if reader.short:
                await self._watch.check_range(reader.remaining())
        return records

    def trim(self) -> None:
        """Close consumers that nobody has used for a while; call now and then."""
        now_s = time.monotonic()
        for pooled in [p for p in self._idle if now_s - p.used_s > IDLE_SECONDS]:
            self._idle.remove(pooled)
            self._threads.submit(pooled.consumer.close)

    async def close(self, *, reachable: bool) -> None:
        """Close every consumer; call when no range is being read. Without Kafka closing would wait for it."""
        if reachable:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(self._threads, p.consumer.close) for p in self._idle))
        self._idle.clear()
        self._threads.shutdown(wait=False)

    def _pick(self, span: OffsetRange) -> _Pooled:
        """The idle consumer that suits best: already there, of no use elsewhere, new, longest unused."""

        def suits(pooled: _Pooled) -> int:
            if pooled.at == (span.partition, span.start):
                return 0
            return 1 if pooled.at is None or pooled.at[0] == span.partition else 2

        best = min(self._idle, key=lambda p: (suits(p), p.used_s), default=None)
        if best is None or (suits(best) == 2 and self.active + len(self._idle) <= self._settings.replay_consumers):
            return _Pooled(Consumer(self._options()))
        self._idle.remove(best)
        return best

    def _put_back(self, reader: RangeReader, pooled: _Pooled) -> None:
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
            # Required by librdkafka, never joined: this consumer only assigns itself.
            "group.id": self._settings.replay_group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            # A fetch that waits for new records delays the first one of a new range by up to this.
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 50,
            "queued.max.messages.kbytes": 16 * 1024,
        }
