"""Plain reads of one client: a member of the group reads the topic, the client's streams take from its queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import structlog
from confluent_kafka import Message
from prometheus_client import CollectorRegistry, Counter, Gauge

from dexorder_common.kafka.group_member import GroupMember
from dexorder_common.kafka.member_commits import TopicReading
from dexorder_common.kafka.partition_queue import ReadRules
from dexorder_common.kafka.topic_queue import TopicQueue
from dexorder_common.model.errors import Conflict, InvalidRequest, NotAllowed, SuiteError, Unavailable
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.topic_monitor import TopicState, client_options

log = structlog.get_logger(__name__)

MAX_RECORDS = 10_000
"""Largest number of records in one batch, however many are requested; bounds the memory."""
COMMIT_SECONDS = 0.05
JOIN_AGAIN_SECONDS = 5.0
"""Time after Kafka has refused to let us read."""
CLOSE_SECONDS = 5.0
RULES = ReadRules(sparse=False, keep_records=False, buffer_records=5_000, buffer_bytes=16 << 20)
"""The start is the topic's start. A nacked record is read from Kafka again, as clients may hold many large ones."""


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
        self.went_back = counter("logs_went_back", "Partitions read from their start because their log went back.")
        self.replay_ranges = counter("replay_ranges", "Ranges replayed to their end.")
        self.pending = gauge("pending", "Records not acked by the group; -1 if unknown.")
        self.kafka_up = gauge("kafka_up", "Whether Kafka and the topic are available.")


class TopicReader:
    """Plain reads of one client. Joins the group at the first `open` and leaves it at `close`.

    The newest stream owns the records: `open` takes back everything in flight, to be issued again on that stream. For
    one event loop.
    """

    def __init__(
        self, settings: UdsourceSettings, metrics: UdsourceMetrics, reachable: Callable[[], bool] = lambda: True
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._reachable = reachable
        self._queue: TopicQueue[Message] = TopicQueue(RULES)
        self._reading = TopicReading(settings.topic, self._queue, self._wake, self._reading_ended)
        self._member = GroupMember(settings.group, _options(settings), commit_seconds=COMMIT_SECONDS)
        self._joined = False
        self._failure: SuiteError | None = None
        self._join_again_s = 0.0
        self._ended = asyncio.Event()
        self._records = asyncio.Event()
        self._waiting = False
        self._loop = asyncio.get_running_loop()
        self._stream = 0
        self._draining = False

    async def open(self) -> int:
        """Start a new stream and return its number; the next `read` of an older stream fails."""
        self._stream += 1
        if not self._joined:
            self._joined = True
            self._join()
        with self._member.lock:
            self._queue.give_back_all(now_ns=time.monotonic_ns())
        self._records.set()  # a read of the older stream must not wait
        return self._stream

    async def read(self, stream: int, limit: int, timeout_s: float) -> list[Message]:
        """Return at most ``limit`` records as soon as there are any, or none after ``timeout_s``.

        They are in flight afterwards. While draining the list is empty.

        Raises:
            Conflict: There is a newer stream.
            Unavailable: Kafka does not let us read, for now.
            RuntimeError: The group can't be read for good, for example because another process has our instance id.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            if stream != self._stream:
                raise Conflict("another client has opened ReadFn and owns the records now")
            if self._failure is not None:
                self._raise(self._failure)
            self._records.clear()
            records = [] if self._draining else self._take(min(limit, MAX_RECORDS))
            left_s = deadline_s - time.monotonic()
            if records or limit <= 0 or left_s <= 0:
                return records
            with suppress(TimeoutError):
                await asyncio.wait_for(self._records.wait(), left_s)

    def _raise(self, failure: SuiteError) -> NoReturn:
        if not isinstance(failure, NotAllowed):
            raise RuntimeError(str(failure))  # for good: ends the process
        if time.monotonic() > self._join_again_s:
            self._join()
        raise Unavailable(str(failure))

    def _join(self) -> None:
        self._failure = None
        self._ended.clear()
        self._member = GroupMember(self._settings.group, _options(self._settings), commit_seconds=COMMIT_SECONDS)
        self._member.read(self._reading)

    def _take(self, limit: int) -> list[Message]:
        if limit <= 0:
            return []
        with self._member.lock:
            lost, found = self._queue.lost(), self._queue.take(limit, now_ns=time.monotonic_ns())
            self._waiting = not found
            went_back, self._queue.gone_back = self._queue.gone_back, 0
            lost = self._queue.lost() - lost
        self._member.resume_fetching()
        self._metrics.went_back.inc(went_back)
        self._metrics.redelivered.inc(sum(bool(each.redelivery) for each in found))
        if lost:
            self._metrics.lost.inc(lost)
            log.error("the topic dropped records before they were acked", count=lost)
        return [each.record for each in found]

    def _wake(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.call_soon_threadsafe(self._records.set)

    def _reading_ended(self, error: SuiteError | None) -> None:
        def note() -> None:
            self._failure = error
            self._join_again_s = time.monotonic() + JOIN_AGAIN_SECONDS
            self._records.set()
            self._ended.set()

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(note)

    def knows(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> bool:
        """Return whether all (partition, offset) pairs were issued, or are before the log's end in ``state``."""
        with self._member.lock:
            return not any(self._unknown(pairs, state))

    def _unknown(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> list[tuple[int, int]]:
        ends = state.ends
        return [(p, o) for p, o in pairs if o >= ends.get(p, 0) and not self._queue.was_delivered(p, o)]

    def ack(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        """Ack (partition, offset) pairs; the commit follows by itself.

        A process that was just started has issued no records, but its predecessor may have issued all up to the log's
        end: such an ack counts, and the record is not delivered.

        Raises:
            InvalidRequest: An offset is beyond the log; no pair is acked then.
        """
        with self._member.lock:
            self._refuse_unknown("ack", pairs, state)
            self._metrics.plain_acked.inc(self._queue.ack_all(pairs))

    def nack(self, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        """Take back (partition, offset) pairs; a later read returns them again.

        Raises:
            InvalidRequest: An offset is beyond the log; no pair is taken back then.
        """
        now_ns = time.monotonic_ns()
        with self._member.lock:
            self._refuse_unknown("nack", pairs, state)
            self._metrics.nacked.inc(sum(self._queue.give_back(p, o, now_ns=now_ns) for p, o in pairs))

    def _refuse_unknown(self, verb: str, pairs: Sequence[tuple[int, int]], state: TopicState) -> None:
        if unknown := self._unknown(pairs, state):
            number, offset = unknown[0]
            raise InvalidRequest(f"{verb} of offset {offset} of partition {number}, which was never issued")

    def note_topic_id(self, topic_id: str) -> None:
        """Read the topic from its start if its id has changed."""
        self._member.note_topic_id(self._reading.topic, topic_id)

    def partitions(self) -> list[int]:
        """Return the partitions that this process serves."""
        with self._member.lock:
            return self._queue.partitions

    def pending(self, state: TopicState) -> int:
        """Return the number of records of the topic that the group has not acked."""
        with self._member.lock:
            return self._queue.lag(state.starts, state.ends, state.committed)

    def in_flight(self) -> int:
        """Return the number of records issued and not answered."""
        with self._member.lock:
            return self._queue.in_flight()

    def drain(self) -> None:
        """Issue no more records; acks are still accepted."""
        self._draining = True

    async def close(self) -> None:
        """Commit the acked records and leave the group; without Kafka do not wait for it."""
        if self._joined and not self._ended.is_set():
            self._member.stop(self._reading)
            if self._reachable():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), CLOSE_SECONDS)


def _options(settings: UdsourceSettings) -> dict[str, object]:
    return {
        # Time that others wait for a killed process.
        "session.timeout.ms": 10_000,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 50,
        "queued.max.messages.kbytes": 32 * 1024,
        **({"group.instance.id": settings.instance} if settings.instance else {}),
        **client_options(settings),
    }
