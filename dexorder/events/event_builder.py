"""Events as they go out, checked as the gateway will check them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from dexorder.events.errors import EventRefused
from services.gateway.events.model import Channel, Preference, Priority
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

Payload = Mapping[str, Any] | Message
ChannelChoice = Channel | Preference | str
_MOST_DEPTH = 32
_MOST_ID_CHARACTERS = 256
_LARGEST = float.fromhex("0x1.fffffffffffffp+1023")
_MOST_MS = 2**63


def compose(
    user_id: str,
    event_type: int | str,
    payload: Payload,
    priority: Priority | str,
    channels: Sequence[ChannelChoice],
    *,
    event_id: str,
    timestamp_ms: int,
    max_payload_bytes: int,
) -> pb.UserEvent:
    """The event, ready to be sent.

    Args:
        event_type: A number or name of `EventType`; a number that we do not know is fine.
        payload: What JSON can say, or one of the payload messages of ``user_events.proto``.
        channels: Names, channels or preferences in the order to try them; none takes the user's own order.

    Raises:
        EventRefused: The gateway would refuse it, or nobody could send it.
    """
    _check_id("user_id", user_id)
    _check_id("event_id", event_id)
    if not 0 <= timestamp_ms < _MOST_MS:
        raise EventRefused(f"timestamp_ms {timestamp_ms} is no time in milliseconds since the epoch")
    body = payload_json(payload)
    if len(body) > max_payload_bytes:
        raise EventRefused(f"the payload has {len(body):,} bytes and may have {max_payload_bytes:,}")
    ways = [_way(each) for each in channels]
    return pb.UserEvent(
        user_id=user_id,
        event_id=event_id,
        timestamp=timestamp_ms,
        event_type=_event_type(event_type),
        payload=body,
        delivery=pb.DeliverySpec(
            priority=int(_named(Priority, "priority", priority)),  # type: ignore[arg-type]
            channels=[
                pb.ChannelPreference(channel=int(way.channel), only_if_active=way.only_if_active)  # type: ignore[arg-type]
                for way in ways
            ],
        ),
    )


def payload_json(payload: Payload) -> bytes:
    """The payload as compact JSON.

    Raises:
        EventRefused: JSON has no word for something in it, or it is nested too deeply.
    """
    if isinstance(payload, Message):
        payload = MessageToDict(payload, preserving_proto_field_name=True)
    if not isinstance(payload, Mapping):
        raise EventRefused(f"the payload is a {type(payload).__name__} and must be a dict")
    plain = _plain(payload, 1)
    try:
        return json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise EventRefused(f"the payload can't be JSON: {error}") from None


def _plain(value: Any, depth: int) -> Any:
    """Refuses what would be other JSON than was meant: keys that are no text (two may become one), and deep nests."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise EventRefused("the payload can't be JSON: a number is beyond what a double can hold")
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > _MOST_DEPTH:
        raise EventRefused(f"the payload is nested deeper than {_MOST_DEPTH}")
    if not isinstance(value, Mapping):
        return [_plain(each, depth + 1) for each in value]
    for key in value:
        if not isinstance(key, str):
            raise EventRefused(f"the payload can't be JSON: the key {key!r} is no text")
    return {key: _plain(each, depth + 1) for key, each in value.items()}


def _check_id(name: str, value: str) -> None:
    if not value or len(value) > _MOST_ID_CHARACTERS or "\x00" in value:
        raise EventRefused(f"{name} {value[:40]!r} is empty, has a NUL or more than {_MOST_ID_CHARACTERS} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise EventRefused(f"{name} {value!r} can't be UTF-8") from None


def _event_type(value: int | str) -> Any:
    if isinstance(value, str):
        try:
            return pb.EventType.Value(value)
        except ValueError:
            raise EventRefused(f"event_type {value!r} is none of {', '.join(pb.EventType.keys())}") from None
    if not 0 <= value < 2**31:
        raise EventRefused(f"event_type {value} is out of range")
    return value


def _way(given: ChannelChoice) -> Preference:
    return given if isinstance(given, Preference) else Preference(_named(Channel, "channel", given))


def _named(kind: Any, name: str, value: Any) -> Any:
    try:
        return kind[value] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        raise EventRefused(f"{name} {value!r} is none of {', '.join(kind.__members__)}") from None
