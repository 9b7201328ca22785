"""Acks of containers' events, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.common.model.user_events import Channel, Status
from services.gateway.events.delivery.changes import Final
from services.gateway.events.model import EventKey
from services.gen.dexorder.events.v1 import user_events_pb2 as pb


class Ack(NamedTuple):
    """State of an event, as the given EventAck; ``via`` only where it was delivered."""

    event_id: str
    status: Status
    error: str = ""
    via: Channel | None = None

    def proto(self) -> pb.EventAck:
        """Return the protobuf message. Most acks only say QUEUED, and each field that is set costs time."""
        ack = pb.EventAck(event_id=self.event_id, status=self.status)  # type: ignore[arg-type]  # the same numbers
        if self.error:
            ack.error_message = self.error
        if self.via is not None:
            ack.delivered_via = self.via  # type: ignore[assignment]
        return ack


def final_ack(final: Final) -> Ack:
    """Return the ack of an event that is final."""
    return Ack(final.key.event_id, final.status, final.error, final.via)


AckCallback = Callable[[Ack], None]
"""Callback of a gRPC publisher; called in the event loop."""
ReplyTo = bytes | AckCallback
"""Sender of a copy of an event: a connection's routing id, or a gRPC publisher."""


class PendingAcks:
    """Senders that wait for the final ack of an event: for each event, whoever sent a copy last."""

    def __init__(self) -> None:
        self._reply_to: dict[EventKey, ReplyTo] = {}

    def add(self, key: EventKey, reply_to: ReplyTo | None) -> None:
        """Replace who waits for an event. None changes nothing: port 5570 has no acks."""
        if reply_to is not None:
            self._reply_to[key] = reply_to

    def pop(self, key: EventKey) -> ReplyTo | None:
        """Remove and return who waits for an event."""
        return self._reply_to.pop(key, None)
