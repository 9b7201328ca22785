"""Names that callers give: what cannot be one is refused before librdkafka sees it. Pure."""

from __future__ import annotations

from services.common.model.errors import InvalidRequest
from services.gateway.kafkapixy.cluster_config import TOPIC_NAME

MAX_GROUP_CHARACTERS = 8_000
"""Kafka's protocol takes 32,767 bytes, of which a character has four at most; librdkafka does not check."""


def topic_name(name: str) -> str:
    """The name, if it can be a topic's.

    Raises:
        InvalidRequest: It can't.
    """
    if not TOPIC_NAME.match(name):
        raise InvalidRequest(f"topic {name[:300]!r} is not a topic's name")
    return name


def group_name(name: str) -> str:
    """The name, if it can be a group's.

    Raises:
        InvalidRequest: It can't.
    """
    if not name:
        raise InvalidRequest("group '' is empty")
    if "\0" in name:  # librdkafka would take what is before it, another group
        raise InvalidRequest(f"group {name[:300]!r} has a NUL")
    if len(name) > MAX_GROUP_CHARACTERS:
        raise InvalidRequest(f"group {name[:300]!r}... is longer than {MAX_GROUP_CHARACTERS} characters")
    return name
