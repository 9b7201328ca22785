"""What the readers of a group and its callers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple

from services.common.model.errors import SuiteError
from services.gateway.kafkapixy.pending_runs import UNARY, T, Unacked


class NotAssigned(SuiteError):
    """The partition is read by another member of the group, or by nobody."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a caller takes at once; the default is a unary call's one record.

    Attributes:
        records: Most of them.
        bytes: New records are added until they have so many bytes; a single larger one is taken.
        most_held: How much a stream may have unacked before it gets nothing new; a unary caller is bound by the
            partition's ``max_pending``.
    """

    caller: int = UNARY
    records: int = 1
    bytes: int = 1 << 62
    max_unacked: Unacked | None = None


class Delivery(NamedTuple, Generic[T]):
    """Records of a partition on their way to a caller.

    Attributes:
        records: Offset and record, at least one, in order; a unary call's is the only one.
        again: Why they were handed out before: ``timeout`` or ``given_back``; empty the first time.
    """

    partition: int
    records: list[tuple[int, T]]
    again: str = ""

    @property
    def offset(self) -> int:
        """Of the first record."""
        return self.records[0][0]

    @property
    def record(self) -> T:
        """The first record."""
        return self.records[0][1]


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition from first to last, both included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RefusedAck:
    """An ack that changed nothing, and why."""

    span: Span
    reason: SuiteError


@dataclass(frozen=True, slots=True)
class Buffer:
    """How much of a partition is fetched ahead; at half of it fetching goes on."""

    records: int
    bytes: int = 1 << 22


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a partition is.

    Attributes:
        pending: Records offered and not acked.
        next_offset: The first offset never offered.
    """

    pending: int
    lowest_unacked: int
    next_offset: int
