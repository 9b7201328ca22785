"""State of the topic and of the consumer groups, queried from Kafka and cached briefly.

Every query has a time limit, and none makes this process a member of a group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from dexorder_common.kafka.client_errors import error_text
from dexorder_common.kafka.client_options import LIBRDKAFKA_LOG, client_id
from dexorder_common.kafka.member_commits import commit_now, committed, position_of, topic_ids
from dexorder_common.kafka.renewed_admin import RenewedAdmin
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_udsource import replay
from dexorder_udsource.config import UdsourceSettings

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
MAX_REPLAY_GROUPS = 32
"""Replay groups to which connections are kept; each needs some threads."""
UNRESPONSIVE_S = 3.0
"""A Kafka that was available counts as unavailable after this time without an answer, however long a query may take."""


def client_options(settings: UdsourceSettings) -> dict[str, Any]:
    """Return the librdkafka properties of every client of this service."""
    return {
        "bootstrap.servers": settings.kafka,
        "client.id": client_id("udsource"),
        "reconnect.backoff.max.ms": 1_000,
        # a question about a topic that is not there yet would create it, with the broker's number of partitions
        "allow.auto.create.topics": False,
        "logger": LIBRDKAFKA_LOG,
        **settings.kafka_options,
    }


@dataclass(frozen=True)
class TopicState:
    """Offsets by partition, at one moment.

    Attributes:
        starts: First offset that is still in the topic.
        ends: Offset after the last one that a reader can get, which excludes open transactions.
        committed: Commits of the group of plain reads; a partition without one is absent.
        replayed: Commits of the replay group.
        topic_id: Another one than before means that the topic was deleted and created again.
        epochs: Epoch of the partition's leaders at the log's end. If it rises, the log may have lost records.
        replayed_epochs: Epochs in the commits of ``replayed``, as far as they have one.
    """

    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    committed: Mapping[int, int] = field(default_factory=dict)
    replayed: Mapping[int, int] = field(default_factory=dict)
    topic_id: str = ""
    epochs: Mapping[int, int] = field(default_factory=dict)
    replayed_epochs: Mapping[int, int] = field(default_factory=dict)

    def replay_lag(self) -> int:
        """Return the number of records that the replay group has not acked."""
        return sum(max(0, end - self.replay_position(partition)) for partition, end in self.ends.items())

    def replay_position(self, partition: int) -> int:
        """Return the first offset that the replay group has not acked, of those in the topic."""
        return max(self.replayed.get(partition, 0), self.starts.get(partition, 0))


Positions = tuple[dict[int, int], dict[int, int]]
"""Offsets by partition, and epochs by partition, as far as they are known."""


def positions(found: Iterable[tuple[int, int, int | None]]) -> Positions:
    """Return partitions, offsets and epochs as `Positions`."""
    known = list(found)
    return {p: offset for p, offset, _ in known}, {p: e for p, _, e in known if e is not None and e >= 0}


class TopicMonitor:
    """State of one topic of one cluster."""

    def __init__(self, settings: UdsourceSettings, *, has_plain_reads: bool = True) -> None:
        """Create the clients.

        Args:
            has_plain_reads: Otherwise the commits of their group are not queried.
        """
        self._settings = settings
        self._admin = RenewedAdmin(client_options(settings))
        self._plain_group = GroupOffsets(settings, settings.group) if has_plain_reads else None
        self._replay_groups: dict[str, GroupOffsets] = {}  # by name, the last one used is last
        self._fetching: asyncio.Task[TopicState] | None = None
        self._fetched_s = 0.0
        self._failed_s = 0.0
        self._commit_lock = asyncio.Lock()
        self.state = TopicState()
        """The last answer; empty before the first."""
        self.failure: str | None = None
        """Reason why the last query failed; None after an answer or before the first query."""

    @property
    def ready(self) -> bool:
        """True if Kafka and the topic were available at the last query."""
        return self._fetched_s > 0 and self.failure is None

    async def fresh(self, max_age_s: float, *, within_s: float | None = None) -> TopicState:
        """Return the state, at most ``max_age_s`` seconds old; concurrent callers share one query.

        Raises:
            Unavailable: Kafka does not answer, in time where that is limited, or the topic does not exist.
        """
        if self.ready and time.monotonic() - self._fetched_s <= max_age_s:
            return self.state
        if self.failure is not None and time.monotonic() - self._failed_s <= self._settings.poll_seconds:
            raise Unavailable(self.failure)  # a query to a broker that is unavailable takes its whole time limit
        # A running query started before this call: good enough unless the newest state is wanted.
        if self._fetching is None or max_age_s <= 0:
            self._fetching = asyncio.create_task(self._query())
            # All callers may be cancelled; the failure is kept in ``failure`` even so.
            self._fetching.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(self._fetching), within_s)
        except TimeoutError:
            raise Unavailable(f"Kafka at {self._settings.kafka}: no answer within {within_s} s") from None

    async def probe(self) -> TopicState:
        """Return the current state, for health; fail after ``UNRESPONSIVE_S`` if Kafka was available before.

        Raises:
            Unavailable: Kafka does not answer, or the topic does not exist.
        """
        try:
            async with asyncio.timeout(UNRESPONSIVE_S if self.ready else None):
                return await self.fresh(0)
        except TimeoutError:
            self.failure = f"Kafka at {self._settings.kafka}: no answer within {UNRESPONSIVE_S:g} s"
            self._failed_s = time.monotonic()
            raise Unavailable(self.failure) from None

    async def _query(self) -> TopicState:
        started_s = time.monotonic()
        admin = self._admin.client
        try:
            state = await self._fetch()
        except (KafkaException, Unavailable) as error:
            if isinstance(error, KafkaException):
                self._admin.renew()
            self.failure = f"Kafka at {self._settings.kafka}: {error_text(error)}"
            self._failed_s = time.monotonic()
            raise Unavailable(self.failure) from error
        finally:
            admin.poll(0)  # delivers librdkafka's log lines
            if self._fetching is asyncio.current_task():
                self._fetching = None
        if started_s >= self._fetched_s:  # an older query must not overwrite a newer answer
            self.state = state
            self._fetched_s = started_s
            self.failure = None
        return state

    async def _fetch(self) -> TopicState:
        partitions = await self._partitions()
        (starts, _), (ends, epochs), (committed, _), (replayed, replayed_epochs), ids = await asyncio.gather(
            self._watermarks(partitions, OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
            self._watermarks(partitions, OffsetSpec.latest()),  # type: ignore[no-untyped-call]
            self._plain_commits(partitions),
            self._replay_group("").committed(partitions),
            topic_ids(self._admin.client, [self._settings.topic], REQUEST_TIMEOUT_S),
        )
        topic_id = ids.get(self._settings.topic, "")
        return TopicState(starts, ends, committed, replayed, topic_id, epochs, replayed_epochs)

    async def _plain_commits(self, partitions: list[int]) -> Positions:
        return await self._plain_group.committed(partitions) if self._plain_group else ({}, {})

    async def _partitions(self) -> list[int]:
        """Return the topic's partitions, ascending.

        Queried through the client that queries the watermarks: only this refreshes its cache of the leaders' epochs,
        and with an old epoch every later query would be refused (FENCED_LEADER_EPOCH).
        """
        name = self._settings.topic
        metadata = await asyncio.to_thread(self._admin.client.list_topics, name, timeout=REQUEST_TIMEOUT_S)
        topic = metadata.topics[name]
        if topic.error is not None:
            raise Unavailable(f"topic {name}: {topic.error.str()}")
        return sorted(topic.partitions)

    async def _watermarks(self, partitions: list[int], spec: OffsetSpec) -> Positions:
        futures = self._admin.client.list_offsets(
            {TopicPartition(self._settings.topic, p): spec for p in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        answers = await asyncio.gather(*map(asyncio.wrap_future, futures.values()))
        return positions((p.partition, a.offset, a.leader_epoch) for p, a in zip(futures, answers, strict=True))

    def _replay_group(self, name: str) -> GroupOffsets:
        group = self._settings.replay_group + (f"-{name}" if name else "")
        found = self._replay_groups.pop(name, None) or GroupOffsets(self._settings, group)
        self._replay_groups[name] = found
        if len(self._replay_groups) > MAX_REPLAY_GROUPS:
            self._replay_groups.pop(next(iter(self._replay_groups))).discard()
        return found

    async def with_group(self, state: TopicState, group: str, *, within_s: float | None = None) -> TopicState:
        """Return the state with the commits of one replay group; the state itself has the commits of the unnamed one.

        Raises:
            Unavailable: Kafka does not answer, in time where that is limited.
        """
        if not group:
            return state
        try:
            replayed, epochs = await asyncio.wait_for(self._replay_group(group).committed(state.ends), within_s)
        except (KafkaException, TimeoutError) as error:
            raise Unavailable(f"replay group {group!r}: {error_text(error) or 'no answer in time'}") from error
        return replace(state, replayed=replayed, replayed_epochs=epochs)

    async def ack_replayed(self, acks: list[tuple[int, int]], group: str) -> int:
        """Commit acked (partition, offset) pairs to a replay group; return how many records the commits passed.

        Returns once Kafka has the commits.

        Raises:
            InvalidRequest: An offset is beyond the end of the log.
            Unavailable: Kafka does not answer; the commit may have succeeded, and repeating the ack is safe.
        """
        if not acks:
            return 0
        async with self._commit_lock:  # or an older commit could arrive after a newer one
            state = await self.with_group(await self.fresh(0), group)
            moves = replay.replay_commits(acks, state.replayed, state.starts, state.ends)
            if moves:
                try:
                    await self._replay_group(group).commit(moves, state.epochs)
                except KafkaException as error:
                    raise Unavailable(f"replay group {group!r}: {error_text(error)}") from error
                if not group:
                    epochs = {**state.replayed_epochs, **{p: state.epochs[p] for p in moves if p in state.epochs}}
                    self.state = replace(state, replayed={**state.replayed, **moves}, replayed_epochs=epochs)
            return sum(position - state.replay_position(p) for p, position in moves.items())

    async def check_range(self, span: replay.ReplayRange) -> None:
        """Check that the topic holds a range; query Kafka only if the cached state does not show it.

        Raises:
            InvalidRequest, OffsetsGone, Unavailable: See `replay.check_range` and `fresh`.
        """
        if self.ready:
            with suppress(InvalidRequest, replay.OffsetsGone):  # the log may have grown since
                return replay.check_range(span, self.state.starts, self.state.ends)
        state = await self.fresh(0)
        return replay.check_range(span, state.starts, state.ends)

    async def close(self) -> None:
        """Close the connections; call last."""
        groups = [*filter(None, [self._plain_group]), *self._replay_groups.values()]
        await asyncio.gather(*(group.close(reachable=self.ready) for group in groups))


class GroupOffsets:
    """One group's commits of one topic, read and written without membership. Calls run one after the other.

    It uses a consumer that never subscribes. The admin client has the same calls, but librdkafka 2.16 crashes the
    process if the group's coordinator is not ready and the client is without a group, for example at the first query to
    a fresh broker.
    """

    def __init__(self, settings: UdsourceSettings, group: str) -> None:
        self._topic = settings.topic
        self._group = group
        # The session timeout also limits how long a commit waits for a coordinator.
        limits = {"enable.auto.commit": False, "session.timeout.ms": 6_000}
        self._consumer = Consumer({**client_options(settings), **limits, "group.id": group})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group")

    async def committed(self, partitions: Iterable[int]) -> Positions:
        """Return the committed offset of each partition, and its epoch; partitions without a commit are absent.

        Raises:
            KafkaException: Kafka does not answer in time, or refuses one partition.
        """
        wanted = [TopicPartition(self._topic, p) for p in partitions]
        found = await self._in_thread(lambda: committed(self._consumer, wanted, REQUEST_TIMEOUT_S))
        return positions((p.partition, p.offset, p.leader_epoch) for p in found if p.offset >= 0)

    async def commit(self, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Commit an offset for each partition, with its epoch where that is known; return once Kafka has them.

        Raises:
            KafkaException: Kafka refuses, for example because the group has members.
            Unavailable: Kafka does not answer in time.
        """
        wanted = [position_of(self._topic, p, o, epoch=epochs.get(p, -1)) for p, o in offsets.items()]
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._in_thread(lambda: commit_now(self._consumer, wanted, REQUEST_TIMEOUT_S))
        except TimeoutError:
            raise Unavailable(f"group {self._group} was not committed in {REQUEST_TIMEOUT_S:g} s") from None

    def discard(self) -> None:
        """Close the connections after the calls that run; do not wait."""
        self._thread.submit(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def close(self, *, reachable: bool) -> None:
        """Close the connections; without Kafka the consumer is not closed because that would wait for Kafka."""
        if reachable:
            await self._in_thread(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
