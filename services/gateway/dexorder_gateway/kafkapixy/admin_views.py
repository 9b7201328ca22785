"""Results of the administrative calls, and the rules that turn Kafka's answers into Kafka-Pixy's. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dexorder_common.kafka.commits import (
    MAX_METADATA_CHARACTERS,
    Commit,
    metadata_to_commit,
    shown_metadata,
    sparse_text,
)
from dexorder_common.model.errors import InvalidRequest

NO_COMMIT = -1
"""Offset of a group without a commit, as in Kafka's own protocol."""
OLDEST = -2
"""Offset of a group that other programs set to the log's start, however far that moves."""
LogRange = tuple[int, int]
"""First offset and end of a partition."""
SETTLED_STATES = {"Stable", "Empty", "Dead"}
"""States of Kafka's of a group that has its partitions assigned, or no members."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Brokers of a partition; ``leader`` is -1 without one."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic; ``config`` has the settings of the topic itself, None if they could not be read."""

    partitions: tuple[PartitionView, ...]
    config: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class OffsetsView:
    """One partition and the group's commit; ``offset`` is ``NO_COMMIT`` without one. Texts are as in Kafka-Pixy.

    Attributes:
        offset_at_time: First offset at or after the requested time; None without one.
    """

    partition: int
    begin: int
    end: int
    offset: int
    lag: int
    metadata: str = ""
    sparse_acks: str = ""
    offset_at_time: int | None = None


def offsets_view(partition: int, log: LogRange, offset: int, metadata: str, *, earliest: bool) -> OffsetsView:
    """Return GetOffsets' row of a partition.

    Args:
        offset: Of the commit; ``OLDEST``, or another negative number without one.
        metadata: As confluent-kafka returns it, maybe with foreign bytes after it.
        earliest: Whether the group would start at the log's start without a commit, which decides its lag.
    """
    begin, end = log
    if offset == OLDEST:
        return OffsetsView(partition, begin, end, OLDEST, lag=end - begin)
    if offset < 0:
        return OffsetsView(partition, begin, end, NO_COMMIT, lag=end - begin if earliest else 0)
    text, ranges = shown_metadata(offset, metadata)
    return OffsetsView(partition, begin, end, offset, end - offset, text, sparse_text(offset, ranges))


@dataclass(frozen=True, slots=True)
class RequestedOffset:
    """Commit that a caller requests."""

    partition: int
    offset: int
    metadata: str = ""


def check_time(time_ms: int, others: int) -> None:
    """Check a request by time, which sets every partition; raise InvalidRequest if it names ``others`` as well."""
    if time_ms < 0:
        raise InvalidRequest(f"time_ms {time_ms} is negative")
    if others:
        raise InvalidRequest(f"time_ms and {others} offsets are given; only one of the two is accepted")


def check_requested(requested: Sequence[RequestedOffset]) -> None:
    """Check a request as far as that needs no query; raise InvalidRequest for the first invalid field."""
    seen: set[int] = set()
    for index, each in enumerate(requested):
        for name, value in (("partition", each.partition), ("offset", each.offset)):
            if value < 0:
                raise InvalidRequest(f"offsets[{index}].{name} {value} is negative")
        if each.partition in seen:
            raise InvalidRequest(f"offsets[{index}].partition {each.partition} is a duplicate")
        seen.add(each.partition)
        if "\0" in each.metadata:
            raise InvalidRequest(f"offsets[{index}].metadata {each.metadata[:80]!r} has a NUL")
        if (size := len(each.metadata.encode())) > MAX_METADATA_CHARACTERS:
            raise InvalidRequest(
                f"offsets[{index}].metadata has {size} bytes; at most {MAX_METADATA_CHARACTERS} are kept"
            )


def commits_of(requested: Sequence[RequestedOffset], topic: str, logs: Mapping[int, LogRange]) -> dict[int, Commit]:
    """Return the commit of each partition; raise InvalidRequest if its log or its metadata does not allow one."""
    commits = {}
    for index, each in enumerate(requested):
        if each.partition not in logs:
            raise InvalidRequest(
                f"offsets[{index}].partition {each.partition} is not one of the {len(logs)} of topic {topic!r}"
            )
        end = logs[each.partition][1]
        if each.offset > end:
            raise InvalidRequest(
                f"offsets[{index}].offset {each.offset} is beyond the end {end} of partition {each.partition}"
            )
        try:
            commits[each.partition] = (each.offset, metadata_to_commit(each.offset, each.metadata, end=end))
        except ValueError as error:
            raise InvalidRequest(f"offsets[{index}].metadata {each.metadata[:80]!r}: {error}") from error
    return commits


@dataclass(frozen=True, slots=True)
class MemberView:
    """Member of a group, and the partitions it reads by topic."""

    member_id: str
    client_id: str
    host: str
    partitions: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host.lstrip('/')}"


@dataclass(frozen=True, slots=True)
class GroupView:
    """Group as its coordinator sees it; not settled during a rebalance: its assignment is unknown then."""

    group: str
    settled: bool
    members: tuple[MemberView, ...] = ()

    def holders(self, topic: str, partitions: Iterable[int]) -> list[MemberView]:
        """Return the members that read any of these partitions."""
        wanted = set(partitions)
        return [member for member in self.members if wanted.intersection(member.partitions.get(topic, ()))]


def assigned_partitions(assignment: bytes) -> dict[str, tuple[int, ...]]:
    """Parse a member's assignment: version, topics with partitions, user data. Another protocol's is a ValueError."""
    if not assignment:
        return {}
    try:
        _, count = struct.unpack_from(">hi", assignment)
        place, found = 6, {}
        for _ in range(count):
            (size,) = struct.unpack_from(">h", assignment, place)
            topic = assignment[place + 2 : place + 2 + size].decode()
            place += 2 + size
            (length,) = struct.unpack_from(">i", assignment, place)
            found[topic] = struct.unpack_from(f">{length}i", assignment, place + 4)
            place += 4 + 4 * length
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"an assignment of {len(assignment)} bytes does not parse: {error}") from error
    return found


def consumers_of(group: GroupView, topic: str) -> dict[str, list[int]]:
    """Return the partitions of a topic by reader: its client id, or its member id if the client id is not unique."""
    readers = [member for member in group.members if member.partitions.get(topic)]
    names = [member.client_id for member in readers]
    return {
        member.client_id if names.count(member.client_id) == 1 else member.member_id: sorted(member.partitions[topic])
        for member in readers
    }
