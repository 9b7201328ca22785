"""Asks a Kafka cluster about its topics and groups, for the administrative calls; nothing of it blocks the event loop.

Two ways of librdkafka 2.16 to ask about a group are not used: the admin client's group calls end the whole process when
the group's coordinator moves at the wrong moment (docs/decisions/0009).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import structlog
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
)

from services.common.model.errors import Exhausted, InvalidRequest, NotAllowed, NotFound, SuiteError, Unavailable
from services.gateway.kafkapixy.admin_views import (
    GroupView,
    Log,
    MemberView,
    OffsetsView,
    PartitionView,
    TopicView,
    assigned_partitions,
    consumers_of,
    is_settled,
    offsets_view,
)
from services.gateway.kafkapixy.cluster_config import ClusterConfig
from services.gateway.kafkapixy.committing import COORDINATOR_CHANGING, commit_now, committed, metadata_of
from services.gateway.kafkapixy.options import consumer_options
from services.gateway.kafkapixy.start_position import Commit

log = structlog.get_logger(__name__)
T = TypeVar("T")
CALL_SECONDS = 10.0
"""Longest time of a whole call."""
_ASK_SECONDS = 3.0
_SETTLE_SECONDS = 4.0
_AGAIN_SECONDS = 0.2
_MOST_THREADS = 16
"""Questions that block a thread; one more is refused."""
_OWN_CONFIG = ConfigSource.DYNAMIC_TOPIC_CONFIG.value


class Admin:
    """For one event loop.

    Args:
        client: Shared with others.
        failure: Tells why the cluster can't be used, if that is known; then nothing is asked.
    """

    def __init__(self, config: ClusterConfig, client: AdminClient, failure: Callable[[], str | None]) -> None:
        self._config = config
        self._client = client
        self._failure = failure
        self._earliest = config.consume.new_group_start == "earliest"
        read_committed = config.consume.isolation_level == "read_committed"
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        self._threads = 0

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around everything that one call asks: at most ``CALL_SECONDS``, and Kafka's errors become ours.

        Raises:
            SuiteError: Unavailable when Kafka does not answer; else what it said.
        """
        if (failure := self._failure()) is not None:
            raise Unavailable(failure)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                yield
        except TimeoutError as error:
            raise Unavailable(f"Kafka did not answer within {CALL_SECONDS:.0f} s") from error
        except KafkaException as error:
            raise admin_error(error.args[0]) from error

    # ---- topics

    async def topics(self) -> dict[str, TopicView]:
        """Every topic of the cluster."""
        metadata = await self._in_thread(partial(self._client.list_topics, timeout=_ASK_SECONDS))
        found = {name: topic for name, topic in metadata.topics.items() if not _is_gone(topic.error)}
        configs = await self._configs(found)
        return {
            name: TopicView(
                _partitions_listed(topic.partitions), None if isinstance(config, KafkaException) else config
            )
            for name, topic in found.items()
            if not isinstance(config := configs[name], KafkaException) or not _is_gone(config.args[0])
        }

    async def topic(self, name: str) -> TopicView:
        """One topic.

        Raises:
            NotFound: There is none of that name.
        """
        partitions, configs = await asyncio.gather(self._partitions(name), self._configs([name]))
        config = configs[name]
        if isinstance(config, KafkaException):
            raise admin_error(config.args[0], f"topic {name!r}")
        return TopicView(partitions, config)

    async def _partitions(self, topic: str) -> tuple[PartitionView, ...]:
        try:
            described = self._client.describe_topics(TopicCollection([topic]), request_timeout=_ASK_SECONDS)
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

    async def _configs(self, topics: Iterable[str]) -> dict[str, Mapping[str, str] | KafkaException]:
        """What was set for each topic, or why that is not known."""
        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        if not wanted:
            return {}
        asked = self._client.describe_configs(wanted, request_timeout=_ASK_SECONDS)
        answers = await asyncio.gather(*map(asyncio.wrap_future, asked.values()), return_exceptions=True)
        found: dict[str, Mapping[str, str] | KafkaException] = {}
        for resource, answer in zip(asked, answers, strict=True):
            if isinstance(answer, KafkaException):
                found[resource.name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                own = (entry for entry in answer.values() if entry.source == _OWN_CONFIG)
                found[resource.name] = {entry.name: entry.value or "" for entry in own}
        return found

    # ---- offsets

    async def logs(self, topic: str) -> dict[int, Log]:
        """Where each partition's log begins and ends, for what this gateway reads.

        Raises:
            NotFound: There is no such topic.
        """
        return await self._logs(topic, [each.partition for each in await self._partitions(topic)])

    async def _logs(self, topic: str, partitions: Sequence[int]) -> dict[int, Log]:
        begins, ends = await asyncio.gather(
            self._offsets_at(topic, partitions, OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
            self._offsets_at(topic, partitions, OffsetSpec.latest()),  # type: ignore[no-untyped-call]
        )
        return {partition: (begins[partition], ends[partition]) for partition in partitions}

    async def _offsets_at(self, topic: str, partitions: Iterable[int], where: Any) -> dict[int, int]:
        query: Any = {TopicPartition(topic, partition): where for partition in partitions}
        asked = self._client.list_offsets(query, isolation_level=self._isolation, request_timeout=_ASK_SECONDS)
        answers = await asyncio.gather(*map(asyncio.wrap_future, asked.values()))
        return {place.partition: answer.offset for place, answer in zip(asked, answers, strict=True)}

    async def offsets(self, group: str, topic: str) -> list[OffsetsView]:
        """Every partition of the topic and the group's commit in it; a group need not exist.

        Raises:
            NotFound: There is no such topic.
        """
        partitions = [each.partition for each in await self._partitions(topic)]

        def ask(consumer: Consumer) -> list[tuple[int, int, str]]:
            places = [TopicPartition(topic, partition) for partition in partitions]
            return [(p.partition, p.offset, metadata_of(p)) for p in committed(consumer, places, _ASK_SECONDS)]

        found = await self._in_thread(partial(self._as_nobody, group, ask))
        logs = await self._logs(topic, partitions)  # after the commits, or those could be ahead of the logs' ends
        return [
            offsets_view(partition, logs[partition], offset, metadata, earliest=self._earliest)
            for partition, offset, metadata in sorted(found)
        ]

    async def commit(self, group: str, topic: str, wanted: Mapping[int, Commit]) -> None:
        """Commit for a group that has no members; Kafka refuses it with UNKNOWN_MEMBER_ID if there are some."""
        positions = [TopicPartition(topic, partition, *commit) for partition, commit in wanted.items()]
        await self._in_thread(
            partial(self._as_nobody, group, lambda consumer: commit_now(consumer, positions, _ASK_SECONDS))
        )

    def _as_nobody(self, group: str, work: Callable[[Consumer], T]) -> T:
        """Work with a consumer of the group that never joins it."""
        consumer = Consumer({**consumer_options(self._config), "group.id": group})
        try:
            return work(consumer)
        finally:
            consumer.close()

    # ---- groups

    async def group(self, name: str) -> GroupView:
        """One group; without members when there is none of that name."""
        found = await self._in_thread(partial(self._list_groups, name))
        return next((each for each in found if each.group == name), GroupView(name, settled=True))

    async def groups(self) -> list[GroupView]:
        """Every group of consumers."""
        return await self._in_thread(self._list_groups)

    async def consumers(self, topic: str, group: str = "") -> dict[str, dict[str, list[int]]]:
        """By group and consumer the partitions of a topic; one group, or all that read the topic.

        A group that is rebalancing is waited for. If it does not come to rest soon, it is left out of all groups.

        Raises:
            NotFound: The group reads nothing of the topic.
            Unavailable: The one group that is asked for is rebalancing.
        """
        last_s = time.monotonic() + _SETTLE_SECONDS
        while True:
            found = [await self.group(group)] if group else await self.groups()
            if all(each.settled for each in found) or time.monotonic() > last_s:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        if group and not found[0].settled:
            raise Unavailable(f"group {group!r} is rebalancing; try again")
        readers = {each.group: consumers_of(each, topic) for each in found}
        if group and not readers[group]:
            raise NotFound(f"group {group!r} reads nothing of topic {topic!r}")
        return {name: consumers for name, consumers in readers.items() if consumers}

    def _list_groups(self, *name: Any) -> list[GroupView]:
        listed: Any = self._client.list_groups(*name, timeout=_ASK_SECONDS)
        return [_group_view(each) for each in listed if each.protocol_type in ("", "consumer")]

    # ---- threads

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run what blocks, in a thread that no stop waits for: some questions can't be given up earlier.

        Raises:
            Exhausted: Too many are running.
        """
        if self._threads >= _MOST_THREADS:
            raise Exhausted(f"{self._threads} administrative calls wait for Kafka already")
        self._threads += 1
        loop = asyncio.get_running_loop()
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed: nobody counts any more
                loop.call_soon_threadsafe(self._thread_ended)

        threading.Thread(target=run, name="kafka-admin", daemon=True).start()
        return await asyncio.wrap_future(done)

    def _thread_ended(self) -> None:
        self._threads -= 1


def admin_error(error: KafkaError, what: str = "Kafka") -> SuiteError:
    """An administrative call's failure as one of ours."""
    code, text = error.code(), f"{what}: {error.str()}"
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return NotFound(f"{what} does not exist" if what != "Kafka" else text)
    if code in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ):
        return NotAllowed(text)
    if code in (KafkaError.OFFSET_METADATA_TOO_LARGE, KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_GROUP_ID):
        return InvalidRequest(text)
    return Unavailable(text)


def _is_gone(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _partitions_listed(partitions: Mapping[int, Any]) -> tuple[PartitionView, ...]:
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
    return GroupView(group.id, is_settled(group.state), members)


def _assigned(assignment: bytes) -> dict[str, tuple[int, ...]]:
    try:
        return assigned_partitions(assignment)
    except ValueError:
        return {}  # a protocol of somebody's own
