"""SetOffsets: Kafka takes commits only from a group's members, or from any client while the group is empty."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException

from dexorder_common.kafka.client_errors import COORDINATOR_CHANGING
from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.group_member import GroupMember
from dexorder_common.kafka.member_commits import NotAssigned
from dexorder_common.model.errors import Conflict, Unavailable
from dexorder_gateway.kafkapixy.admin import Admin
from dexorder_gateway.kafkapixy.admin_views import GroupView, MemberView
from dexorder_gateway.kafkapixy.consumers import Consumers

_RETRY_SECONDS = 0.2
_TIMEOUT_SECONDS = 8.0
_MEMBERSHIP_CHANGED = COORDINATOR_CHANGING | {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
}


async def set_offsets(admin: Admin, consumers: Consumers, group: str, topic: str, wanted: Mapping[int, Commit]) -> None:
    """Commit for a group, as `Cluster.set_offsets`; raise KafkaException if Kafka refuses."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while not await _try_once(admin, consumers, group, topic, wanted):  # noqa: ASYNC110  # the group sends no event
                await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError as error:
        raise Unavailable(f"group {group!r} is rebalancing, or Kafka does not answer; try again") from error


async def _try_once(admin: Admin, consumers: Consumers, group: str, topic: str, wanted: Mapping[int, Commit]) -> bool:
    """Return False if the group is changing."""
    await consumers.wait_until_left(group)
    ours = consumers.reading(group)
    here = ours is not None and topic in ours.topics
    if ours is not None and here and await _committed(asyncio.wrap_future(ours.set_offsets(topic, wanted))):
        return True
    found = await admin.group(group)
    _refuse_if_held(found, topic, wanted, ours)
    if here or not found.settled:
        return False
    if not found.members:
        return await _committed(admin.commit(group, topic, wanted))
    if ours is None:
        raise Conflict(
            f"group {group!r} is read by {_names(found.members)}, and Kafka takes commits only from these: "
            "stop them, or consume from the topic through this gateway first"
        )
    # No member reads these partitions, and ours, which reads other topics, may commit for them. A member that takes
    # them during the commit does not see it: then the commit does not count.
    if not await _committed(asyncio.wrap_future(ours.set_offsets(topic, wanted))):
        return False
    found = await admin.group(group)
    return found.settled and not found.holders(topic, wanted)


async def _committed(commit: Awaitable[None]) -> bool:
    """Return False if the commit failed and another attempt may succeed."""
    try:
        await commit
    except (NotAssigned, Unavailable):
        return False
    except KafkaException as error:
        if error.args[0].code() not in _MEMBERSHIP_CHANGED:
            raise
        return False
    return True


def _refuse_if_held(found: GroupView, topic: str, wanted: Mapping[int, Commit], ours: GroupMember | None) -> None:
    name = None if ours is None else ours.member_id
    others = [member for member in found.holders(topic, wanted) if member.member_id != name]
    if others:
        held = sorted({p for member in others for p in member.partitions[topic]}.intersection(wanted))
        raise Conflict(
            f"partitions {held} of topic {topic!r} are read by {_names(others)}: stop these, or set their offsets there"
        )


def _names(members: Sequence[MemberView]) -> str:
    return ", ".join(map(str, members))
