"""Values of user events that the gateway's parts exchange: events, acks, messages, results, contacts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dexorder_common.model.user_events import Channel, Preference, Priority, Status


class EventKey(NamedTuple):
    """Identity of an event: a duplicate has the same key. A tuple, because it is made and looked up most often."""

    container: str
    event_id: str


class Event(NamedTuple):
    """Event that has passed validation. A tuple, because many are made; its payload is not in its repr.

    Attributes:
        event_type: The given protocol's number, known or not.
        channels: As the container named them, without unknown ones; empty for the user's own order.
        body: UserEvent as it arrived, serialized. A duplicate must have the same body, and sessions get it.
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


class TransientEvent(NamedTuple):
    """Event for the open sessions of its user that is not stored and gets no ack from them. A tuple: many are made.

    ``body`` is the UserEvent as sessions get it, see ``event_codec.for_sessions``.
    """

    user_id: str
    container: str
    body: bytes


class Ack(NamedTuple):
    """State of an event, the given EventAck; ``via`` only where it was delivered.

    An event that is not ``taken`` gets no ack: a call ends with RESOURCE_EXHAUSTED, 5571 sends nothing.
    """

    event_id: str
    status: Status
    error: str = ""
    via: Channel | None = None
    taken: bool = True


HELD = "too many CRITICAL events of this container are not delivered yet; send it again under the same id"
"""Error of an event that is not taken."""
AckCallback = Callable[[Ack], None]
"""Callback of a gRPC publisher; called in the event loop."""
ReplyTo = bytes | AckCallback
"""Sender of a copy of an event: a connection's routing id, or a gRPC publisher."""


@dataclass(frozen=True, slots=True)
class EventMessage:
    """Event as people read it: plain text, which each channel escapes in its own way.

    Attributes:
        reference: Identifies the event in all its attempts (Message-ID, collapse key); up to 32 characters of [0-9a-f].
    """

    reference: str
    title: str
    body: str
    priority: Priority
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The provider has accepted the message. Destinations that are ``gone`` no longer exist; another one took it."""

    gone: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SendRefused:
    """Permanent refusal: the same call would be refused again.

    Attributes:
        reason: Kind of reason in words ("blocked by the user", "no such address"); never a token, address or id.
        gone: Destinations of this user that no longer exist.
    """

    reason: str
    gone: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Later:
    """Temporary failure, with a reason as in `SendRefused`. No call to the provider starts before its pause is over."""

    reason: str
    retry_after_ms: int | None = None


NO_CONTACT = "no contact"
NOT_CONFIGURED = "not configured"
HOST_NOT_ALLOWED = "host not allowed"
NOT_ACCEPTED = "not accepted"
NO_CONNECTION = "no connection"
TIMEOUT = "timeout"
Result = Sent | SendRefused | Later


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Minutes after midnight in the user's time zone (IANA name); an end before the start is on the next day."""

    start_minute: int
    end_minute: int
    time_zone: str


@dataclass(frozen=True, slots=True)
class WebPushSubscription:
    """Subscription of a browser, with the fields of its PushSubscription."""

    endpoint: str = field(repr=False)
    p256dh: str = field(repr=False)
    auth: str = field(repr=False)


Destination = str | WebPushSubscription
"""Chat id, address, URL or token; or a browser."""


def address_of(destination: Destination) -> str:
    """Return the text by which a destination is known: of a browser, its endpoint."""
    return destination.endpoint if isinstance(destination, WebPushSubscription) else destination


@dataclass(frozen=True, slots=True)
class Contacts:
    """Destinations and wishes of a user; empty where unknown. No destination is in its repr.

    Attributes:
        destinations: By channel, at least one each. Which fields of the protocol they are, `ChannelSpec` knows.
    """

    destinations: Mapping[Channel, tuple[Destination, ...]] = field(default_factory=dict, repr=False)
    channel_order: tuple[Channel, ...] = ()
    quiet_hours: QuietHours | None = None

    def on(self, channel: Channel) -> tuple[Destination, ...]:
        """Return the user's destinations on a channel."""
        return self.destinations.get(channel, ())

    def address(self, channel: Channel) -> str:
        """Return the user's first destination on a channel as text, or an empty text."""
        return next(map(address_of, self.on(channel)), "")

    def without(self, channel: Channel, address: str) -> Contacts:
        """Return contacts without a destination of a channel."""
        left = tuple(each for each in self.on(channel) if address_of(each) != address)
        others = {each: found for each, found in self.destinations.items() if each is not channel}
        return replace(self, destinations={**others, channel: left} if left else others)


NO_CONTACTS = Contacts()


def no_contact(channel: Channel, contacts: Contacts) -> str:
    """Return why a channel can't be used, as far as the contacts tell; empty if it can."""
    return "" if contacts.on(channel) else NO_CONTACT
