"""What sessions get, serialized at most once for each kind of client however many sessions get it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Protocol

import orjson
from google.protobuf import json_format

from services.gateway.events.changes import Show
from services.gateway.events.model import Event, EventKey, Message, Priority
from services.gateway.events.records import Informed, Replay
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import user_events_pb2 as given

Render = Callable[[Event], Message]
_TYPE_NAMES: dict[int, str | int] = {value: name for name, value in given.EventType.items()}
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
        """As SubscribeResponse in protobuf's JSON, UTF-8; zeros and empty texts are spelled out."""


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
        return proto_json(self._answer)


class Shown:
    """An event. Rendered and serialized when the first session asks for it."""

    __slots__ = ("_event", "_render", "_rendered", "_settled", "_text", "_wire", "sequence")

    def __init__(self, event: Event, render: Render, *, sequence: int = 0, settled: bool = False) -> None:
        self.sequence = sequence
        self._event, self._render, self._settled = event, render, settled
        self._rendered: Message | None = None
        self._wire = self._text = b""

    @staticmethod
    def of(show: Show, render: Render) -> Shown:
        """An event that is kept."""
        return Shown(show.event, render, sequence=show.sequence, settled=show.settled)

    @staticmethod
    def informed(informed: Informed, render: Render) -> Shown:
        """An event of the fast path."""
        return Shown(_event(informed), render)

    @property
    def wire(self) -> bytes:
        """See `Item`."""
        if not self._wire:
            message = self._message()
            self._wire = pb.SubscribeResponse(event=pb.SessionEvent(
                sequence=self.sequence, container=self._event.key.container, event=_without_channels(self._event),
                title=message.title, body=message.body, settled=self._settled,
            )).SerializeToString()  # fmt: skip
        return self._wire

    @property
    def text(self) -> bytes:
        """See `Item`. Put together by hand, in a tenth of the time that json_format takes."""
        if not self._text:
            message, event = self._message(), self._event
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

    def _message(self) -> Message:
        if self._rendered is None:
            self._rendered = self._render(self._event)
        return self._rendered


def proto_json(message: pb.SubscribeResponse | pb.ListEventsResponse) -> bytes:
    """A message in protobuf's JSON, with zeros and empty texts spelled out."""
    return orjson.dumps(json_format.MessageToDict(message, always_print_fields_with_no_presence=True))


def _without_channels(event: Event) -> given.UserEvent:
    return given.UserEvent(
        user_id=event.user_id, event_id=event.key.event_id, timestamp=event.timestamp_ms,
        event_type=event.event_type, payload=event.payload,  # type: ignore[arg-type]  # known or not
        delivery=given.DeliverySpec(priority=given.Priority.Value(event.priority.name)),
    )  # fmt: skip


def _event(informed: Informed) -> Event:
    event = given.UserEvent.FromString(informed.body)
    return Event(
        key=EventKey(informed.container, event.event_id), user_id=event.user_id, timestamp_ms=event.timestamp,
        event_type=event.event_type, payload=event.payload,
        priority=_PRIORITIES.get(event.delivery.priority, Priority.CRITICAL), channels=(), body=informed.body,
    )  # fmt: skip
