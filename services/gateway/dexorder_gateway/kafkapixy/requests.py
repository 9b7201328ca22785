"""Requests of callers: checks of the names they give and of their rights, and a record as they get it. Pure."""

from __future__ import annotations

from typing import Protocol

from dexorder_common.kafka.client_options import WithHeaders
from dexorder_common.model.datasets import topics
from dexorder_common.model.errors import InvalidRequest, NotAllowed
from dexorder_common.rpc.identity import Caller, Role
from dexorder_gateway.kafkapixy.cluster_config import TOPIC_NAME

MAX_GROUP_CHARACTERS = 8_000
"""Kafka's protocol takes 32,767 bytes, at most four per character; librdkafka does not check."""

PIPELINE_TOPICS = frozenset(topics())
"""Topics whose records become rows of the tables, in whichever cluster."""
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
    if len(name) > MAX_GROUP_CHARACTERS:
        raise InvalidRequest(f"group {name[:300]!r}... is longer than {MAX_GROUP_CHARACTERS} characters")
    return name


def check_produce(caller: Caller | None, topic: str) -> None:
    """Raise NotAllowed unless the caller may produce to a topic; None as the caller means that identity is off."""
    if caller is not None and topic in PIPELINE_TOPICS and caller.role not in PRODUCERS:
        raise NotAllowed(
            f"client_id {caller.client_id!r} has the role {caller.role}; "
            f"topic {topic} takes records of {' or '.join(sorted(PRODUCERS))}"
        )


class UnknownTopic(InvalidRequest):
    """The topic does not exist; an invalid request in Kafka-Pixy's gRPC API, not found in its HTTP API."""


class KafkaRecord(WithHeaders, Protocol):
    """A record of Kafka's client; its fields are read only when it is answered. Its length is the value's."""

    def __len__(self) -> int: ...

    def key(self) -> bytes | None:
        """Return the key, or None."""

    def value(self) -> bytes | None:
        """Return the value; None for a null value."""

    def timestamp(self) -> tuple[int, int]:
        """Return its type, 0 for none, and milliseconds since the epoch."""
