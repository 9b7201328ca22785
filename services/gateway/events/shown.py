"""What sessions get, serialized at most once for each kind of client however many sessions get it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import orjson
from google.protobuf import json_format

from services.gateway.events.changes import Show
from services.gateway.events.checking import for_sessions
from services.gateway.events.model import Event, EventKey, Message, Priority
from services.gateway.events.records import Informed, Replay
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import user_events_pb2 as given

Render = Callable[[Event], Message]
_TYPE_NAMES: dict[int, str | int] = {value: name for name, value in given.EventType.items()}
_LARGEST_ANSWER_BYTES = 1 << 20
_PRIORITIES = {int(priority): priority for priority in Priority}


class Item(Protocol):
    """One thing for a session.

    Attributes:
        sequence: Its place in the log; 0 for what has none.
    """

    @property
    def sequence(self) -> int:
        """Its place in the log; 0 for what has none."""

    @property
    def wire(self) -> bytes:
        """As SubscribeResponse, serialized."""

    @property
    def text(self) -> bytes:
        """As SubscribeResponse without `events` in protobuf's JSON, UTF-8; zeros and empty texts are spelled out."""

    @property
    def part(self) -> bytes:
        """A SubscribeResponse with this as its only one of `events`, serialized; empty for what is no event."""


class Opening:
    """The first item of every session, and of one that proved itself again.

    Attributes:
        place: The epoch, and the sequence after which events follow.
    """

    sequence = 0

    def __init__(self, epoch: str, sequence: int, expires_ns: int, *, reset: bool = False) -> None:
        self.place = epoch, sequence
        opened = pb.Opened(cursor=pb.Cursor(epoch=epoch, sequence=sequence), expires_at=expires_ns // 1_000_000)
        self._answer = pb.SubscribeResponse(reset=opened) if reset else pb.SubscribeResponse(opened=opened)

    @staticmethod
    def of(replay: Replay, expires_ns: int) -> Opening:
        """What a session with this replay begins with."""
        first = replay.events[0].sequence - 1 if replay.events else replay.sequence
        # A cursor says that all before it was received, which must not be said of what only follows.
        return Opening(replay.epoch, min(first, replay.sequence), expires_ns, reset=replay.reset)

    @property
    def wire(self) -> bytes:
        """See `Item`."""
        return self._answer.SerializeToString()

    @property
    def text(self) -> bytes:
        """See `Item`."""
        return proto_json(self._answer, without="events")

    @property
    def part(self) -> bytes:
        """See `Item`."""
        return b""


class Shown:
    """An event. Rendered and serialized when the first session asks for it."""

    __slots__ = (
        "_container", "_event", "_given", "_part", "_render", "_rendered", "_settled", "_text", "_wire", "sequence",
    )  # fmt: skip

    def __init__(
        self, container: str, event: Event | given.UserEvent, render: Render, *, sequence: int = 0,
        settled: bool = False,
    ) -> None:  # fmt: skip
        self.sequence = sequence
        self._container, self._render, self._settled = container, render, settled
        self._event: Event | None = event if isinstance(event, Event) else None
        self._given: given.UserEvent | None = None if isinstance(event, Event) else event
        self._rendered: Message | None = None
        self._wire = self._text = self._part = b""

    @staticmethod
    def of(show: Show, render: Render) -> Shown:
        """An event that is kept."""
        return Shown(show.event.key.container, show.event, render, sequence=show.sequence, settled=show.settled)

    @staticmethod
    def informed(informed: Informed, render: Render) -> Shown:
        """An event of the fast path."""
        return Shown(informed.container, informed.event, render)

    @property
    def wire(self) -> bytes:
        """See `Item`."""
        if not self._wire:
            self._wire = pb.SubscribeResponse(event=self._told()).SerializeToString()
        return self._wire

    @property
    def part(self) -> bytes:
        """See `Item`."""
        if not self._part:
            self._part = pb.SubscribeResponse(events=[self._untold()]).SerializeToString()
        return self._part

    @property
    def text(self) -> bytes:
        """See `Item`. Put together by hand, in a tenth of the time that json_format takes."""
        if not self._text:
            message, event = self._message(), self._read()
            self._text = orjson.dumps({"event": {
                "sequence": str(self.sequence), "container": event.key.container,
                "event": {
                    "userId": event.user_id, "eventId": event.key.event_id, "timestamp": str(event.timestamp_ms),
                    "eventType": _TYPE_NAMES.get(event.event_type, event.event_type),
                    "payload": b64encode(event.payload).decode(),
                    "delivery": {"priority": event.priority.name, "channels": []},
                },
                "title": message.title, "body": message.body, "settled": self._settled,
            }})  # fmt: skip
        return self._text

    def _untold(self) -> pb.SessionEvent:
        if self._given is None:
            self._given = for_sessions(self._read())
        return pb.SessionEvent(
            sequence=self.sequence, container=self._container, event=self._given, settled=self._settled
        )

    def _told(self) -> pb.SessionEvent:
        event, message = self._untold(), self._message()
        event.title, event.body = message.title, message.body
        return event

    def _message(self) -> Message:
        if self._rendered is None:
            self._rendered = self._render(self._read())
        return self._rendered

    def _read(self) -> Event:
        if self._event is None:
            assert self._given is not None
            self._event = _event(self._container, self._given)
        return self._event


def together(items: Iterable[Item], most_events: int) -> Iterator[bytes]:
    """Items as SubscribeResponses, serialized, with at most so many events in each.

    A serialized message with a repeated field is the serialized parts one after the other.
    """
    parts: list[bytes] = []
    size = 0
    for item in items:
        part = item.part
        if parts and (not part or len(parts) >= most_events or size + len(part) > _LARGEST_ANSWER_BYTES):
            yield b"".join(parts)
            parts, size = [], 0
        if part:
            parts.append(part)
            size += len(part)
        else:
            yield item.wire
    if parts:
        yield b"".join(parts)


def proto_json(message: pb.SubscribeResponse | pb.ListEventsResponse, *, without: str = "") -> bytes:
    """A message in protobuf's JSON, with zeros and empty texts spelled out, less one field."""
    said = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    said.pop(without, None)
    return orjson.dumps(said)


def _event(container: str, event: given.UserEvent) -> Event:
    return Event(
        key=EventKey(container, event.event_id), user_id=event.user_id, timestamp_ms=event.timestamp,
        event_type=event.event_type, payload=event.payload,
        priority=_PRIORITIES.get(event.delivery.priority, Priority.CRITICAL), channels=(),
        body=event.SerializeToString(),
    )  # fmt: skip
