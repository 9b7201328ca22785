"""Queries of the administrative calls to a Kafka cluster; none blocks the event loop.

Two of librdkafka 2.16's queries about groups are not used: the admin client's group calls end the whole process when
the group's coordinator moves at the wrong moment (docs/decisions/0009).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
)

from dexorder_common.kafka.client_errors import COORDINATOR_CHANGING, admin_error, error_text
from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.member_commits import commit_now, committed, metadata_of, topic_ids
from dexorder_common.kafka.renewed_admin import RenewedAdmin
from dexorder_common.model.errors import Exhausted, NotFound, Unavailable
from dexorder_gateway.kafkapixy.admin_views import (
    SETTLED_STATES,
    GroupView,
    LogRange,
    MemberView,
    OffsetsView,
    PartitionView,
    TopicView,
    assigned_partitions,
    consumers_of,
    offsets_view,
)
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, consumer_options
from dexorder_gateway.kafkapixy.metrics import Place

log = structlog.get_logger(__name__)
T = TypeVar("T")
CALL_TIMEOUT_SECONDS = 10.0
"""Longest time of a whole call."""
_QUERY_TIMEOUT_SECONDS = 3.0
_SETTLE_SECONDS = 4.0
_RETRY_SECONDS = 0.2
_MAX_THREADS = 16
"""Queries that block a thread; one more is refused."""
_TOPIC_CONFIG = ConfigSource.DYNAMIC_TOPIC_CONFIG.value


class Admin:
    """For one event loop.

    Args:
        admin: Shared with others.
        usable: Returns once the cluster can be used; raises Unavailable if it can't.
    """

    def __init__(self, config: ClusterConfig, admin: RenewedAdmin, usable: Callable[[], Awaitable[None]]) -> None:
        self._config = config
        self._admin = admin
        self._usable = usable
        self._earliest = config.consume.new_group_start == "earliest"
        read_committed = config.consume.isolation_level == "read_committed"
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        self._threads = 0

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Limit one call to ``CALL_TIMEOUT_SECONDS``, then raise Unavailable; turn Kafka's errors into ours."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                await self._usable()
                yield
        except TimeoutError as error:
            raise Unavailable(f"Kafka did not answer within {CALL_TIMEOUT_SECONDS:.0f} s") from error
        except KafkaException as error:
            raise admin_error(error.args[0]) from error

    async def topics(self, *, with_partitions: bool = True, with_config: bool = True) -> dict[str, TopicView]:
        """Return every topic of the cluster with the requested details. Answers are converted in the query's thread."""
        return await self._in_thread(partial(self._topics, with_partitions, with_config))

    def _topics(self, with_partitions: bool, with_config: bool) -> dict[str, TopicView]:
        metadata: Any = self._admin.client.list_topics(timeout=_QUERY_TIMEOUT_SECONDS)
        listed = {name: topic for name, topic in metadata.topics.items() if not _does_not_exist(topic.error)}
        configs = self._configs(listed) if with_config else {}
        found = {}
        for name, topic in listed.items():
            config = configs.get(name)
            if isinstance(config, KafkaException):
                if _does_not_exist(config.args[0]):
                    continue
                config = None
            found[name] = TopicView(_listed_partitions(topic.partitions) if with_partitions else (), config)
        return found

    async def topic(self, name: str) -> TopicView:
        """Return one topic; raise NotFound if it does not exist."""
        partitions, configs = await asyncio.gather(
            self._partitions(name), self._in_thread(partial(self._configs, [name]))
        )
        config = configs[name]
        if isinstance(config, KafkaException):
            raise admin_error(config.args[0], f"topic {name!r}")
        return TopicView(partitions, config)

    async def _partitions(self, topic: str) -> tuple[PartitionView, ...]:
        try:
            described = self._admin.client.describe_topics(
                TopicCollection([topic]), request_timeout=_QUERY_TIMEOUT_SECONDS
            )
            found: Any = await asyncio.wrap_future(described[topic])
        except KafkaException as error:
            raise admin_error(error.args[0], f"topic {topic!r}") from error
        return tuple(
            PartitionView(
                each.id,
                -1 if each.leader is None else each.leader.id,
                tuple(node.id for node in each.replicas),
                tuple(node.id for node in each.isr),
            )
            for each in sorted(found.partitions, key=lambda each: each.id)
        )

    def _configs(self, topics: Iterable[str]) -> dict[str, Mapping[str, str] | KafkaException]:
        """Return the settings of each topic itself, or why they are not known; blocks."""
        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        if not wanted:
            return {}
        futures = self._admin.client.describe_configs(wanted, request_timeout=_QUERY_TIMEOUT_SECONDS)
        found: dict[str, Mapping[str, str] | KafkaException] = {}
        for resource, future in futures.items():
            try:
                own = (entry for entry in future.result().values() if entry.source == _TOPIC_CONFIG)
                found[resource.name] = {entry.name: entry.value or "" for entry in own}
            except KafkaException as error:
                found[resource.name] = error
        return found

    async def logs(self, topic: str) -> dict[int, LogRange]:
        """Return the log of each partition, as our consumers see it; raise NotFound for an unknown topic."""
        return await self._logs(topic, [each.partition for each in await self._partitions(topic)])

    async def _logs(self, topic: str, partitions: Sequence[int]) -> dict[int, LogRange]:
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        begins, ends = await self._in_thread(partial(self._offsets_at, topic, partitions, specs))
        return {partition: (begins[partition], ends[partition]) for partition in partitions}

    def _offsets_at(self, topic: str, partitions: Sequence[int], specs: Iterable[Any]) -> list[dict[int, int]]:
        """Return the offsets by partition for each spec, one request for all partitions; blocks."""
        asked = [self._list_offsets(((topic, partition) for partition in partitions), spec) for spec in specs]
        return [{place.partition: future.result().offset for place, future in each.items()} for each in asked]

    async def offsets_at(self, topic: str, time_ms: int, logs: Mapping[int, LogRange]) -> dict[int, int]:
        """Return by partition the first offset at or after a time; else the log's end."""
        specs = (OffsetSpec.for_timestamp(time_ms),)
        (found,) = await self._in_thread(partial(self._offsets_at, topic, list(logs), specs))
        return {partition: offset if offset >= 0 else logs[partition][1] for partition, offset in found.items()}

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the known ids of topics; another one than before means that the topic was created again."""
        try:
            return await topic_ids(self._admin.client, topics, _QUERY_TIMEOUT_SECONDS)
        except KafkaException as error:
            log.warning("could not query the ids of topics", reason=error_text(error))
            return {}

    async def log_ends(self, places: Collection[Place]) -> dict[Place, int]:
        """Return the known ends of logs; none for a partition without a leader or a deleted topic."""
        if not places:
            return {}
        try:
            futures = self._list_offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        except KafkaException as error:
            log.warning("could not query the ends of logs", reason=error_text(error))
            return {}
        answers = await asyncio.gather(*map(asyncio.wrap_future, futures.values()), return_exceptions=True)
        ends = zip(futures, answers, strict=True)
        return {(each.topic, each.partition): end.offset for each, end in ends if not isinstance(end, BaseException)}

    def _list_offsets(self, places: Iterable[Place], where: Any) -> dict[TopicPartition, Future[Any]]:
        query = {TopicPartition(topic, partition): where for topic, partition in places}
        return self._admin.client.list_offsets(
            query, isolation_level=self._isolation, request_timeout=_QUERY_TIMEOUT_SECONDS
        )

    async def offsets(self, group: str, topic: str, time_ms: int | None = None) -> list[OffsetsView]:
        """Return every partition with the group's commit, if any; raise NotFound for an unknown topic.

        Args:
            time_ms: Milliseconds since the epoch; each view then has the first offset at or after this time.
        """
        partitions = [each.partition for each in await self._partitions(topic)]

        def query(consumer: Consumer) -> list[tuple[int, int, str]]:
            places = [TopicPartition(topic, partition) for partition in partitions]
            found = committed(consumer, places, _QUERY_TIMEOUT_SECONDS)
            return [(place.partition, place.offset, metadata_of(place)) for place in found]

        found = await self._in_thread(partial(self._without_membership, group, query))
        logs = await self._logs(topic, partitions)  # after the commits, which could else be beyond the logs' ends
        at_time = {} if time_ms is None else await self.offsets_at(topic, time_ms, logs)
        views = [
            offsets_view(partition, logs[partition], offset, metadata, earliest=self._earliest)
            for partition, offset, metadata in sorted(found)
        ]
        return [replace(view, offset_at_time=at_time.get(view.partition)) for view in views]

    async def commit(self, group: str, topic: str, wanted: Mapping[int, Commit]) -> None:
        """Commit for a group without members; Kafka refuses with UNKNOWN_MEMBER_ID if it has some."""
        positions = [TopicPartition(topic, partition, *commit) for partition, commit in wanted.items()]

        def commit(consumer: Consumer) -> None:
            commit_now(consumer, positions, _QUERY_TIMEOUT_SECONDS)

        await self._in_thread(partial(self._without_membership, group, commit))

    def _without_membership(self, group: str, work: Callable[[Consumer], T]) -> T:
        """Run ``work`` with a consumer of the group that never joins it."""
        consumer = Consumer({**consumer_options(self._config), "group.id": group})
        try:
            return work(consumer)
        finally:
            consumer.close()

    async def group(self, name: str) -> GroupView:
        """Return one group; without members if it does not exist."""
        found = await self._in_thread(partial(self._list_groups, name))
        return next((each for each in found if each.group == name), GroupView(name, settled=True))

    async def consumers(self, topic: str, group: str = "") -> dict[str, dict[str, list[int]]]:
        """Return the partitions of a topic by group and consumer, for one group or all groups that read the topic.

        Waits for groups that are rebalancing; one that does not settle soon is left out of the result for all groups.

        Raises:
            NotFound: The group does not read the topic.
            Unavailable: The requested group keeps rebalancing.
        """
        last_s = time.monotonic() + _SETTLE_SECONDS
        while True:
            found = [await self.group(group)] if group else await self._in_thread(self._list_groups)
            if all(each.settled for each in found) or time.monotonic() > last_s:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        if group and not found[0].settled:
            raise Unavailable(f"group {group!r} is rebalancing; try again")
        readers = {each.group: consumers_of(each, topic) for each in found}
        if group and not readers[group]:
            # Kafka-Pixy's words, which clients match
            known = (
                f"topic {topic} is not consumed by {group}" if found[0].members else f"unknown consumer group {group}"
            )
            raise NotFound(known)
        return {name: consumers for name, consumers in readers.items() if consumers}

    def _list_groups(self, *name: Any) -> list[GroupView]:
        listed: Any = self._admin.client.list_groups(*name, timeout=_QUERY_TIMEOUT_SECONDS)
        return [_group_view(each) for each in listed if each.protocol_type in ("", "consumer")]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread that no stop waits for: some queries can't be cancelled."""
        if self._threads >= _MAX_THREADS:
            raise Exhausted(f"{self._threads} administrative queries wait for Kafka already")
        self._threads += 1
        loop = asyncio.get_running_loop()
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._thread_ended)

        threading.Thread(target=run, name="kafka-admin", daemon=True).start()
        return await asyncio.wrap_future(done)

    def _thread_ended(self) -> None:
        self._threads -= 1


def _does_not_exist(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _listed_partitions(partitions: Mapping[int, Any]) -> tuple[PartitionView, ...]:
    return tuple(
        PartitionView(number, each.leader, tuple(each.replicas), tuple(each.isrs))
        for number, each in sorted(partitions.items())
    )


def _group_view(group: Any) -> GroupView:
    if group.error is not None:
        if group.error.code() in COORDINATOR_CHANGING:
            return GroupView(group.id, settled=False)
        raise KafkaException(group.error)
    members = tuple(
        MemberView(each.id, each.client_id, each.client_host, _assigned(each.assignment)) for each in group.members
    )
    return GroupView(group.id, group.state in SETTLED_STATES, members)


def _assigned(assignment: bytes) -> dict[str, tuple[int, ...]]:
    try:
        return assigned_partitions(assignment)
    except ValueError:
        return {}  # another protocol than Kafka's consumers use
