"""Events, acks and records of events as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dexorder_common.model.times import iso
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given

STATUSES = {"QUEUED": given.QUEUED, "DELIVERED": given.DELIVERED, "ERROR": given.ACK_ERROR}
_STATUS_NAMES = {int(number): name for name, number in STATUSES.items()}


def event_line(event: pb.SessionEvent) -> str:
    """Return an event as one line of `tail`."""
    inner = event.event
    text = f"{event.title}  {event.body}" if event.body else event.title
    again = " (again)" if event.settled else ""
    head = f"{_time(inner.timestamp)} {_priority(inner)} {_type(inner)} {inner.event_id}{again}"
    return f"{head}  {' '.join(text.split())}"


def shown_json(event: pb.SessionEvent) -> dict[str, Any]:
    """Return an event of a session as JSON values."""
    return {
        "sequence": event.sequence,
        "container": event.container,
        "event": event_json(event.event),
        "title": event.title,
        "body": event.body,
        "settled": event.settled,
    }


def event_json(event: given.UserEvent) -> dict[str, Any]:
    """Return an event as JSON values; a payload that is not JSON becomes text."""
    try:
        payload = json.loads(event.payload)
    except ValueError:
        payload = event.payload.decode(errors="replace")
    return {
        "user_id": event.user_id,
        "event_id": event.event_id,
        "timestamp_ms": event.timestamp,
        "event_type": _type(event),
        "payload": payload,
        "priority": _priority(event),
        "channels": [
            {"channel": _channel(each.channel), "only_if_active": each.only_if_active}
            for each in event.delivery.channels
        ],
    }


def ack_json(ack: given.EventAck) -> dict[str, str]:
    """Return an ack as JSON values; ``via`` is empty unless it was delivered."""
    via = _channel(ack.delivered_via) if ack.status == given.DELIVERED else ""
    return {"event_id": ack.event_id, "status": _status(ack.status), "via": via, "error": ack.error_message}


def record_json(record: pb.EventRecord) -> dict[str, Any]:
    """Return a record as JSON values; times are milliseconds since the epoch, null if not reached."""
    return {
        "container": record.container,
        "event": event_json(record.event),
        "accepted_at": record.accepted_ms,
        "status": _status(record.status),
        "delivered_via": _via(record) or None,
        "error_message": record.error_message,
        "completed_at": record.completed_ms or None,
        "seen_at": record.seen_ms or None,
        "attempts": [
            {
                "number": each.number,
                "channel": _channel(each.channel),
                "started_at": each.started_ms,
                "ended_at": each.ended_ms or None,
                "outcome": each.outcome,
                "retry_at": each.retry_ms or None,
            }
            for each in record.attempts
        ],
    }


def record_cells(record: pb.EventRecord) -> tuple[str, ...]:
    """Return a record as the cells of a row of `list`."""
    event = record.event
    cells = (
        _time(record.accepted_ms),
        event.user_id,
        record.container,
        event.event_id,
        _type(event),
        _priority(event),
        _status(record.status),
        _via(record) or record.error_message,
        str(len(record.attempts)),
    )
    return tuple(" ".join(each.split()) for each in cells)


def record_lines(record: pb.EventRecord) -> Iterator[tuple[str, str]]:
    """Return a record as the names and values of `show`."""
    event = record.event
    lines = [
        ("event", event.event_id),
        ("container", record.container),
        ("user", event.user_id),
        ("type", _type(event)),
        ("priority", _priority(event)),
        ("channels", ", ".join(map(_preference, event.delivery.channels)) or "user's"),
        ("happened", _time(event.timestamp)),
        ("accepted", _time(record.accepted_ms)),
        ("status", _status(record.status) + (f" via {_via(record)}" if _via(record) else "")),
        ("error", record.error_message or "-"),
        ("completed", _time(record.completed_ms)),
        ("seen", _time(record.seen_ms)),
        ("payload", event.payload.decode(errors="replace")),
    ]
    for each in record.attempts:
        after = f" after {each.ended_ms - each.started_ms:,} ms" if each.ended_ms else ""
        again = f", not before {_time(each.retry_ms)}" if each.retry_ms else ""
        text = f"{_time(each.started_ms)} {_channel(each.channel)}: {each.outcome or 'in progress'}{after}{again}"
        lines.append((f"attempt {each.number}", text))
    return ((name, " ".join(value.split())) for name, value in lines)


def _time(ms: int) -> str:
    try:
        return iso(ms * 1_000_000) if ms else "-"
    except (ValueError, OverflowError, OSError):
        return str(ms)


def _type(event: given.UserEvent) -> str:
    return _name(given.EventType, event.event_type)


def _priority(event: given.UserEvent) -> str:
    return _name(given.Priority, event.delivery.priority)


def _channel(number: int) -> str:
    return _name(given.ChannelType, number)


def _preference(each: given.ChannelPreference) -> str:
    return _channel(each.channel) + (":active" if each.only_if_active else "")


def _via(record: pb.EventRecord) -> str:
    return _channel(record.delivered_via) if record.HasField("delivered_via") else ""


def _status(number: int) -> str:
    return _STATUS_NAMES.get(number, str(number))


def _name(kind: Any, number: int) -> str:
    return str(kind.Name(number)) if number in kind.values() else str(number)
