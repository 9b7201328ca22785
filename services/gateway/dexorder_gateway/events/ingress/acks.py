"""Acks of containers' events."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import Final
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb


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
