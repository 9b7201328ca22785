"""What the administrative calls ask and answer, and the rules between Kafka's words and Kafka-Pixy's. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.common.model.errors import InvalidRequest
from services.gateway.kafkapixy.sparse_acks import MAX_METADATA_CHARACTERS, Range, committed_ranges, decode_ranges
from services.gateway.kafkapixy.start_position import Commit

NO_COMMIT = -1
"""The offset shown for a group that has none, as in Kafka's own protocol."""
Log = tuple[int, int]
"""First offset and end of a partition."""
_STOP = "."
_LAST = 1 << 63
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd]")
_SETTLED_STATES = {"Stable", "Empty", "Dead"}


# ---- topics


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Who holds a partition, by broker; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic.

    Attributes:
        config: What was set for this topic; None when it could not be read.
    """

    partitions: tuple[PartitionView, ...]
    config: Mapping[str, str] | None = None


# ---- offsets


@dataclass(frozen=True, slots=True)
class OffsetsView:
    """One partition and the group's commit; ``offset`` is ``NO_COMMIT`` without one. Texts are Kafka-Pixy's."""

    partition: int
    begin: int
    end: int
    offset: int
    lag: int
    metadata: str = ""
    sparse_acks: str = ""


def offsets_view(partition: int, log: Log, offset: int, metadata: str, *, earliest: bool) -> OffsetsView:
    """What GetOffsets says of a partition.

    Args:
        offset: Of the commit; negative when there is none.
        metadata: As confluent-kafka gives it, maybe with foreign bytes behind it.
        earliest: Where the group would begin without a commit, which decides its lag.
    """
    begin, end = log
    if offset < 0:
        return OffsetsView(partition, begin, end, NO_COMMIT, lag=end - begin if earliest else 0)
    text, ranges = read_metadata(offset, metadata)
    return OffsetsView(partition, begin, end, offset, end - offset, text, sparse_text(offset, ranges))


def read_metadata(offset: int, metadata: str) -> tuple[str, list[Range]]:
    """A commit's metadata as Kafka-Pixy would show it, and the acked ranges in it.

    Ours loses its full stop. What others wrote may have foreign bytes behind it (see ``sparse_acks``): it ends where it
    stops being text, and its ranges do not count, neither here nor for a reader.
    """
    text, stop, _ = metadata.partition(_STOP)
    if stop and (ranges := _ranges(offset, text)):
        return text, ranges
    return _NO_TEXT.split(metadata, maxsplit=1)[0], []


def kept_metadata(offset: int, text: str, *, end: int) -> str:
    """What to commit for a metadata that a caller gives, so that ``read_metadata`` gives it back.

    Kafka-Pixy takes whatever decodes for acked ranges, and so do we where they can be true: above ``offset``, apart
    from each other, and of records that are there (before ``end``). Anything else is a note of the caller's.

    Raises:
        ValueError: It is no ranges, but would be read as some.
    """
    ranges = _ranges(offset, text.removesuffix(_STOP))
    if ranges and ranges[-1][1] <= end:
        return text.removesuffix(_STOP) + _STOP
    try:
        misread = committed_ranges(offset, text, end=_LAST)  # the log may grow
    except ValueError:
        misread = []
    if misread:
        raise ValueError("its beginning, up to the full stop, would pass for acks")
    return text


def sparse_text(offset: int, ranges: Iterable[Range]) -> str:
    """Ranges relative to the offset: ``1-2,3-5``."""
    return ",".join(f"{start - offset}-{end - offset}" for start, end in ranges)


def _ranges(offset: int, text: str) -> list[Range]:
    """The ranges of a text; none when it has other meanings. They lie apart: what touches is one range."""
    try:
        ranges = decode_ranges(offset, text)
    except ValueError:
        return []
    edges = [offset, *(end for _, end in ranges)]
    return ranges if all(start > edge for (start, _), edge in zip(ranges, edges, strict=False)) else []


# ---- setting them


@dataclass(frozen=True, slots=True)
class WantedOffset:
    """A commit somebody asks for."""

    partition: int
    offset: int
    metadata: str = ""


def check_wanted(wanted: Sequence[WantedOffset]) -> None:
    """What can be said without asking Kafka.

    Raises:
        InvalidRequest: A field is out of range, or a partition comes twice.
    """
    seen: set[int] = set()
    for index, each in enumerate(wanted):
        for name, value in (("partition", each.partition), ("offset", each.offset)):
            if value < 0:
                raise InvalidRequest(f"offsets[{index}].{name} {value} is negative")
        if each.partition in seen:
            raise InvalidRequest(f"offsets[{index}].partition {each.partition} comes twice")
        seen.add(each.partition)
        if "\0" in each.metadata:
            raise InvalidRequest(f"offsets[{index}].metadata {each.metadata[:80]!r} has a NUL")
        if (size := len(each.metadata.encode())) > MAX_METADATA_CHARACTERS:
            raise InvalidRequest(
                f"offsets[{index}].metadata has {size} bytes; at most {MAX_METADATA_CHARACTERS} are kept"
            )


def commits_of(wanted: Sequence[WantedOffset], topic: str, logs: Mapping[int, Log]) -> dict[int, Commit]:
    """What to commit, a partition.

    Raises:
        InvalidRequest: A partition is not there, an offset is beyond its end, or a metadata can't be kept.
    """
    commits = {}
    for index, each in enumerate(wanted):
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
            commits[each.partition] = (each.offset, kept_metadata(each.offset, each.metadata, end=end))
        except ValueError as error:
            raise InvalidRequest(f"offsets[{index}].metadata {each.metadata[:80]!r}: {error}") from error
    return commits


# ---- groups


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group, and the partitions it reads, by topic."""

    member_id: str
    client_id: str
    host: str
    partitions: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host.lstrip('/')}"


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its coordinator sees it.

    Attributes:
        settled: False while partitions go from member to member: nobody knows then who reads what.
    """

    group: str
    settled: bool
    members: tuple[MemberView, ...] = ()

    def holders(self, topic: str, partitions: Iterable[int]) -> list[MemberView]:
        """Who reads any of these partitions."""
        wanted = set(partitions)
        return [member for member in self.members if wanted.intersection(member.partitions.get(topic, ()))]


def is_settled(state: str) -> bool:
    """Whether a group in this state of Kafka's has its partitions dealt out, or no members."""
    return state in _SETTLED_STATES


def assigned_partitions(assignment: bytes) -> dict[str, tuple[int, ...]]:
    """Read what the consumer protocol told a member: version, then of each topic its partitions, then bytes for others.

    Raises:
        ValueError: It is cut short or no such assignment.
    """
    if not assignment:
        return {}
    try:
        _, count = struct.unpack_from(">hi", assignment)
        place, found = 6, {}
        for _ in range(count):
            (size,) = struct.unpack_from(">h", assignment, place)
            topic = assignment[place + 2 : place + 2 + size].decode()
            place += 2 + size
            (most,) = struct.unpack_from(">i", assignment, place)
            found[topic] = struct.unpack_from(f">{most}i", assignment, place + 4)
            place += 4 + 4 * most
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"an assignment of {len(assignment)} bytes does not parse: {error}") from error
    return found


def consumers_of(group: GroupView, topic: str) -> dict[str, list[int]]:
    """The partitions of a topic by who reads them: its client id, or its member id where others have the same one."""
    readers = [member for member in group.members if member.partitions.get(topic)]
    names = [member.client_id for member in readers]
    return {
        member.client_id if names.count(member.client_id) == 1 else member.member_id: sorted(member.partitions[topic])
        for member in readers
    }
