"""Many events in one message. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from services.gateway.events.model import Event, Message

MOST_LINES = 50


def digest(events: Sequence[Event], render: Callable[[Event], Message]) -> Message:
    """One message that lists the first `MOST_LINES` events by their titles and counts the others.

    Args:
        events: At least one, in the order in which they were accepted; one alone is rendered as ever.
        render: How an event reads.
    """
    if len(events) == 1:
        return render(events[0])
    shown = [render(event) for event in events[:MOST_LINES]]
    lines = [message.title for message in shown]
    if len(events) > MOST_LINES:
        lines.append(f"and {len(events) - MOST_LINES} more")
    reference = hashlib.sha256(b"\x00".join(_name(event) for event in events)).hexdigest()[:32]
    newest_ms = max(event.timestamp_ms for event in events)
    return Message(reference, f"{len(events)} events", "\n".join(lines), events[0].priority, newest_ms)


def _name(event: Event) -> bytes:
    return f"{event.key.container}\x00{event.key.event_id}".encode()
