"""Construction of events, with the checks that the gateway makes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from dexorder.errors import EventRefused
from dexorder_common.model.user_events import (
    MAX_PAYLOAD_DEPTH,
    Channel,
    Preference,
    Priority,
    id_problem,
    payload_problem,
)
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

Payload = Mapping[str, Any] | Message
ChannelChoice = Channel | Preference | str
_MAX_TIMESTAMP_MS = 2**63 - 1


def build_event(
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
    """Build an event that the gateway will accept.

    Args:
        event_type: Number or name of an `EventType`; an unknown number is accepted.
        payload: Values that JSON can represent, or a payload message of ``user_events.proto``.
        channels: Names, channels or preferences in the order to try them; empty for the user's own order.

    Raises:
        EventRefused: The gateway would refuse the event, or it can't be serialized.
    """
    if problem := id_problem("user_id", user_id) or id_problem("event_id", event_id):
        raise EventRefused(problem)
    if not 0 <= timestamp_ms <= _MAX_TIMESTAMP_MS:
        raise EventRefused(f"timestamp_ms {timestamp_ms} is not a time in milliseconds since the epoch")
    body = payload_json(payload)
    if len(body) > max_payload_bytes:
        raise EventRefused(f"payload has {len(body):,} bytes; at most {max_payload_bytes:,} are allowed")
    preferences = [each if isinstance(each, Preference) else Preference(_member(Channel, each)) for each in channels]
    return pb.UserEvent(
        user_id=user_id,
        event_id=event_id,
        timestamp=timestamp_ms,
        event_type=_event_type(event_type),
        payload=body,
        delivery=pb.DeliverySpec(
            priority=int(_member(Priority, priority)),  # type: ignore[arg-type]
            channels=[
                pb.ChannelPreference(channel=int(each.channel), only_if_active=each.only_if_active)  # type: ignore[arg-type]
                for each in preferences
            ],
        ),
    )


def payload_json(payload: Payload) -> bytes:
    """Return the payload as compact JSON.

    Raises:
        EventRefused: The payload can't be represented in JSON, or the gateway would refuse it.
    """
    if isinstance(payload, Message):
        payload = MessageToDict(payload, preserving_proto_field_name=True)
    if not isinstance(payload, Mapping):
        raise EventRefused(f"payload is a {type(payload).__name__}; a dict or a payload message is accepted")
    try:
        plain = _with_text_keys(payload)
        body = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise EventRefused(f"payload is nested deeper than {MAX_PAYLOAD_DEPTH} levels") from None
    except (TypeError, ValueError) as error:
        raise EventRefused(f"payload can't be converted to JSON: {error}") from None
    if problem := payload_problem(body):
        raise EventRefused(f"payload {problem}")
    return body


def _with_text_keys(value: Any) -> Any:
    """Copy mappings and sequences; json would turn other keys into text, and two of them into the same one."""
    if isinstance(value, list | tuple):
        return [_with_text_keys(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} is not text")
    return {key: _with_text_keys(each) for key, each in value.items()}


def _event_type(value: int | str) -> Any:
    if isinstance(value, str):
        try:
            return pb.EventType.Value(value)
        except ValueError:
            raise EventRefused(f"event_type {value!r} is not one of {', '.join(pb.EventType.keys())}") from None
    if not 0 <= value < 2**31:
        raise EventRefused(f"event_type {value} is out of range")
    return value


def _member(kind: Any, value: Any) -> Any:
    try:
        return kind[value] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        raise EventRefused(f"{kind.__name__.lower()} {value!r} is not one of {', '.join(kind.__members__)}") from None
