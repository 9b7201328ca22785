"""Frames that sessions receive. Each is serialized at most once per kind of client, for all sessions.

A serialized protobuf message is the concatenation of its fields in any order. A field with a message is a head (number
and length) and that message's bytes, so sessions receive an event as the bytes that its container sent.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
from google.protobuf import json_format

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.delivery.changes import SessionEvent
from dexorder_gateway.events.event_codec import for_sessions
from dexorder_gateway.events.model import Event, EventKey, EventMessage
from dexorder_gateway.events.store.event_log import Replay
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given

Render = Callable[[Event], EventMessage]
_TYPES, _PRIORITIES, _CHANNELS = (
    {number: name for name, number in kind.items()} for kind in (given.EventType, given.Priority, given.ChannelType)
)
_SINGLE, _REPEATED = (pb.WatchEventsResponse.DESCRIPTOR.fields_by_name[name].number for name in ("event", "events"))
_EVENT, _TITLE, _BODY = (pb.SessionEvent.DESCRIPTOR.fields_by_name[name].number for name in ("event", "title", "body"))
_MAX_ANSWER_BYTES = 1 << 20
_LENGTH_DELIMITED = 2
"""Wire type of a field with a message, a string or bytes."""


class OpenedFrame:
    """First frame of every session, and answer to a new token.

    Attributes:
        place: Cursor after which events follow.
    """

    sequence = size = 0

    def __init__(self, epoch: str, sequence: int, expires_ns: int, *, reset: bool = False) -> None:
        self.place = Cursor(epoch, sequence)
        opened = pb.Opened(cursor=pb.Cursor(epoch=epoch, sequence=sequence), expires_ms=expires_ns // 1_000_000)
        self._answer = pb.WatchEventsResponse(reset=opened) if reset else pb.WatchEventsResponse(opened=opened)

    @staticmethod
    def of(replay: Replay, expires_ns: int) -> OpenedFrame:
        """Return the first frame of a session with this replay."""
        return OpenedFrame(replay.epoch, replay.sequence, expires_ns, reset=replay.reset)

    @property
    def wire(self) -> bytes:
        """Serialized WatchEventsResponse."""
        return self._answer.SerializeToString()

    @property
    def text(self) -> bytes:
        """WatchEventsResponse without `events` in protobuf's JSON, UTF-8; zeros and empty strings are included."""
        return proto_json(self._answer, without="events")

    @property
    def part(self) -> bytes:
        """Serialized WatchEventsResponse with this frame alone in `events`; empty for this frame without events."""
        return b""


@dataclass(slots=True, eq=False, repr=False)
class EventFrame:
    """An event, rendered and serialized when the first session needs it.

    Attributes:
        body: UserEvent for sessions, see ``event_codec.for_sessions``; they receive these bytes unchanged.
        event: The same event if it has been parsed.
        sequence: Place in the log; 0 for a transient event.
    """

    container: str
    body: bytes
    render: Render
    event: Event | None = None
    sequence: int = 0
    settled: bool = False
    _message: EventMessage | None = field(default=None, init=False)
    _wire: bytes = field(default=b"", init=False)
    _text: bytes = field(default=b"", init=False)
    _part: bytes = field(default=b"", init=False)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.body)

    @staticmethod
    def stored(stored: SessionEvent, render: Render) -> EventFrame:
        """Return the frame of an event in the log."""
        event = stored.event
        body = for_sessions(event.body, event.payload)
        return EventFrame(event.key.container, body, render, event, stored.sequence, stored.settled)

    @property
    def wire(self) -> bytes:
        """See `OpenedFrame`."""
        if not self._wire:
            message = self._rendered(given.UserEvent.FromString(self.body))
            texts = serialized_field(_TITLE, message.title.encode()) + serialized_field(_BODY, message.body.encode())
            place = _place(self.sequence, self.container, self.settled)
            self._wire = serialized_field(_SINGLE, place + serialized_field(_EVENT, self.body) + texts)
        return self._wire

    @property
    def part(self) -> bytes:
        """See `OpenedFrame`."""
        if not self._part:
            self._part = _prefix(self.sequence, self.container, self.settled, len(self.body)) + self.body
        return self._part

    @property
    def text(self) -> bytes:
        """See `OpenedFrame`. Built by hand in a tenth of the time that json_format takes."""
        if not self._text:
            event = given.UserEvent.FromString(self.body)
            message = self._rendered(event)
            shown = {
                "sequence": str(self.sequence),
                "container": self.container,
                "event": _json_event(event),
                "title": message.title,
                "body": message.body,
                "settled": self.settled,
            }
            self._text = orjson.dumps({"event": shown})
        return self._text

    def _rendered(self, event: given.UserEvent) -> EventMessage:
        if self._message is None:
            self._message = self.render(self.event or _event(self.container, event))
        return self._message


SessionFrame = OpenedFrame | EventFrame


@lru_cache(maxsize=4096)  # few containers and sizes, and events of the fast path carry no sequence
def _prefix(sequence: int, container: str, settled: bool, size: int) -> bytes:
    """Return the bytes before an event of this size in an entry of WatchEventsResponse.events."""
    place = _place(sequence, container, settled)
    head = field_head(_EVENT, size)
    return field_head(_REPEATED, len(place) + len(head) + size) + place + head


def _place(sequence: int, container: str, settled: bool) -> bytes:
    """Return a serialized SessionEvent without its event and texts."""
    return pb.SessionEvent(sequence=sequence, container=container, settled=settled).SerializeToString()


def _json_event(event: given.UserEvent) -> dict[str, Any]:
    """Return an event as protobuf's JSON mapping has it."""
    event_type, priority = event.event_type, event.delivery.priority
    return {
        "userId": event.user_id,
        "eventId": event.event_id,
        "timestamp": str(event.timestamp),
        "eventType": _TYPES.get(event_type, event_type),
        "payload": b64encode(event.payload).decode(),
        "delivery": {
            "priority": _PRIORITIES.get(priority, priority),
            "channels": [
                {"channel": _CHANNELS.get(each.channel, each.channel), "onlyIfActive": each.only_if_active}
                for each in event.delivery.channels
            ],
        },
    }


def join_frames(frames: Iterable[SessionFrame], max_events: int) -> Iterator[bytes]:
    """Yield serialized WatchEventsResponses with at most ``max_events`` events each.

    The serialization of a repeated field is the concatenation of its entries.
    """
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        part = frame.part
        if parts and (not part or len(parts) >= max_events or size + len(part) > _MAX_ANSWER_BYTES):
            yield b"".join(parts)
            parts, size = [], 0
        if part:
            parts.append(part)
            size += len(part)
        else:
            yield frame.wire
    if parts:
        yield b"".join(parts)


def proto_json(message: pb.WatchEventsResponse | pb.ListEventsResponse, *, without: str = "") -> bytes:
    """Return a message in protobuf's JSON with zeros and empty strings, without one field."""
    fields = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    fields.pop(without, None)
    return orjson.dumps(fields)


def _event(container: str, event: given.UserEvent) -> Event:
    """Return an event for rendering only: its channels and body are left out."""
    return Event(
        key=EventKey(container, event.event_id),
        user_id=event.user_id,
        timestamp_ms=event.timestamp,
        event_type=event.event_type,
        payload=event.payload,
        priority=Priority(event.delivery.priority),
        channels=(),
        body=b"",
    )


def serialized_field(number: int, content: bytes) -> bytes:
    """Return a serialized field with a message, a string or bytes."""
    return field_head(number, len(content)) + content


@lru_cache(maxsize=4096)  # there are few fields and sizes
def field_head(number: int, size: int) -> bytes:
    """Return the head of a field with content of this size."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
    """Return a varint: seven bits a byte, lowest first; all but the last with the eighth bit set."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))
