"""Conversion between the protocol's messages and the gateway's model. Invalid fields raise InvalidRequest.

The fields of contacts with destinations follow from the channels' declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from zoneinfo import ZoneInfo

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.channels.registry import SPECS
from dexorder_gateway.events.channels.spec import EventChannelSettings
from dexorder_gateway.events.delivery.changes import AttemptRow
from dexorder_gateway.events.model import Contacts, EventKey, QuietHours
from dexorder_gateway.events.store.event_log import EventPage, EventQuery, EventRecord
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given

_DEFAULT_RECORDS = 100
_NS_PER_MS = 1_000_000
_MAX_SEQUENCE = 2**63 - 1


def cursor_of(cursor: pb.Cursor) -> Cursor:
    """Return a cursor."""
    if cursor.sequence > _MAX_SEQUENCE:
        raise InvalidRequest(f"cursor.sequence {cursor.sequence} is too large")
    return Cursor(cursor.epoch, cursor.sequence)


def ack_of(request: pb.AckEventRequest) -> tuple[Cursor, bool]:
    """Return the cursor of the event, and whether the user saw it."""
    if request.cursor.sequence == 0:
        raise InvalidRequest("cursor.sequence is 0; informational events are not acknowledged")
    return cursor_of(request.cursor), request.kind == pb.ACK_KIND_SEEN


def key_of(request: pb.GetEventRequest) -> EventKey:
    """Return the key of the requested event."""
    return EventKey(request.container, request.event_id)


def query_of(request: pb.ListEventsRequest) -> EventQuery:
    """Return the query for the requested events."""
    token = request.page_token
    if token and not (token.isascii() and token.isdigit() and len(token) < 19):
        raise InvalidRequest("page_token is not a next_page_token of this service")
    status = None
    if request.HasField("status"):
        try:
            status = Status(request.status)
        except ValueError:
            raise InvalidRequest(f"status {request.status} is unknown") from None
    return EventQuery(
        user_id=request.user_id,
        container=request.container,
        status=status,
        before=int(token) if token else None,
        size=request.page_size or _DEFAULT_RECORDS,
    )


def page_answer(page: EventPage) -> pb.ListEventsResponse:
    """Return a page of records with the token of the next page."""
    return pb.ListEventsResponse(
        records=map(record_answer, page.records), next_page_token="" if page.before is None else str(page.before)
    )


def record_answer(record: EventRecord) -> pb.EventRecord:
    """Return the record of an event."""
    return pb.EventRecord(
        container=record.key.container,
        event=given.UserEvent.FromString(record.body),
        accepted_ms=record.accepted_ns // _NS_PER_MS,
        status=record.status.value,  # type: ignore[arg-type]  # the same numbers
        delivered_via=record.via,  # type: ignore[arg-type]
        error_message=record.error,
        completed_ms=_ms(record.completed_ns),
        seen_ms=_ms(record.seen_ns),
        attempts=map(_attempt, record.attempts),
    )


def _attempt(row: AttemptRow) -> pb.Attempt:
    return pb.Attempt(
        number=row.number,
        channel=row.channel,  # type: ignore[arg-type]
        started_ms=row.started_ns // _NS_PER_MS,
        ended_ms=_ms(row.ended_ns),
        outcome=row.outcome,
        retry_ms=_ms(row.retry_at_ns),
    )


def _ms(ns: int | None) -> int | None:
    return ns // _NS_PER_MS if ns else None


def contacts_answer(contacts: Contacts) -> pb.Contacts:
    """Return contacts as users and staff may see them, without secrets that would let others write to the user."""
    quiet = contacts.quiet_hours
    shown: dict[str, Any] = {
        field.name: field.show(contacts.on(channel)) for channel, spec in SPECS.items() for field in spec.contacts
    }
    return pb.Contacts(
        channel_order=contacts.channel_order,  # type: ignore[arg-type]  # the same numbers
        quiet_hours=pb.QuietHours(**asdict(quiet)) if quiet else None,
        **shown,
    )


def contacts_of(given: pb.Contacts, before: Contacts, settings: EventChannelSettings) -> Contacts:
    """Return a user's new contacts; ``before`` has the secrets that `***` stands for. No error text shows a secret."""
    read = {
        channel: tuple(
            destination
            for field in spec.contacts
            for destination in field.read(getattr(given, field.name), before.on(channel), settings)
        )
        for channel, spec in SPECS.items()
    }
    return Contacts(
        destinations={channel: destinations for channel, destinations in read.items() if destinations},
        channel_order=_channel_order(given.channel_order),
        quiet_hours=_quiet_hours(given.quiet_hours) if given.HasField("quiet_hours") else None,
    )


def _channel_order(given: Sequence[int]) -> tuple[Channel, ...]:
    try:
        order = tuple(map(Channel, given))
    except ValueError as error:
        raise InvalidRequest(f"channel_order: {error}") from None
    if len(set(order)) != len(order):
        raise InvalidRequest("channel_order has a duplicate channel")
    return order


def _quiet_hours(given: pb.QuietHours) -> QuietHours:
    if given.start_minute == given.end_minute:
        raise InvalidRequest(f"quiet_hours begin and end at minute {given.start_minute}")
    try:
        ZoneInfo(given.time_zone)
    except (OSError, ValueError, KeyError):  # ZoneInfo opens a file of that name
        raise InvalidRequest(
            f"quiet_hours.time_zone {given.time_zone[:64]!r} is unknown; use an IANA name like Europe/Berlin"
        ) from None
    return QuietHours(given.start_minute, given.end_minute, given.time_zone)
