"""What the parts of user events say to each other. Protobuf stops at the edge; these are our own, frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.common.model.user_events import Channel, Preference, Priority


class EventKey(NamedTuple):
    """What makes an event one: a repeat has the same key. A tuple, as it is made and looked up most of all."""

    container: str
    event_id: str


class Event(NamedTuple):
    """An event that has passed its checks. A tuple, as many are made; its payload is not in its repr.

    Attributes:
        event_type: The given protocol's number, known or not.
        channels: As the container named them, without those we do not know; empty for the user's own order.
        body: The UserEvent as it came, serialized: what makes a repeat a repeat, and what sessions get.
    """

    key: EventKey
    user_id: str
    timestamp_ms: int
    event_type: int
    payload: bytes
    priority: Priority
    channels: tuple[Preference, ...]
    body: bytes

    def __repr__(self) -> str:
        return f"Event({self.key}, {self.user_id!r}, {self.event_type}, {self.priority!r}, {self.channels})"


@dataclass(frozen=True, slots=True)
class Message:
    """An event as people read it; plain text, which each channel escapes its own way.

    Attributes:
        reference: The same for every try of the same event and of no other: Message-ID, collapse key. Up to 32
            characters of [0-9a-f].
    """

    reference: str
    title: str
    body: str
    priority: Priority
    timestamp_ms: int


# What came of one try on one channel.


@dataclass(frozen=True, slots=True)
class Sent:
    """The provider has taken it.

    Attributes:
        gone: Destinations of this user that no longer exist, though another one took it.
    """

    gone: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """For good: the same call would be refused again.

    Attributes:
        reason: A class of reasons in words ("blocked by the user", "no such address"); never a token, address or id.
        gone: Destinations of this user that no longer exist.
    """

    reason: str
    gone: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Later:
    """Not now.

    Attributes:
        reason: As in `Refused`.
        retry_after_ms: What the provider asked for; then nothing more goes to this ``lane`` before.
    """

    reason: str
    retry_after_ms: int | None = None


Result = Sent | Refused | Later


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Minutes after midnight in the user's time zone (IANA name); an end before the start is on the next day."""

    start_minute: int
    end_minute: int
    time_zone: str


@dataclass(frozen=True, slots=True)
class WebPushSubscription:
    """A browser's, as its PushSubscription says it."""

    endpoint: str = field(repr=False)
    p256dh: str = field(repr=False)
    auth: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Contacts:
    """How a user can be reached, and what they want; empty where nothing is known. No address is in its repr."""

    telegram_chat_id: str = field(default="", repr=False)
    email: str = field(default="", repr=False)
    web_push: tuple[WebPushSubscription, ...] = ()
    mobile_tokens: tuple[str, ...] = field(default=(), repr=False)
    discord_webhook_url: str = field(default="", repr=False)
    slack_webhook_url: str = field(default="", repr=False)
    channel_order: tuple[Channel, ...] = ()
    quiet_hours: QuietHours | None = None


NO_CONTACTS = Contacts()
