"""SetOffsets: Kafka takes commits only from a group's members, or from anybody while it has none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from services.common.model.errors import Conflict, Unavailable
from services.gateway.kafkapixy.admin_views import GroupView, MemberView
from services.gateway.kafkapixy.committing import COORDINATOR_CHANGING
from services.gateway.kafkapixy.start_position import Commit
from services.gateway.kafkapixy.types import NotAssigned

_AGAIN_SECONDS = 0.2
_TRY_SECONDS = 8.0
_STALE = COORDINATOR_CHANGING | {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
}
"""Who is in the group has changed since we looked."""


class Reader(Protocol):
    """A subscription of ours, as a member of the group."""

    topic: str

    @property
    def member_id(self) -> str:
        """As Kafka calls it."""

    async def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> None:
        """Commit, and go on from there if it is the topic that is read."""


class Readers(Protocol):
    """Our subscriptions."""

    def members(self, group: str) -> Sequence[Reader]:
        """Those of a group."""

    async def settled(self, group: str) -> None:
        """Wait for those that are leaving it."""


class Groups(Protocol):
    """Kafka's groups."""

    async def group(self, name: str) -> GroupView:
        """Who is in a group."""

    async def commit(self, group: str, topic: str, wanted: Mapping[int, Commit]) -> None:
        """Commit for a group without members."""


async def set_offsets(groups: Groups, readers: Readers, group: str, topic: str, wanted: Mapping[int, Commit]) -> None:
    """Commit these for a group, all or none; what is read here goes on from there at once.

    Raises:
        Conflict: Members elsewhere read some of the partitions, or keep us from committing.
        Unavailable: The group does not come to rest.
        KafkaException: Kafka refuses.
    """
    try:
        async with asyncio.timeout(_TRY_SECONDS):
            while not await _tried(groups, readers, group, topic, wanted):  # noqa: ASYNC110  # nobody tells us
                await asyncio.sleep(_AGAIN_SECONDS)
    except TimeoutError as error:
        raise Unavailable(f"group {group!r} is rebalancing, or Kafka does not answer; try again") from error


async def _tried(groups: Groups, readers: Readers, group: str, topic: str, wanted: Mapping[int, Commit]) -> bool:
    """Try once. False: the group is changing."""
    await readers.settled(group)
    ours = readers.members(group)
    here = next((reader for reader in ours if reader.topic == topic), None)
    if here is not None and await _committed(here, topic, wanted):
        return True
    found = await groups.group(group)
    _refuse_if_held(found, topic, wanted, ours)
    if here is not None or not found.settled:
        return False
    if not found.members:
        return await _commit_as_nobody(groups, group, topic, wanted)
    if not ours:
        raise Conflict(
            f"group {group!r} is read by {_names(found.members)}, and Kafka takes commits from nobody else: "
            "stop that, or consume from the topic through this gateway first"
        )
    # Nobody reads these partitions, and a member of ours that reads another topic may commit for them. Somebody who
    # took them meanwhile would not have seen that: then it does not count.
    if not await _committed(ours[0], topic, wanted):
        return False
    found = await groups.group(group)
    return found.settled and not found.holders(topic, wanted)


async def _committed(reader: Reader, topic: str, wanted: Mapping[int, Commit]) -> bool:
    try:
        await reader.set_offsets(topic, wanted)
    except (NotAssigned, Unavailable):
        return False
    except KafkaException as error:
        return _is_stale(error)
    return True


async def _commit_as_nobody(groups: Groups, group: str, topic: str, wanted: Mapping[int, Commit]) -> bool:
    try:
        await groups.commit(group, topic, wanted)
    except KafkaException as error:
        return _is_stale(error)
    return True


def _is_stale(error: KafkaException) -> bool:
    """False, when trying again may help; else the error is raised."""
    if error.args[0].code() not in _STALE:
        raise error
    return False


def _refuse_if_held(found: GroupView, topic: str, wanted: Mapping[int, Commit], ours: Sequence[Reader]) -> None:
    names = {reader.member_id for reader in ours}
    elsewhere = [member for member in found.holders(topic, wanted) if member.member_id not in names]
    if elsewhere:
        held = sorted({p for member in elsewhere for p in member.partitions[topic]}.intersection(wanted))
        raise Conflict(
            f"partitions {held} of topic {topic!r} are read by {_names(elsewhere)}: "
            "stop that, or set their offsets there"
        )


def _names(members: Sequence[MemberView]) -> str:
    return ", ".join(map(str, members))
