"""One Kafka cluster behind the gateway: whether it is there, which topics it has, its producer and its consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from services.common.model.errors import InvalidRequest, Unavailable
from services.gateway.config import ClusterConfig
from services.gateway.kafkapixy.admin import Admin
from services.gateway.kafkapixy.admin_views import WantedOffset, check_wanted, commits_of
from services.gateway.kafkapixy.client_errors import ConnectionErrors, reason
from services.gateway.kafkapixy.consumers import Consumers
from services.gateway.kafkapixy.log_ends import LogEnds
from services.gateway.kafkapixy.metrics import PixyMetrics
from services.gateway.kafkapixy.options import client_options
from services.gateway.kafkapixy.producer import RecordProducer
from services.gateway.kafkapixy.set_offsets import set_offsets
from services.gateway.kafkapixy.topics import create_topics, missing_topics

log = structlog.get_logger(__name__)
_ASK_SECONDS = 3.0
_CLOSE_SECONDS = 5.0
_LAG_POLLS = 5
"""The logs' ends are asked for once in so many polls."""


class Cluster:
    """Start with ``start``, keep ``watch`` running, end with ``drain`` and ``close``.

    Attributes:
        failure: Why the cluster can't be used; None while it answers and has the configured topics.
    """

    def __init__(self, config: ClusterConfig, metrics: PixyMetrics) -> None:
        self.config = config
        self.failure: str | None = "Kafka has not answered yet"
        self._connection_errors = ConnectionErrors()
        self._kafka_up = metrics.kafka_up.labels(config.name)
        options: dict[str, Any] = {**client_options(config), "error_cb": self._connection_errors.note}
        self._admin = AdminClient(options)
        self.admin = Admin(config, self._admin, lambda: self.failure)
        self._partitions: dict[str, int] = {}
        self._asking = asyncio.Lock()
        own = metrics.cluster(config.name)
        self.producer = RecordProducer(config, own, self._partition_count)
        self.consumers = Consumers(config, own)
        self._log_ends = own.log_end = LogEnds(
            self._admin, read_committed=config.consume.isolation_level == "read_committed"
        )

    def start(self) -> None:
        """Take requests; the cluster need not be there yet."""
        self.producer.start()

    async def watch(self) -> None:
        """Ask the cluster for its topics now and then, creating the configured ones that are missing. Never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._log_ends.watch(self.consumers.places, _LAG_POLLS * self.config.poll_seconds))
            group.create_task(self._watch_topics())

    async def _watch_topics(self) -> None:
        while True:
            before = self.failure
            try:
                await self._look()
                self.failure = None
            except (KafkaException, Unavailable) as error:
                self.failure = f"Kafka at {self.config.kafka}: {self._why(error)}"
            if self.failure != before:
                self._kafka_up.set(self.failure is None)
                if self.failure:
                    log.warning("cluster is away", cluster=self.config.name, reason=self.failure)
                else:
                    log.info("cluster is there", cluster=self.config.name, topics=len(self._partitions))
            self.consumers.kafka_is_up(self.failure is None)
            await asyncio.sleep(self.config.poll_seconds)

    async def _look(self) -> None:
        self._partitions = await self._list_topics()
        missing = missing_topics(self.config.topics, self._partitions)
        if missing:
            await create_topics(self._admin, missing, replication=self.config.topic_replication)
            self._partitions = await self._list_topics()
            if still := missing_topics(missing, self._partitions):
                raise Unavailable(f"topic {still[0].name} is not there yet")

    async def _list_topics(self) -> dict[str, int]:
        try:
            metadata = await asyncio.to_thread(self._admin.list_topics, timeout=_ASK_SECONDS)
        finally:
            self._admin.poll(0)  # hands librdkafka's log lines and errors over
        self._connection_errors.forget()
        if not metadata.brokers:
            raise Unavailable("no broker answers")
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def _partition_count(self, topic: str) -> int:
        return self._partitions.get(topic, 0)

    def _why(self, error: Exception) -> str:
        return self._connection_errors.text or reason(error)

    def knows(self, topic: str) -> bool:
        """Whether the topic was there when the cluster was asked last."""
        return topic in self._partitions

    async def has_topic(self, topic: str) -> bool:
        """Whether the topic exists; asks the cluster only about topics not seen before.

        Raises:
            Unavailable: The cluster does not answer.
        """
        if topic in self._partitions:
            return True
        if self.failure:
            # Its topics were never listed, or it went away: an answer could only be late.
            raise Unavailable(self.failure)
        async with self._asking:  # one question at a time: typing errors must not take all the threads
            return topic in self._partitions or await self._ask(topic)

    async def _ask(self, topic: str) -> bool:
        try:
            metadata: Any = await asyncio.to_thread(self._admin.list_topics, topic, timeout=_ASK_SECONDS)
        except KafkaException as error:
            raise Unavailable(f"Kafka at {self.config.kafka}: {self._why(error)}") from error
        found = metadata.topics[topic]
        if found.error is None:
            self._partitions[topic] = len(found.partitions)
        # A topic the broker is just creating has no leader yet; it is there.
        return found.error is None or found.error.code() == KafkaError.LEADER_NOT_AVAILABLE

    async def set_offsets(self, group: str, topic: str, wanted: Sequence[WantedOffset]) -> None:
        """Set a group's commits, all or none; what this gateway reads goes on from there at once.

        Raises:
            InvalidRequest: A field is out of range; it says which.
            NotFound: There is no such topic.
            Conflict: Members elsewhere are in the way.
            Unavailable: Kafka does not answer, or the group does not come to rest.
        """
        check_wanted(wanted)
        async with self.admin.call():
            commits = commits_of(wanted, topic, await self.admin.logs(topic))
            if commits:
                await set_offsets(self.admin, self.consumers, group, topic, commits)

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for acks of what was handed out, write what was accepted, commit and leave the groups."""
        own = self.config.produce.shutdown_seconds
        await asyncio.gather(
            self.consumers.drain(timeout_seconds), self.producer.close(timeout_seconds if own is None else own)
        )
        await self.consumers.close(_CLOSE_SECONDS)


class Clusters:
    """The clusters that a gateway serves; iterates over them.

    Args:
        clusters: At least one; the first is meant by an empty name.
    """

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self.default = clusters[0]
        self._by_name = {cluster.config.name: cluster for cluster in clusters}

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._by_name.values())

    def named(self, name: str) -> Cluster:
        """The cluster that a request means.

        Raises:
            InvalidRequest: There is none of that name.
        """
        if not name:
            return self.default
        try:
            return self._by_name[name]
        except KeyError:
            raise InvalidRequest(f"cluster {name!r} is not configured") from None
