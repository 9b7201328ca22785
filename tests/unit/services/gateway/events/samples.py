"""UserEvents for tests, and messages of the channels' tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.event_codec import EventRefusal, read_event
from dexorder_gateway.events.model import Event, EventMessage
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

PREFERENCES = ((Channel.ACTIVE_SESSION, False), (Channel.TELEGRAM, False))


def user_event(
    event_id: str = "e1",
    user_id: str = "alice",
    priority: int = Priority.NORMAL,
    *,
    channels: Sequence[tuple[int, bool]] = PREFERENCES,
    payload: bytes = b'{"order_id": "o1"}',
    event_type: int = 1,
) -> pb.UserEvent:
    """Return a UserEvent as a container sends it."""
    return pb.UserEvent(
        user_id=user_id,
        event_id=event_id,
        timestamp=1_700_000_000_000,
        payload=payload,
        event_type=event_type,  # type: ignore[arg-type]  # known or not
        delivery=pb.DeliverySpec(
            priority=priority,  # type: ignore[arg-type]
            channels=[pb.ChannelPreference(channel=c, only_if_active=a) for c, a in channels],  # type: ignore[arg-type]
        ),
    )


def body(event_id: str = "e1", user_id: str = "alice", priority: int = Priority.NORMAL, **others: object) -> bytes:
    """Return a serialized UserEvent."""
    return user_event(event_id, user_id, priority, **others).SerializeToString()  # type: ignore[arg-type]


def event(event_id: str = "e1", user_id: str = "alice", priority: int = Priority.NORMAL, **others: object) -> Event:
    """Return a validated event of the container ``c``."""
    read = read_event("c", body(event_id, user_id, priority, **others))
    assert not isinstance(read, EventRefusal)
    return read


def render(event: Event) -> EventMessage:
    """Return a message for the event."""
    return EventMessage(event.key.event_id, event.key.event_id, "", event.priority, event.timestamp_ms)


MESSAGE = EventMessage("0123456789abcdef0123456789abcdef", "Order filled", "Market: BTC/USDT", Priority.CRITICAL, 1)
PATIENCE_S, HASTE_S = 30.0, 1.0
"""Time limit of a send: more than a busy machine needs, and the limit where a provider is silent, see `SILENCE`."""
SILENCE = pytest.mark.parametrize("settings", [HASTE_S], indirect=True)
NASTY = '<b>1 & 2</b> &amp; <!channel> <@123> @everyone *a* _b_ `c` ~d~ ||e|| [f](https://x.test/_g_) \\ "q"'


def message(
    title: str = MESSAGE.title, body: str = MESSAGE.body, priority: Priority = MESSAGE.priority
) -> EventMessage:
    return EventMessage(MESSAGE.reference, title, body, priority, MESSAGE.timestamp_ms)
