"""User events as the gateway and a container's publisher both know them: priorities, channels, statuses, limits. Pure.

The enumerations have the numbers of ``user_events.proto``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import orjson

MAX_ID_CHARACTERS = 256
"""Length limit of event_id and user_id."""
MAX_PAYLOAD_DEPTH = 32
"""Limit of nested objects and arrays in a payload."""
MAX_CHANNELS = 64
"""Limit of entries in an event's list of channels, known or not."""


class Priority(IntEnum):
    """Effort that delivery takes. The gateway treats an unknown priority as CRITICAL."""

    INFORMATIONAL = 0
    NORMAL = 1
    CRITICAL = 2


class Channel(IntEnum):
    """Channel to a user."""

    ACTIVE_SESSION = 0
    WEB = 1
    TELEGRAM = 2
    EMAIL = 3
    PUSH = 4
    DISCORD = 5
    SLACK = 6
    MATRIX = 7


SESSION_CHANNELS = frozenset({Channel.ACTIVE_SESSION, Channel.WEB})
"""Both stand for any open session of the user, WebSocket or gRPC; a delivery there is reported as WEB."""


class Status(IntEnum):
    """State of an event in an EventAck."""

    DELIVERED = 0
    QUEUED = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Preference:
    """One entry in an event's list of channels."""

    channel: Channel
    only_if_active: bool = False


def id_problem(name: str, value: str) -> str:
    """Return why a value can't be the id ``name``; empty if it can."""
    if not value:
        return f"{name} is missing"
    if len(value) > MAX_ID_CHARACTERS:
        return f"{name} is longer than {MAX_ID_CHARACTERS} characters"
    if not value.isprintable():  # a control character, a line break, half of a surrogate pair
        return f"{name} has the unprintable character {next(each for each in value if not each.isprintable())!a}"
    return ""


def payload_problem(payload: bytes) -> str:
    """Return why a payload is not JSON that all parsers read alike; empty if it is.

    Such JSON is UTF-8 without NaN, numbers beyond the range of a double or duplicate keys in an object, and at most
    ``MAX_PAYLOAD_DEPTH`` levels deep. The text does not quote the payload.
    """
    try:
        parsed = orjson.loads(payload)  # refuses NaN, lone surrogates and bad UTF-8; accepts duplicate keys
        # Each key has a colon: without more colons than top-level keys, all keys differ.
        if payload.count(b":") > (len(parsed) if isinstance(parsed, dict) else 0):
            _UNIQUE_KEYS.decode(payload.decode())
    except _DuplicateKeyError:
        return "has a duplicate key in one object"
    except RecursionError:
        return _TOO_DEEP
    except ValueError as error:
        return f"is not JSON: {error}"
    brackets = payload.count(b"{") + payload.count(b"[")
    return "" if brackets <= MAX_PAYLOAD_DEPTH or _is_shallow(parsed) else _TOO_DEEP


_TOO_DEEP = f"is nested deeper than {MAX_PAYLOAD_DEPTH} levels"


class _DuplicateKeyError(ValueError):
    pass


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKeyError
    return found


_UNIQUE_KEYS = json.JSONDecoder(object_pairs_hook=_refuse_duplicates)


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_PAYLOAD_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return not level
