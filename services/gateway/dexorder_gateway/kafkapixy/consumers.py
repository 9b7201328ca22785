"""Subscriptions of one cluster: each starts with the first request of its group and topic, and ends when it is idle.

The subscriptions of a group share its member; the last one that ends leaves the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dexorder_common.kafka.group_member import GroupMember
from dexorder_common.kafka.member_commits import NotAssigned
from dexorder_common.model.errors import Exhausted, Unavailable
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, consumer_options
from dexorder_gateway.kafkapixy.metrics import ClusterMetrics, GroupTopic, Place
from dexorder_gateway.kafkapixy.subscription import PixySubscription

_LEAVE_SECONDS = 5.0


class Consumers:
    """At most one open subscription for each group and topic. For one event loop."""

    def __init__(self, config: ClusterConfig, metrics: ClusterMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._open: dict[GroupTopic, PixySubscription] = {}
        self._leaving: set[PixySubscription] = set()
        self._members: dict[str, GroupMember] = {}
        self._stopping = False
        self._kafka_up = False
        metrics.subscriptions = lambda: list(self._open.values())

    def refuse_if_disabled(self) -> None:
        """Raise Unavailable if this gateway may not consume from the cluster."""
        if self._config.consume.disabled:
            raise Unavailable("service is disabled by configuration")

    def subscription(self, group: str, topic: str) -> PixySubscription:
        """Return the subscription; join the group first if needed. Raises Unavailable, or Exhausted at the limit."""
        self.refuse_if_disabled()
        if self._stopping:
            raise Unavailable("the gateway is stopping")
        found = self._open.get((group, topic))
        if found is None:
            if len(self._open) >= self._config.consume.max_subscriptions:
                raise Exhausted(f"{len(self._open)} pairs of group and topic are read already")
            found = PixySubscription(self._config, group, topic, self._metrics, self._left)
            found.kafka_up = self._kafka_up
            if (member := self._members.get(group)) is None or not found.start(member):
                # None, or its thread ends: it would not take the topic.
                self._members[group] = self._new_member(group)
                found.start(self._members[group])
            self._open[group, topic] = found
        return found

    def _new_member(self, group: str) -> GroupMember:
        seconds = self._config.consume.offsets_commit_interval_ms / 1_000
        return GroupMember(group, consumer_options(self._config), commit_seconds=seconds, cluster=self._config.name)

    def subscribed(self, group: str, topic: str) -> PixySubscription:
        """Return the open subscription; raise NotAssigned without one."""
        found = self._open.get((group, topic))
        if found is None:
            raise NotAssigned(f"group {group!r} does not read topic {topic!r} here")
        return found

    def is_joining(self, group: str, topic: str) -> bool:
        """Return whether the topic is read here but without partitions yet: the group is being joined."""
        found = self._open.get((group, topic))
        return found is not None and not found.progress()

    def reading(self, group: str) -> GroupMember | None:
        """Return the member by which this gateway reads topics of a group."""
        return next((each.member for (name, _), each in self._open.items() if name == group), None)

    def note_topic_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Tell the members the present ids of the topics."""
        for (_, topic), each in self._open.items():
            if topic in topic_ids:
                each.member.note_topic_id(topic, topic_ids[topic])

    async def wait_until_left(self, group: str) -> None:
        """Wait for the subscriptions that are leaving the group."""
        await asyncio.gather(*(each.ended(_LEAVE_SECONDS) for each in self._leaving if each.group == group))

    def kafka_is_up(self, up: bool) -> None:
        """Tell the subscriptions whether the cluster answers."""
        self._kafka_up = up
        for each in self._open.values():
            each.kafka_up = up

    def places(self) -> set[Place]:
        """Return topic and partition of everything that is read here."""
        return {(each.topic, partition) for each in self._open.values() for partition in each.progress()}

    def _left(self, subscription: PixySubscription, *, ended: bool) -> None:
        """Note that a subscription takes no more requests; called again when its thread has ended."""
        name = (subscription.group, subscription.topic)
        if self._open.get(name) is subscription:
            del self._open[name]
        (self._leaving.discard if ended else self._leaving.add)(subscription)
        group, member = subscription.group, subscription.member
        if ended and self._members.get(group) is member and not member.topics:
            del self._members[group]

    def stop_taking(self) -> None:
        """Refuse requests and end waiting ones; acks are still taken."""
        self._stopping = True
        for each in self._open.values():
            each.stop_taking()

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until every delivered record is acked, at most ``timeout_seconds``."""
        self.stop_taking()
        await asyncio.gather(*(each.drained(timeout_seconds) for each in list(self._open.values())))

    async def close(self, timeout_seconds: float) -> None:
        """Commit and leave every group."""
        for each in list(self._open.values()):
            each.leave()
        await asyncio.gather(*(each.ended(timeout_seconds) for each in list(self._leaving)))
