"""What the delivery rules keep in memory of an event that is not final, of its user, and of a try under way. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.common.model.user_events import SESSION_CHANNELS, Channel, Priority
from services.gateway.events.delivery.changes import QueuedRow
from services.gateway.events.delivery.provider_limits import Provider
from services.gateway.events.delivery.timers import Timed
from services.gateway.events.model import Contacts


class PendingEvent(Timed):
    """A `Live` that can be changed, and what a restart may forget.

    Attributes:
        saved: The row as it was written last.
        shown_ns: When it was shown to the sessions that are open now.
        under_way: A call is.
        provider: Where it waits for its turn.
        done: It is final.
    """

    __slots__ = (
        "accepted_ns",
        "channel_index",
        "done",
        "due_ns",
        "event",
        "expires_ns",
        "failures",
        "provider",
        "refused",
        "rounds",
        "saved",
        "sequence",
        "shown_ns",
        "soft",
        "tries",
        "under_way",
        "waits_for_ack",
    )

    def __init__(self, live: QueuedRow) -> None:
        super().__init__()
        self.event = live.event
        self.accepted_ns = live.accepted_ns
        self.expires_ns = live.expires_ns
        self.channel_index = live.channel_index
        self.rounds = live.rounds
        self.tries = live.tries
        self.failures = live.failures
        self.due_ns = live.due_ns
        self.waits_for_ack = live.waits_for_ack
        self.refused = live.refused
        self.sequence = live.sequence
        self.soft = live.soft
        self.saved: QueuedRow = live
        self.shown_ns = 0
        self.under_way = self.done = False
        self.provider: Provider[PendingEvent] | None = None

    @property
    def in_sessions(self) -> bool:
        """Whether sessions are among its channels."""
        named = self.event.channels
        return not named or any(way.channel in SESSION_CHANNELS for way in named)

    @property
    def critical(self) -> bool:
        """Whether it is never held nor given up."""
        return self.event.priority is Priority.CRITICAL

    def expired(self, now_ns: int) -> bool:
        """Whether its time is over."""
        return self.expires_ns is not None and now_ns >= self.expires_ns

    def refusal(self, channel: Channel) -> str:
        """Why a channel refused for good; empty where it did not."""
        return next((reason for refused, reason in self.refused if refused is channel), "")

    def row(self) -> QueuedRow:
        """As it is now."""
        return QueuedRow(
            self.event,
            self.accepted_ns,
            self.expires_ns,
            self.channel_index,
            self.rounds,
            self.tries,
            self.failures,
            self.due_ns,
            self.waits_for_ack,
            self.refused,
            self.sequence,
            self.soft,
        )


@dataclass(slots=True)
class User:
    """A user with live events or an open session.

    Attributes:
        items: In the order in which they were accepted.
        by_sequence: Those that have a place in the log of the sessions, in its order.
        digest_ns: When the events that wait for each other go out.
    """

    user_id: str
    open: bool = False
    items: dict[PendingEvent, None] = field(default_factory=dict)
    by_sequence: dict[int, PendingEvent] = field(default_factory=dict)
    digest_ns: int = 0


@dataclass(slots=True)
class ProviderCall:
    """A call under way, for one event or for several in one message.

    Attributes:
        members: Each with the number that the call has among its own tries; the first is whose key the call goes by.
    """

    user_id: str
    channel: Channel
    contacts: Contacts
    provider: Provider[PendingEvent]
    started_ns: int
    members: list[tuple[PendingEvent, int]]
