"""What containers are told of their events, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.gateway.events.delivery.changes import Final
from services.gateway.events.model import Channel, EventKey, Status
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


Answerer = Callable[[Ack], None]
"""A gRPC publisher; called in the event loop."""
Asker = bytes | Answerer
"""Who sent a copy of an event: a connection by its routing id, or a gRPC publisher."""


class Askers:
    """Who waits for the end of an event: whoever last sent a copy of it."""

    def __init__(self) -> None:
        self._asker: dict[EventKey, Asker] = {}

    def wait(self, key: EventKey, asker: Asker | None) -> None:
        """This one, and no longer the one before. None asks for nothing, as on port 5570."""
        if asker is not None:
            self._asker[key] = asker

    def done(self, key: EventKey) -> Asker | None:
        """Who is to be told now; nobody any more afterwards."""
        return self._asker.pop(key, None)
