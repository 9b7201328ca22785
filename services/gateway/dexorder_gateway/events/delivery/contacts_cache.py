"""Contacts and presence of users in memory. Pure; the dispatcher keeps it equal to the outbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.model import NO_CONTACTS, Contacts

_FIELDS = {
    Channel.TELEGRAM: "telegram_chat_id",
    Channel.EMAIL: "email",
    Channel.DISCORD: "discord_webhook_url",
    Channel.SLACK: "slack_webhook_url",
}
"""Contacts with one destination; PUSH has several."""


class ContactsCache:
    """Contacts and presence of all users; presence is user, channel and end of activity (wall clock, nanoseconds)."""

    def __init__(
        self, contacts: Mapping[str, Contacts] | None = None, presence: Iterable[tuple[str, Channel, int]] = ()
    ) -> None:
        self._contacts = dict(contacts or {})
        self._until = {(user_id, channel): until_ns for user_id, channel, until_ns in presence}

    def contacts(self, user_id: str) -> Contacts:
        """Return a user's contacts; `NO_CONTACTS` where nothing is known."""
        return self._contacts.get(user_id, NO_CONTACTS)

    def set_contacts(self, user_id: str, contacts: Contacts) -> None:
        """Replace a user's contacts."""
        self._contacts[user_id] = contacts

    def active(self, user_id: str, channel: Channel, now_ns: int) -> bool:
        """Return whether the user was reported active on a provider's channel, and the report still holds."""
        return self._until.get((user_id, channel), 0) > now_ns

    def set_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """Store a report; a time in the past ends it."""
        self._until[user_id, channel] = until_ns


def no_contact(channel: Channel, contacts: Contacts) -> str:
    """Return why a provider's channel can't be used, as far as the contacts tell; empty where it can."""
    if channel is Channel.PUSH:
        return "" if contacts.web_push or contacts.mobile_tokens else "no contact"
    return "" if getattr(contacts, _FIELDS[channel]) else "no contact"


def without(contacts: Contacts, channel: Channel, destination: str) -> Contacts:
    """Return contacts without a destination: chat id, address, URL, token, or endpoint of a subscription."""
    if channel is Channel.PUSH:
        return replace(
            contacts,
            web_push=tuple(each for each in contacts.web_push if each.endpoint != destination),
            mobile_tokens=tuple(each for each in contacts.mobile_tokens if each != destination),
        )
    name = _FIELDS.get(channel, "")
    emptied: dict[str, Any] = {name: ""} if name and getattr(contacts, name) == destination else {}
    return replace(contacts, **emptied)
