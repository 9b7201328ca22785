"""Contacts of tests, by the protocol's names of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dexorder_gateway.events.channels.registry import SPECS
from dexorder_gateway.events.model import NO_CONTACTS, Contacts, Destination, WebPushSubscription

_CHANNELS = {field.name: channel for channel, spec in SPECS.items() for field in spec.contacts}
_BROWSERS = "web_push"


def contacts_with(before: Contacts = NO_CONTACTS, /, **fields: Any) -> Contacts:
    """Return contacts with these fields replaced: a text, a sequence of destinations, channel_order or quiet_hours."""
    contacts = before
    for name, value in fields.items():
        if name not in _CHANNELS:
            contacts = replace(contacts, **{name: value})
            continue
        given: Sequence[Destination] = ((value,) if value else ()) if isinstance(value, str) else value
        channel = _CHANNELS[name]
        others = [each for each in contacts.on(channel) if not _belongs(name, each)]
        both = (*given, *others) if name == _BROWSERS else (*others, *given)
        left = {each: found for each, found in contacts.destinations.items() if each is not channel}
        contacts = replace(contacts, destinations=left | ({channel: both} if both else {}))
    return contacts


def destinations(contacts: Contacts, name: str) -> tuple[Any, ...]:
    """Return the destinations in a field."""
    return tuple(each for each in contacts.on(_CHANNELS[name]) if _belongs(name, each))


def _belongs(name: str, destination: Destination) -> bool:
    return isinstance(destination, WebPushSubscription) == (name == _BROWSERS)
