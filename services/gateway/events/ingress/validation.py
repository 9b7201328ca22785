"""Events as containers send them, checked: what is not understood is refused in words, never guessed. Pure.

What a container leaves out parses as a zero that means something (ORDER_PLACED, INFORMATIONAL), so ids and delivery
must be there. An unknown event_type is kept, to be delivered as generic text; an unknown priority is CRITICAL; unknown
channels are left out, as are entries that are there twice. An empty payload is ``{}``: some types have nothing to say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from google.protobuf.message import DecodeError

from services.gateway.events.model import Channel, Event, EventKey, Preference, Priority
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

MOST_ID_CHARACTERS = 256
MOST_DEPTH = 32
MOST_CHANNELS = 64
"""Entries in an event's list of channels, known or not."""
_PRIORITIES = {int(priority): priority for priority in Priority}
_NO_PAYLOAD = b"{}"
_NO_PAYLOAD_FIELD = pb.UserEvent(payload=_NO_PAYLOAD).SerializeToString()
_PREFERENCES = {(int(channel), active): Preference(channel, active) for channel in Channel for active in (False, True)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that is not taken. ``kind`` is its class for the metrics, ``event_id`` empty if unknown."""

    event_id: str
    reason: str
    kind: str


def read_event(container: str, body: bytes) -> Event | Refusal:
    """An event of a container; its payload is not looked at yet, see ``payload_problem``.

    Args:
        container: Its name.
        body: UserEvent, serialized.
    """
    given = _parse(body)
    if isinstance(given, Refusal):
        return given
    if len(given.delivery.channels) > MOST_CHANNELS:
        return Refusal(given.event_id, f"more than {MOST_CHANNELS} channels", "channels")
    priority, channels = _delivery(given.delivery.SerializeToString())
    if channels is None:
        return Refusal(given.event_id, "no usable channel", "channels")
    return Event(
        EventKey(container, given.event_id),
        given.user_id,
        given.timestamp,
        given.event_type,
        given.payload or _NO_PAYLOAD,
        priority,
        channels,
        body,
    )


class Published(NamedTuple):
    """What the fast path has to know of an event. ``body`` is the UserEvent for sessions, see `for_sessions`."""

    event_id: str
    user_id: str
    priority: Priority
    payload: bytes
    body: bytes


def read_published(body: bytes) -> Published | Refusal:
    """An event of the fast path, whose channels do not matter; else as ``read_event``, in half the time."""
    given = _parse(body)
    if isinstance(given, Refusal):
        return given
    priority = _PRIORITIES.get(given.delivery.priority, Priority.CRITICAL)
    payload = given.payload or _NO_PAYLOAD
    return Published(given.event_id, given.user_id, priority, payload, for_sessions(body, payload))


def for_sessions(body: bytes, payload: bytes) -> bytes:
    """A UserEvent as sessions get it: the bytes that were sent, and a payload that is JSON where there was none.

    Args:
        payload: As it was read. Of a field that is there twice the last one counts: a real ``{}`` comes to no harm.
    """
    return body + _NO_PAYLOAD_FIELD if payload == _NO_PAYLOAD else body


def _parse(body: bytes) -> pb.UserEvent | Refusal:
    try:
        given = pb.UserEvent.FromString(body)
    except DecodeError:
        return Refusal("", "the event does not parse", "undecodable")
    event_id, user_id = given.event_id, given.user_id
    if not event_id or len(event_id) > MOST_ID_CHARACTERS or "\x00" in event_id:
        return Refusal(event_id[:MOST_ID_CHARACTERS], _bad_id("event_id", event_id), "event_id")
    if not user_id or len(user_id) > MOST_ID_CHARACTERS or "\x00" in user_id:
        return Refusal(event_id, _bad_id("user_id", user_id), "user_id")
    if not given.HasField("delivery"):
        return Refusal(event_id, "delivery is missing", "delivery")
    return given


def _bad_id(name: str, value: str) -> str:
    if not value:
        return f"{name} is missing"
    return f"{name} is longer than {MOST_ID_CHARACTERS} characters" if "\x00" not in value else f"{name} has a NUL"


@lru_cache(maxsize=1024)  # there are only some of them, and looking at each entry anew takes its time
def _delivery(serialized: bytes) -> tuple[Priority, tuple[Preference, ...] | None]:
    """Priority and channels of a DeliverySpec, each once; None where it names only unknown ones."""
    given = pb.DeliverySpec.FromString(serialized)
    known = (_PREFERENCES.get((each.channel, each.only_if_active)) for each in given.channels)
    channels = tuple(dict.fromkeys(each for each in known if each))
    priority = _PRIORITIES.get(given.priority, Priority.CRITICAL)
    return priority, None if given.channels and not channels else channels


def payload_problem(event: Event | Published, most_bytes: int) -> Refusal | None:
    """Why the payload can't be taken; None for one that can.

    It is JSON as everybody reads it: UTF-8, no NaN, no number beyond a double, no key twice in an object, at most
    ``MOST_DEPTH`` levels.
    """
    payload = event.payload
    if len(payload) > most_bytes:
        return Refusal(_event_id(event), "payload too large", "payload_size")
    if not _is_plain_json(payload):
        return Refusal(_event_id(event), "invalid payload", "payload")
    return None


def _event_id(event: Event | Published) -> str:
    return event.event_id if isinstance(event, Published) else event.key.event_id


def _is_plain_json(payload: bytes) -> bool:
    if payload == _NO_PAYLOAD:
        return True
    try:
        parsed = orjson.loads(payload)  # takes no NaN, no lone surrogate, no bad UTF-8; of a key twice, the last
        # Each key has a colon: where there are no more colons than keys, none is there twice.
        if payload.count(b":") > (len(parsed) if isinstance(parsed, dict) else 0):
            _KEYS_ONCE.decode(payload.decode())
    except (ValueError, RecursionError):
        return False
    return payload.count(b"{") + payload.count(b"[") <= MOST_DEPTH or _depth_is_fine(parsed)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is there twice")
    return made


_KEYS_ONCE = json.JSONDecoder(object_pairs_hook=_no_key_twice)


def _depth_is_fine(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return not any(True for _ in level)
