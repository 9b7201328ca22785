"""One Kafka cluster behind the gateway: its health, topics, log ends, producer and consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from dexorder_common.kafka.client_errors import ConnectionErrors, error_text
from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.new_topics import create_topics
from dexorder_common.kafka.renewed_admin import RenewedAdmin
from dexorder_common.model.errors import Conflict, InvalidRequest, Unavailable
from dexorder_common.rpc.streams import retrieved
from dexorder_gateway.kafkapixy.admin import Admin
from dexorder_gateway.kafkapixy.admin_views import RequestedOffset, check_requested, check_time, commits_of
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, TopicSpec, client_options, consumer_options
from dexorder_gateway.kafkapixy.consumers import Consumers
from dexorder_gateway.kafkapixy.metrics import KafkaMetrics, Place
from dexorder_gateway.kafkapixy.producer import RecordProducer
from dexorder_gateway.kafkapixy.set_offsets import set_offsets
from dexorder_gateway.keys.ledger import KeyLedger, Placing, Take
from dexorder_gateway.keys.topic import PARTITION, TopicReader, prepare

log = structlog.get_logger(__name__)
_QUERY_TIMEOUT_SECONDS = 3.0
_CLOSE_SECONDS = 5.0
_SEARCH_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.35)
"""Pauses between the queries of one search for a topic."""
CREATION_SECONDS = 2.0
"""Time that a broker which creates topics automatically may take; a topic that is missing for longer does not exist."""
FIRST_ANSWER_SECONDS = 10.0
"""Longest time that a call waits for the outcome of the first query of Kafka; its port is open before."""
_LOG_END_POLLS = 5
"""Log ends are queried once in this many polls."""


Elsewhere = Callable[[RequestedOffset], Awaitable[bool]]
"""Sets the offset of one partition at another gateway; returns False if none reads it."""


class Cluster:
    """Keep ``watch`` running, end with ``drain``.

    Attributes:
        failure: Why the cluster can't be used; None while it answers and has the configured topics.
    """

    def __init__(self, config: ClusterConfig, metrics: KafkaMetrics) -> None:
        self.config = config
        self.failure: str | None = "Kafka has not answered yet"
        self._asked = asyncio.Event()  # whether Kafka was queried, with any result
        self._connection_errors = ConnectionErrors()
        self._kafka_up = metrics.kafka_up.labels(config.name)
        options: dict[str, Any] = {**client_options(config), "error_cb": self._connection_errors.note}
        self._admin = RenewedAdmin(options)
        self.admin = Admin(config, self._admin, self.wait_until_usable)
        self._partitions: dict[str, int] = {}
        self._querying = asyncio.Lock()
        self._searches: dict[str, asyncio.Task[None]] = {}
        own = metrics.cluster(config.name)
        self.producer = RecordProducer(config, own, lambda topic: self._partitions.get(topic, 0))
        self.keys = KeyLedger(
            self._prepare_keys, self._follow_keys, self._append_key, wait_seconds=config.produce.timeout_seconds
        )
        self.consumers = Consumers(config, own)
        self._log_ends: dict[Place, int] = {}
        own.log_end = lambda place: self._log_ends.get(place)

    async def watch(self) -> None:
        """List the cluster's topics regularly and create the configured ones that are missing. Never returns."""
        self.producer.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_log_ends())
            group.create_task(self._watch_topics())

    async def _watch_topics(self) -> None:
        while True:
            before = self.failure
            try:
                await self._check()
                self.failure = None
            except (KafkaException, Unavailable) as error:
                self.failure = self._text(error)
            self._asked.set()
            if self.failure != before:
                self._kafka_up.set(self.failure is None)
                if self.failure:
                    log.warning("cluster is unavailable", cluster=self.config.name, reason=self.failure)
                else:
                    log.info("cluster is available", cluster=self.config.name, topics=len(self._partitions))
            self.consumers.kafka_is_up(self.failure is None)
            await asyncio.sleep(self.config.poll_seconds)

    async def _watch_log_ends(self) -> None:
        # A consumer learns them only with the records it fetches, and it fetches none while its callers take none: just
        # then the lag grows.
        while True:
            places = self.consumers.places()
            known = {place: end for place, end in self._log_ends.items() if place in places}
            self._log_ends = known | await self.admin.log_ends(places)
            self.consumers.note_topic_ids(await self.admin.topic_ids({topic for topic, _ in places}))
            await asyncio.sleep(_LOG_END_POLLS * self.config.poll_seconds)

    async def _check(self) -> None:
        self._partitions = await self._list_topics()
        missing = _missing_topics(self.config.topics, self._partitions)
        if missing:
            replication = self.config.topic_replication
            new = [NewTopic(t.name, num_partitions=t.partitions, replication_factor=replication) for t in missing]
            await create_topics(self._admin.client, new)
            self._partitions = await self._list_topics()
            if still := _missing_topics(missing, self._partitions):
                raise Unavailable(f"topic {still[0].name} does not exist yet")

    async def _list_topics(self) -> dict[str, int]:
        client = self._admin.client
        try:
            metadata = await asyncio.to_thread(client.list_topics, timeout=_QUERY_TIMEOUT_SECONDS)
            if not metadata.brokers:
                raise Unavailable("no broker answers")
        except (KafkaException, Unavailable):
            self._admin.renew()
            raise
        finally:
            client.poll(0)  # delivers librdkafka's log lines and errors
        self._connection_errors.clear()
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def _text(self, error: Exception) -> str:
        return f"Kafka at {self.config.kafka}: {self._connection_errors.text or error_text(error)}"

    async def wait_until_usable(self) -> None:
        """Return if Kafka answers; just after the start, once it has. Raises Unavailable with the reason."""
        if not self._asked.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), FIRST_ANSWER_SECONDS)
        if self.failure is not None:
            raise Unavailable(self.failure)

    def knows(self, topic: str) -> bool:
        """Return whether the topic was in the cluster's last list."""
        return topic in self._partitions

    async def has_topic(self, topic: str, wait_seconds: float) -> bool:
        """Return whether the topic exists; wait for a missing one, because it may just be created.

        A topic that the cluster's last list does not have is searched for: a broker that creates topics automatically
        does so because of the first query, and until then does not know it. All callers share the search.

        Raises:
            Unavailable: The topic is unknown and the cluster does not answer.
        """
        if topic not in self._partitions:
            await self.wait_until_usable()
        deadline_s = time.monotonic() + wait_seconds
        while topic not in self._partitions:
            if self.failure:
                raise Unavailable(self.failure)
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return False
            if (search := self._searches.get(topic)) is None:
                search = self._searches[topic] = asyncio.create_task(self._search(topic))
                search.add_done_callback(retrieved)
                search.add_done_callback(lambda _: self._searches.pop(topic))
            done, _ = await asyncio.wait((search,), timeout=left_s)
            if done:
                search.result()
        return True

    async def _search(self, topic: str) -> None:
        """Query a topic until it is known, for about a second."""
        for pause_s in _SEARCH_PAUSES_SECONDS:
            async with self._querying:  # one query at a time: misspelt names must not occupy all threads
                await self._query_topic(topic)
            if topic in self._partitions:
                return
            await asyncio.sleep(pause_s)

    async def _query_topic(self, topic: str) -> None:
        try:
            metadata: Any = await asyncio.to_thread(
                self._admin.client.list_topics, topic, timeout=_QUERY_TIMEOUT_SECONDS
            )
        except KafkaException as error:
            raise Unavailable(self._text(error)) from error
        found = metadata.topics[topic]
        if found.error is None:
            self._partitions[topic] = len(found.partitions)

    async def _prepare_keys(self) -> None:
        await self.wait_until_usable()
        await prepare(self._admin.client, self.config.keys_topic, replication=self.config.topic_replication)

    def _follow_keys(self, take: Take) -> TopicReader:
        return TopicReader(self.config.keys_topic, consumer_options(self.config), take)

    def _append_key(self, key: bytes, value: bytes) -> Placing:
        return self.producer.begin(self.config.keys_topic, key, value, (), PARTITION)

    def may_assign(self, group: str, topic: str, partition: int, *, alone: bool) -> bool:
        """Return whether a partition that this gateway does not have may soon have a reader.

        Args:
            alone: Whether no other gateway is known; then only a group that this one just joins may assign it here.
        """
        if self._partitions.get(topic, partition + 1) <= partition:
            return False
        return not alone or self.consumers.is_joining(group, topic)

    async def set_offsets(
        self,
        group: str,
        topic: str,
        requested: Sequence[RequestedOffset],
        time_ms: int | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """Set a group's commits, all or none; this gateway's readers continue there at once.

        Args:
            time_ms: Milliseconds since the epoch; sets every partition to its first offset at or after this time.
            elsewhere: Sets one partition at another gateway; then each partition is set by itself if several read them.

        Raises:
            InvalidRequest: A field is out of range; names it.
            NotFound: The topic does not exist.
            Conflict: Members elsewhere prevent it.
            Unavailable: Kafka does not answer, or the group keeps rebalancing.
        """
        if time_ms is not None:
            check_time(time_ms, len(requested))
        check_requested(requested)
        async with self.admin.call():
            logs = await self.admin.logs(topic)
            if time_ms is not None:
                found = await self.admin.offsets_at(topic, time_ms, logs)
                requested = [
                    RequestedOffset(partition, min(offset, logs[partition][1])) for partition, offset in found.items()
                ]
            commits = commits_of(requested, topic, logs)
            if not commits:
                return
            try:
                await set_offsets(self.admin, self.consumers, group, topic, commits)
            except Conflict:
                if elsewhere is None:
                    raise
                await self._set_each(group, topic, requested, commits, elsewhere)

    async def _set_each(
        self,
        group: str,
        topic: str,
        requested: Sequence[RequestedOffset],
        commits: Mapping[int, Commit],
        elsewhere: Elsewhere,
    ) -> None:
        """Set each partition where it is read; Conflict names the partitions that were set before one failed."""
        done: list[int] = []
        for each in requested:
            if await elsewhere(each):
                done.append(each.partition)
                continue
            try:
                await set_offsets(self.admin, self.consumers, group, topic, {each.partition: commits[each.partition]})
            except Conflict as error:
                raise Conflict(f"{error}; set so far: partitions {done}" if done else str(error)) from error
            done.append(each.partition)

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for acks of delivered records, write the accepted ones, commit and leave the groups."""
        own = self.config.produce.shutdown_seconds
        await asyncio.gather(
            self.consumers.drain(timeout_seconds), self._drain_records(timeout_seconds if own is None else own)
        )
        await self.consumers.close(_CLOSE_SECONDS)

    async def _drain_records(self, timeout_seconds: float) -> None:
        await self.keys.drain(timeout_seconds)  # first: they queue more records
        await self.producer.close(timeout_seconds)
        await self.keys.close()


class Clusters:
    """Clusters that a gateway serves, at least one; iterates over them. An empty name means the first."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self.default = clusters[0]
        self._by_name = {cluster.config.name: cluster for cluster in clusters}

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._by_name.values())

    def named(self, name: str) -> Cluster:
        """Return the cluster of a request; raise InvalidRequest if no cluster has that name."""
        if (found := self._by_name.get(name) if name else self.default) is None:
            raise InvalidRequest(f"proxy `{name}` does not exist")
        return found


def _missing_topics(wanted: Sequence[TopicSpec], existing: Mapping[str, int]) -> list[TopicSpec]:
    return [topic for topic in wanted if topic.name not in existing]
