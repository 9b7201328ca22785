"""What containers are told of their events, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.common.model.user_events import Channel, Status
from services.gateway.events.delivery.changes import Final
from services.gateway.events.model import EventKey
from services.gen.dexorder.events.v1 import user_events_pb2 as pb


class Ack(NamedTuple):
    """The state of an event, as the given EventAck; ``via`` only where it was delivered."""

    event_id: str
    status: Status
    error: str = ""
    via: Channel | None = None

    def proto(self) -> pb.EventAck:
        """For the wire. Most say no more than that it is queued, and each field set takes its time."""
        ack = pb.EventAck(event_id=self.event_id, status=self.status)  # type: ignore[arg-type]  # the same numbers
        if self.error:
            ack.error_message = self.error
        if self.via is not None:
            ack.delivered_via = self.via  # type: ignore[assignment]
        return ack


def final_ack(final: Final) -> Ack:
    """How an event ended."""
    return Ack(final.key.event_id, final.status, final.error, final.via)


AckCallback = Callable[[Ack], None]
"""A gRPC publisher; called in the event loop."""
ReplyTo = bytes | AckCallback
"""Who sent a copy of an event: a connection by its routing id, or a gRPC publisher."""


class PendingAcks:
    """Who waits for the end of an event: whoever last sent a copy of it."""

    def __init__(self) -> None:
        self._reply_to: dict[EventKey, ReplyTo] = {}

    def wait(self, key: EventKey, reply_to: ReplyTo | None) -> None:
        """This one, and no longer the one before. None asks for nothing, as on port 5570."""
        if reply_to is not None:
            self._reply_to[key] = reply_to

    def done(self, key: EventKey) -> ReplyTo | None:
        """Who is to be told now; nobody any more afterwards."""
        return self._reply_to.pop(key, None)
