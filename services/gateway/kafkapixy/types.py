"""Values that a group's reader and its callers exchange, and checks of the names that callers give. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol

from services.common.kafka.client_options import WithHeaders
from services.common.model.errors import InvalidRequest, SuiteError
from services.gateway.kafkapixy.cluster_config import TOPIC_NAME
from services.gateway.kafkapixy.pending_runs import UNARY, Amount, T

MAX_GROUP_CHARACTERS = 8_000
"""Kafka's protocol takes 32,767 bytes, at most four per character; librdkafka does not check."""


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
    if len(name) > MAX_GROUP_CHARACTERS:
        raise InvalidRequest(f"group {name[:300]!r}... is longer than {MAX_GROUP_CHARACTERS} characters")
    return name


class UnknownTopic(InvalidRequest):
    """The topic does not exist; an invalid request in Kafka-Pixy's gRPC API, not found in its HTTP API."""


class NotAssigned(SuiteError):
    """The partition is read by another member of the group, or by none."""


class Record(WithHeaders, Protocol):
    """A record of Kafka's client; its fields are read only when it is answered. Its length is that of its value."""

    def __len__(self) -> int: ...

    def key(self) -> bytes | None:
        """Return the key; None if it has none."""

    def value(self) -> bytes | None:
        """Return the value; None for a null value."""

    def timestamp(self) -> tuple[int, int]:
        """Return its type, 0 for none, and milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Amount that a caller takes at once; the default is a unary call's one record.

    Attributes:
        records: At most this many.
        bytes: New records are added until they have this many bytes; a single larger one is taken.
        max_unacked: A stream with this much unacked gets nothing new; a unary caller is limited by the partition's
            ``max_pending``.
    """

    caller: int = UNARY
    records: int = 1
    bytes: int = 1 << 62
    max_unacked: Amount | None = None


class Delivery(NamedTuple, Generic[T]):
    """Records of a partition on their way to a caller.

    Attributes:
        records: Offset and record, at least one, in order; exactly one for a unary call.
        redelivery: ``timeout`` or ``given_back`` if they were delivered before; else empty.
    """

    partition: int
    records: list[tuple[int, T]]
    redelivery: str = ""

    @property
    def offset(self) -> int:
        """Offset of the first record."""
        return self.records[0][0]


Deliveries = list[Delivery[Record]]


class Caller(Protocol):
    """Caller that waits for records; used on the event loop."""

    @property
    def done(self) -> bool:
        """True if it no longer waits."""

    def demand(self) -> Demand:
        """Return what it would take."""

    def give(self, deliveries: Deliveries) -> None:
        """Take the records; it no longer waits."""


class Stream(Caller, Protocol):
    """Caller that stays."""

    def stop(self, error: SuiteError) -> None:
        """End: nothing more is delivered and no ack is taken."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition from first to last, both included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RefusedAck:
    """An ack that changed nothing, and its error."""

    span: Span
    reason: SuiteError


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a group in a partition; ``pending`` records are delivered and not acked."""

    pending: int
    lowest_unacked: int
    next_offset: int  # never delivered
