"""Where the topic begins and ends and how far the groups are: asked of Kafka, remembered for a moment.

Every question has a time limit, and none makes this process a member of a group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from services.common.kafka.client_options import LIBRDKAFKA_LOG
from services.common.model.errors import InvalidRequest, Unavailable
from services.udsource import replay
from services.udsource.config import UdsourceSettings
from services.udsource.group_offsets import GroupOffsets

log = structlog.get_logger(__name__)
T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
HANGS_S = 3.0
"""Without an answer for so long, a Kafka that was there counts as away, however long the question may still take."""


def client_options(settings: UdsourceSettings) -> dict[str, Any]:
    """librdkafka properties of every client of ours."""
    return {
        "bootstrap.servers": settings.kafka,
        "client.id": "dexorder-udsource",
        "reconnect.backoff.max.ms": 1_000,
        "logger": LIBRDKAFKA_LOG,
        **settings.kafka_options,
    }


@dataclass(frozen=True)
class TopicState:
    """Partition -> offset, at one moment.

    Attributes:
        starts: First offset that is still there.
        ends: Offset after the last one a reader can get (open transactions are not in it).
        committed: Commits of the group of plain reads; a partition without one is absent.
        replayed: Commits of the replay group.
    """

    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    committed: Mapping[int, int] = field(default_factory=dict)
    replayed: Mapping[int, int] = field(default_factory=dict)

    def replay_lag(self) -> int:
        """Records the replay group has not acked."""
        return sum(max(0, e - max(self.replayed.get(p, 0), self.starts.get(p, 0))) for p, e in self.ends.items())


class TopicMonitor:
    """One topic of one cluster.

    Attributes:
        state: The last answer; empty before the first.
        failure: Why the last question had no answer; None if it had one, or none has been asked yet.
    """

    def __init__(self, settings: UdsourceSettings) -> None:
        self._settings = settings
        options = client_options(settings)
        self._admin = AdminClient(options)
        self._plain_group = GroupOffsets(options, settings.group, settings.topic)
        self._replay_group = GroupOffsets(options, settings.replay_group, settings.topic)
        self._fetching: asyncio.Task[TopicState] | None = None
        self._asked_s = 0.0
        self._failed_s = 0.0
        self._commit_lock = asyncio.Lock()
        self.state = TopicState()
        self.failure: str | None = None

    @property
    def ready(self) -> bool:
        """Whether Kafka and the topic were there when last asked."""
        return self._asked_s > 0 and self.failure is None

    async def fresh(self, max_age_s: float) -> TopicState:
        """The state as it was at most ``max_age_s`` seconds ago; callers at the same time share one question.

        Raises:
            Unavailable: Kafka does not answer, or the topic is not there.
        """
        if self.ready and time.monotonic() - self._asked_s <= max_age_s:
            return self.state
        if self.failure is not None and time.monotonic() - self._failed_s <= self._settings.poll_seconds:
            raise Unavailable(self.failure)  # a question to a broker that is away takes its whole time limit
        # A question under way was asked before this call: good enough unless the newest answer is wanted.
        if self._fetching is None or max_age_s <= 0:
            self._fetching = asyncio.create_task(self._ask())
            # Every asker may be cancelled; the failure is kept in ``failure`` all the same.
            self._fetching.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._fetching)

    async def look(self) -> TopicState:
        """The state now, for health: a Kafka that was there and hangs is away after ``HANGS_S``.

        Raises:
            Unavailable: Kafka does not answer, or the topic is not there.
        """
        try:
            async with asyncio.timeout(HANGS_S if self.ready else None):
                return await self.fresh(0)
        except TimeoutError:
            self.failure = f"Kafka at {self._settings.kafka}: no answer within {HANGS_S:g} s"
            self._failed_s = time.monotonic()
            raise Unavailable(self.failure) from None

    async def _ask(self) -> TopicState:
        asked_s = time.monotonic()
        try:
            state = await self._fetch()
        except (KafkaException, Unavailable) as error:
            self.failure = f"Kafka at {self._settings.kafka}: {_reason(error)}"
            self._failed_s = time.monotonic()
            raise Unavailable(self.failure) from error
        finally:
            self._admin.poll(0)  # hands librdkafka's log lines over
            if self._fetching is asyncio.current_task():
                self._fetching = None
        if asked_s >= self._asked_s:  # an older question must not overwrite a newer answer
            self.state = state
            self._asked_s = asked_s
            self.failure = None
        return state

    async def _fetch(self) -> TopicState:
        partitions = await self._partitions()
        starts, ends, committed, replayed = await asyncio.gather(
            self._watermarks(partitions, OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
            self._watermarks(partitions, OffsetSpec.latest()),  # type: ignore[no-untyped-call]
            self._plain_group.committed(partitions),
            self._replay_group.committed(partitions),
        )
        return TopicState(starts, ends, committed, replayed)

    async def _partitions(self) -> list[int]:
        """The topic's partitions, ascending.

        Asked through the client that asks for the watermarks: its memory of the leaders' epochs is made new by this
        and by nothing else, and with an old epoch every later question would be refused (FENCED_LEADER_EPOCH).
        """
        name = self._settings.topic
        metadata = await asyncio.to_thread(self._admin.list_topics, name, timeout=REQUEST_TIMEOUT_S)
        topic = metadata.topics[name]
        if topic.error is not None:
            raise Unavailable(f"topic {name}: {topic.error.str()}")
        return sorted(topic.partitions)

    async def _watermarks(self, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        futures = self._admin.list_offsets(
            {TopicPartition(self._settings.topic, p): spec for p in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        answers = await asyncio.gather(*(_answer(f) for f in futures.values()))
        return {p.partition: a.offset for p, a in zip(futures, answers, strict=True)}

    async def ack_replayed(self, acks: list[tuple[int, int]]) -> int:
        """Commit acked (partition, offset) pairs to the replay group; returns once Kafka has them, with records passed.

        Raises:
            InvalidRequest: An offset is beyond the log.
            Unavailable: Kafka does not answer; nothing is known of the commit, acking again is safe.
        """
        if not acks:
            return 0
        async with self._commit_lock:  # or an older commit could arrive after a newer one
            state = await self.fresh(0)
            moves = replay.replay_commits(acks, state.replayed, state.starts, state.ends)
            if moves:
                try:
                    await self._replay_group.commit(moves)
                except KafkaException as error:
                    raise Unavailable(f"group {self._settings.replay_group}: {_reason(error)}") from error
                self.state = TopicState(state.starts, state.ends, state.committed, {**state.replayed, **moves})
            return sum(
                position - max(state.replayed.get(p, 0), state.starts.get(p, 0)) for p, position in moves.items()
            )

    async def check_range(self, span: replay.OffsetRange) -> None:
        """Whether the topic holds the range; asks Kafka only if what is remembered does not show it.

        Raises:
            InvalidRequest, OffsetsGone, Unavailable: See `replay.check_range` and `fresh`.
        """
        if self.ready:
            try:
                return replay.check_range(span, self.state.starts, self.state.ends)
            except (InvalidRequest, replay.OffsetsGone):
                pass  # the log may have grown since
        state = await self.fresh(0)
        return replay.check_range(span, state.starts, state.ends)

    async def close(self) -> None:
        """Give the connections up; call last."""
        await asyncio.gather(*(g.close(reachable=self.ready) for g in (self._plain_group, self._replay_group)))


async def _answer(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


def _reason(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if hasattr(cause, "str") else str(cause)
