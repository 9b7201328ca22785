"""Who can be reached how, and where they are active now. Pure; the dispatcher keeps it equal to the outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Protocol

from services.common.model.user_events import Channel
from services.gateway.events.model import NO_CONTACTS, Contacts


class People(Protocol):
    """What the delivery rules ask about users."""

    def contacts(self, user_id: str) -> Contacts:
        """How a user can be reached; `NO_CONTACTS` where nothing is known."""

    def active(self, user_id: str, channel: Channel, now_ns: int) -> bool:
        """Whether the user was reported active on a channel outside of sessions."""


class ContactsCache:
    """People in memory.

    Args:
        contacts: Of all users that have some.
        presence: User, channel, and until when they are active there; wall clock, nanoseconds.
    """

    def __init__(
        self, contacts: Mapping[str, Contacts] | None = None, presence: Iterable[tuple[str, Channel, int]] = ()
    ) -> None:
        self._contacts = dict(contacts or {})
        self._until = {(user_id, channel): until_ns for user_id, channel, until_ns in presence}

    def contacts(self, user_id: str) -> Contacts:
        """How a user can be reached."""
        return self._contacts.get(user_id, NO_CONTACTS)

    def set_contacts(self, user_id: str, contacts: Contacts) -> None:
        """Replace a user's contacts."""
        self._contacts[user_id] = contacts

    def active(self, user_id: str, channel: Channel, now_ns: int) -> bool:
        """Whether what was reported last still holds."""
        return self._until.get((user_id, channel), 0) > now_ns

    def set_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """A report; a time that is past ends it."""
        self._until[user_id, channel] = until_ns


_DESTINATIONS: Mapping[Channel, Callable[[Contacts], object]] = {
    Channel.TELEGRAM: attrgetter("telegram_chat_id"),
    Channel.EMAIL: attrgetter("email"),
    Channel.PUSH: lambda contacts: contacts.web_push or contacts.mobile_tokens,
    Channel.DISCORD: attrgetter("discord_webhook_url"),
    Channel.SLACK: attrgetter("slack_webhook_url"),
}


def no_contact(channel: Channel, contacts: Contacts) -> str:
    """Why a channel outside of sessions can't be used as far as the contacts go; empty where it can."""
    return "" if _DESTINATIONS[channel](contacts) else "no contact"
