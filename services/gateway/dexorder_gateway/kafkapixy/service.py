"""The KafkaPixy service: checks and converts its requests and responses. Of the transport it uses only the context."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import grpc
import structlog
from confluent_kafka import Message

from dexorder_common.kafka.client_options import headers_of
from dexorder_common.kafka.member_commits import NotAssigned
from dexorder_common.kafka.partition_queue import Delivery
from dexorder_common.model.datasets import topics
from dexorder_common.model.errors import InvalidRequest, NotAllowed, NotFound, Unavailable
from dexorder_common.rpc.identity import Caller, Role, current_caller
from dexorder_gateway.kafkapixy.admin_views import RequestedOffset, TopicView, check_time
from dexorder_gateway.kafkapixy.cluster import CREATION_SECONDS, Cluster, Clusters
from dexorder_gateway.kafkapixy.cluster_config import TOPIC_NAME, ClusterConfig
from dexorder_gateway.kafkapixy.peers import FORWARDED, Peers
from dexorder_gateway.keys.claims import RecordKey, refuse_repeated
from dexorder_gateway.keys.ledger import Placing
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc

log = structlog.get_logger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
_DELIVERED_ONLY = "delivered"
"""Value of FORWARDED for an ack that counts only for a record that was delivered."""
_QUEUED = pb.ProdRs(partition=-1, offset=-1)
NAME = pb.DESCRIPTOR.services_by_name["KafkaPixy"].full_name
_CONFIG_VERSION = 1
"""Version of the format of a topic's configuration in ZooKeeper; there was only this one."""
MAX_GROUP_CHARACTERS = 8_000
"""Kafka's protocol takes 32,767 bytes, at most four per character; librdkafka does not check."""
_TRIMMED = " \t\n\v\f\r"
"""What librdkafka removes at the start of a group's name: another group, or none, which ends the process."""
PIPELINE_TOPICS = frozenset(topics())
"""Topics with records that become rows of the tables, in any cluster."""
PRODUCERS = (Role.INGESTOR, Role.ADMIN)


def topic_name(name: str) -> str:
    """Return the name if it can be a topic's, before librdkafka sees it; else raise InvalidRequest."""
    if not TOPIC_NAME.match(name):
        raise InvalidRequest(f"topic {name[:300]!r} is not a topic's name")
    return name


def group_name(name: str) -> str:
    """Return the name if it can be a group's, before librdkafka sees it; else raise InvalidRequest."""
    if not name:
        raise InvalidRequest("group '' is empty")
    if "\0" in name:  # librdkafka would take the part before it, another group
        raise InvalidRequest(f"group {name[:300]!r} has a NUL")
    if name[0] in _TRIMMED:
        raise InvalidRequest(f"group {name[:300]!r} begins with white space")
    if len(name) > MAX_GROUP_CHARACTERS:
        raise InvalidRequest(f"group {name[:300]!r}... is longer than {MAX_GROUP_CHARACTERS} characters")
    return name


def check_produce(caller: Caller | None, topic: str, cluster: ClusterConfig) -> None:
    """Raise NotAllowed unless the caller may produce to a topic; None as the caller means that identity is off."""
    if topic == cluster.keys_topic:
        raise NotAllowed(f"topic {topic} is the gateways' own; only they may write to it")
    if caller is not None and topic in PIPELINE_TOPICS and caller.role not in PRODUCERS:
        raise NotAllowed(
            f"client_id {caller.client_id!r} has the role {caller.role}; "
            f"topic {topic} takes records of {' or '.join(sorted(PRODUCERS))}"
        )


class UnknownTopic(InvalidRequest):
    """The topic does not exist; an invalid request in Kafka-Pixy's gRPC API, not found in its HTTP API."""


class KafkaPixy(rpc.KafkaPixyServicer):
    """Serves one or more clusters."""

    def __init__(self, clusters: Clusters, peers: Peers) -> None:
        self._clusters = clusters
        self._peers = peers
        self._stopping = False

    def stop_taking(self) -> None:
        """Refuse new calls that write, consume or set offsets, and end the calls that wait for a record."""
        self._stopping = True
        for cluster in self._clusters:
            cluster.consumers.stop_taking()

    async def Produce(self, request: pb.ProdRq, context: Context) -> pb.ProdRs:  # noqa: N802
        """Write one record; answer when Kafka has it, or with async_mode when it is queued."""
        cluster = self._clusters.named(request.cluster)
        self.refuse_if_stopping()
        topic = request.topic
        check_produce(current_caller(), topic, cluster.config)
        if not cluster.knows(topic) and not await cluster.has_topic(topic_name(topic), CREATION_SECONDS):
            raise UnknownTopic(f"topic {topic!r} does not exist")
        key = None if request.key_undefined else request.key_value
        headers = [(header.key, header.value) for header in request.headers]
        if request.idempotency_key:
            return await self._produce_once(cluster, request, key, headers)
        refuse_repeated(context.invocation_metadata(), "give idempotency_key, or turn retries off for Produce")
        if request.async_mode:
            cluster.producer.send_async(topic, key, request.message, headers)
            return _QUEUED
        partition, offset = await cluster.producer.send(topic, key, request.message, headers)
        return pb.ProdRs(partition=partition, offset=offset)

    async def _produce_once(
        self, cluster: Cluster, request: pb.ProdRq, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> pb.ProdRs:
        """Write the record of a key, unless a call at any gateway was earlier; then answer as that one."""
        caller, topic, since_s = current_caller(), request.topic, asyncio.get_running_loop().time()

        def begin() -> Placing:
            return cluster.producer.begin(topic, key, request.message, headers)

        contents = pb.ProdRq()
        contents.CopyFrom(request)
        contents.ClearField("cluster")  # it may have several names
        contents.ClearField("async_mode")
        record = await cluster.keys.once(
            RecordKey(caller.client_id if caller else "", topic, request.idempotency_key),
            contents.SerializeToString(deterministic=True),
            begin,
        )
        if request.async_mode:
            record.add_done_callback(partial(_log_lost, topic))
            return _QUEUED
        partition, offset = await cluster.producer.placed(record, topic, since_s)
        return pb.ProdRs(partition=partition, offset=offset)

    async def ConsumeNAck(self, request: pb.ConsNAckRq, context: Context) -> pb.ConsRs:  # noqa: N802
        """Ack an earlier record if requested, then wait for the next one; NOT_FOUND when the long poll ends."""
        cluster = self._clusters.named(request.cluster)
        self.refuse_if_stopping()
        cluster.consumers.refuse_if_disabled()
        group, topic = group_name(request.group), request.topic
        known = cluster.knows(topic)
        if not known:
            topic_name(topic)
        auto_ack = request.auto_ack and not request.no_ack
        if auto_ack:
            refuse_repeated(context.invocation_metadata(), "with auto_ack its record would be lost; call again")
        acks_earlier = not (request.no_ack or auto_ack)
        if acks_earlier:
            _check_place("ack_partition", request.ack_partition, "ack_offset", request.ack_offset)
        if not known and not await cluster.has_topic(topic, cluster.config.consume.long_polling_timeout_ms / 1_000):
            raise NotFound(f"topic {topic!r} does not exist")
        subscription = cluster.consumers.subscription(group, topic)
        if acks_earlier:
            # A first call does not ack and leaves the fields at 0: then only a delivered record is acked.
            is_first = not request.ack_partition and not request.ack_offset
            try:
                subscription.ack(request.ack_partition, request.ack_offset, delivered_only=is_first)
            except NotAssigned:
                await self._ack_elsewhere(cluster, _earlier(request), is_first=is_first)
        delivery = await subscription.consume()

        def answered(done: Context) -> None:
            # A caller that has disconnected did not get the record. grpc.aio's cancelled() stays false here; a
            # status that was not sent, or was sent too late, shows it.
            if not done.done() or done.time_remaining() == 0:
                subscription.give_back(delivery)
            elif auto_ack:
                try:
                    subscription.ack(delivery.partition, delivery.offset)
                except NotAssigned:
                    return  # another member has the partition now, and delivers the record again

        context.add_done_callback(answered)  # type: ignore[arg-type]  # the stub wants its own class
        return _answer(delivery)

    async def Ack(self, request: pb.AckRq, context: Context) -> pb.AckRs:  # noqa: N802
        """Ack one record that any gateway delivered."""
        cluster = self._clusters.named(request.cluster)
        group, topic = group_name(request.group), topic_name(request.topic)
        _check_place("partition", request.partition, "offset", request.offset)
        forwarded = _forwarded(context)
        try:
            subscription = cluster.consumers.subscribed(group, topic)
            subscription.ack(request.partition, request.offset, delivered_only=forwarded == _DELIVERED_ONLY)
        except NotAssigned:
            if forwarded:
                raise
            await self._ack_elsewhere(cluster, request, is_first=False)
        return pb.AckRs()

    async def _ack_elsewhere(self, cluster: Cluster, request: pb.AckRq, *, is_first: bool) -> None:
        """Have an ack taken that this gateway can't take now: by a peer, or here once the group has rebalanced.

        Args:
            is_first: It may be no ack at all, so its caller gets no error if the partition is not found.
        """
        metadata = ((FORWARDED, _DELIVERED_ONLY if is_first else "1"),)
        group, topic, partition = request.group, request.topic, request.partition

        def here() -> None:
            subscription = cluster.consumers.subscribed(group, topic)
            subscription.ack(partition, request.offset, delivered_only=is_first)

        async def forward(stub: Any, timeout: float) -> None:
            await stub.Ack(request, timeout=timeout, metadata=metadata)

        wait = not is_first and cluster.may_assign(group, topic, partition, alone=not self._peers.names)
        try:
            await self._peers.take((request.cluster, group, topic, partition), here, forward, wait=wait)
        except (NotAssigned, Unavailable):
            if not is_first:
                raise

    async def GetOffsets(self, request: pb.GetOffsetsRq, context: Context) -> pb.GetOffsetsRs:  # noqa: N802
        """Return a group's commit and lag in every partition of a topic."""
        cluster = self._clusters.named(request.cluster)
        group, topic = group_name(request.group), topic_name(request.topic)
        time_ms = request.time_ms if request.HasField("time_ms") else None
        if time_ms is not None:
            check_time(time_ms, 0)
        async with cluster.admin.call():
            found = await cluster.admin.offsets(group, topic, time_ms)
        # the fields have the same names
        offsets = [pb.PartitionOffset(count=each.end - each.begin, **asdict(each)) for each in found]
        return pb.GetOffsetsRs(offsets=offsets)

    async def SetOffsets(self, request: pb.SetOffsetsRq, context: Context) -> pb.SetOffsetsRs:  # noqa: N802
        """Set a group's commits in a topic, all of the request or none."""
        cluster = self._clusters.named(request.cluster)
        self.refuse_if_stopping()
        group, topic = group_name(request.group), topic_name(request.topic)
        requested = [RequestedOffset(each.partition, each.offset, each.metadata) for each in request.offsets]
        time_ms = request.time_ms if request.HasField("time_ms") else None

        async def elsewhere(wanted: RequestedOffset) -> bool:
            place = pb.PartitionOffset(partition=wanted.partition, offset=wanted.offset, metadata=wanted.metadata)
            part = pb.SetOffsetsRq(cluster=request.cluster, group=group, topic=topic, offsets=[place])

            async def forward(stub: Any, timeout: float) -> None:
                await stub.SetOffsets(part, timeout=3 * timeout, metadata=((FORWARDED, "1"),))

            where = (request.cluster, group, topic, wanted.partition)
            return await self._peers.forwarded(where, forward) is None

        is_alone = _forwarded(context) or not self._peers.names
        await cluster.set_offsets(group, topic, requested, time_ms, None if is_alone else elsewhere)
        return pb.SetOffsetsRs()

    async def ListTopics(self, request: pb.ListTopicRq, context: Context) -> pb.ListTopicRs:  # noqa: N802
        """Return all topics with their configuration, as Kafka-Pixy's gRPC API."""
        return await self.list_topics(request, with_config=True)

    async def list_topics(self, request: pb.ListTopicRq, *, with_config: bool) -> pb.ListTopicRs:
        """Return all topics; the configurations, a hundred times the work of the names, only if asked for."""
        cluster = self._clusters.named(request.cluster)
        async with cluster.admin.call():
            found = await cluster.admin.topics(with_partitions=request.with_partitions, with_config=with_config)
        topics = {name: _topic_answer(topic, with_partitions=request.with_partitions) for name, topic in found.items()}
        return pb.ListTopicRs(topics=topics)

    async def GetTopicMetadata(self, request: pb.GetTopicMetadataRq, context: Context) -> pb.GetTopicMetadataRs:  # noqa: N802
        """Return one topic."""
        cluster = self._clusters.named(request.cluster)
        name = topic_name(request.topic)
        async with cluster.admin.call():
            found = await cluster.admin.topic(name)
        return _topic_answer(found, with_partitions=request.with_partitions)

    async def ListConsumers(self, request: pb.ListConsumersRq, context: Context) -> pb.ListConsumersRs:  # noqa: N802
        """Return the consumers of each partition of a topic; NOT_FOUND for a group that reads none."""
        cluster = self._clusters.named(request.cluster)
        group = group_name(request.group) if request.group else ""
        topic = topic_name(request.topic)
        async with cluster.admin.call():
            found = await cluster.admin.consumers(topic, group)
        return pb.ListConsumersRs(groups={name: _group_answer(consumers) for name, consumers in found.items()})

    def refuse_if_stopping(self) -> None:
        """Raise Unavailable after ``stop_taking``."""
        if self._stopping:
            raise Unavailable("the gateway is stopping")


def _earlier(request: pb.ConsNAckRq) -> pb.AckRq:
    """Return the ack that a ConsumeNAck has."""
    return pb.AckRq(
        cluster=request.cluster,
        group=request.group,
        topic=request.topic,
        partition=request.ack_partition,
        offset=request.ack_offset,
    )


def _log_lost(topic: str, record: Placing) -> None:
    if not record.cancelled() and (error := record.exception()) is not None:
        log.error("async record with an idempotency key lost", topic=topic, reason=str(error))


def _forwarded(context: Context) -> str:
    """Return how another gateway has forwarded a call; empty for a call of a client."""
    return next((str(value) for key, value in context.invocation_metadata() or () if key == FORWARDED), "")


def _check_place(partition_name: str, partition: int, offset_name: str, offset: int) -> None:
    for name, value in ((partition_name, partition), (offset_name, offset)):
        if value < 0:
            raise InvalidRequest(f"{name} {value} is negative")


def _answer(delivery: Delivery[Message]) -> pb.ConsRs:
    record = delivery.record
    key = record.key()
    answer = pb.ConsRs(
        partition=delivery.partition,
        offset=delivery.offset,
        key_value=key or b"",
        key_undefined=key is None,
        message=record.value() or b"",
    )
    if headers := headers_of(record):
        answer.headers.extend(pb.RecordHeader(key=name, value=value or b"") for name, value in headers)
    return answer


def _topic_answer(view: TopicView, *, with_partitions: bool) -> pb.GetTopicMetadataRs:
    answer = pb.GetTopicMetadataRs()
    if view.config is not None:
        answer.version = _CONFIG_VERSION
        answer.config.update(view.config)
    if with_partitions:
        for each in view.partitions:
            answer.partitions.add(**asdict(each))
    return answer


def _group_answer(consumers: Mapping[str, list[int]]) -> pb.ConsumerGroups:
    return pb.ConsumerGroups(
        consumers={name: pb.ConsumerPartitions(partitions=partitions) for name, partitions in consumers.items()}
    )
