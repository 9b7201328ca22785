"""Contacts between the protocol and the gateway's model: validated on the way in, secrets hidden on the way out.

Fields with destinations follow from the channels' declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from zoneinfo import ZoneInfo

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import SPECS
from dexorder_gateway.events.channels.spec import EventChannelSettings
from dexorder_gateway.events.model import Contacts, QuietHours
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb

_DAY_MINUTES = 24 * 60


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
    for name in ("start_minute", "end_minute"):
        if (minute := getattr(given, name)) >= _DAY_MINUTES:
            raise InvalidRequest(f"quiet_hours.{name} {minute} is not below {_DAY_MINUTES}")
    if given.start_minute == given.end_minute:
        raise InvalidRequest(f"quiet_hours begin and end at minute {given.start_minute}")
    try:
        ZoneInfo(given.time_zone)
    except (OSError, ValueError, KeyError):  # ZoneInfo opens a file of that name
        raise InvalidRequest(
            f"quiet_hours.time_zone {given.time_zone[:64]!r} is unknown; use an IANA name like Europe/Berlin"
        ) from None
    return QuietHours(given.start_minute, given.end_minute, given.time_zone)
