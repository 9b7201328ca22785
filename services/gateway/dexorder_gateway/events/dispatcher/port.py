"""Interfaces between the dispatcher and the event loop: calls of sessions and gRPC services, and its outputs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import SuiteError
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.delivery.changes import SendRequest, SessionEvent
from dexorder_gateway.events.ingress.containers import Container
from dexorder_gateway.events.model import AckCallback, Contacts, EventKey, TransientEvent
from dexorder_gateway.events.store.event_log import EventPage, EventQuery, EventRecord, Replay, ReplayBatch


class DispatcherPort(Protocol):
    """Dispatcher as the event loop sees it. Calls take effect in their order.

    While the disk is full, each call that returns something, ``publish`` and ``user_active`` raise Exhausted.

    Attributes:
        on_full: Called with the refusal of calls that wait when the disk gets full; they take effect later.
    """

    on_full: list[Callable[[SuiteError], object]]

    def publish(self, container: Container, body: bytes, answer: AckCallback) -> None:
        """Accept a UserEvent; ``answer`` gets its state now and, unless that is final, again when it is.

        Raises:
            Unavailable: The dispatcher has stopped. Waiting callbacks then get no more acks.
        """

    def session_opened(self, user_id: str) -> None:
        """Note that a user's first session has opened: the user's next events are shown."""

    def session_closed(self, user_id: str) -> None:
        """Note that a user's last session has closed."""

    def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> Awaitable[None]:
        """Store that a session received an event, or its user saw it; done when that is on disk.

        The awaitable raises InvalidRequest for another epoch, Unavailable when the dispatcher stops.
        """

    def replay(self, user_id: str, cursor: Cursor | None) -> Awaitable[Replay]:
        """Return the first events for a session that opens; all up to its cursor count as received.

        Without a cursor, these are the events that are still queued.
        """

    def replay_more(self, user_id: str, after: int, waiting_to: int) -> Awaitable[ReplayBatch]:
        """Return a batch of the events after a position in the log: up to ``waiting_to`` only queued ones, then all."""

    def contacts(self, user_id: str) -> Awaitable[Contacts]:
        """Return a user's contacts."""

    def set_contacts(self, user_id: str, contacts: Contacts) -> Awaitable[None]:
        """Replace a user's contacts; done when they are on disk."""

    def user_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """Store that a user is active on a channel until a time of the wall clock."""

    def record(self, key: EventKey) -> Awaitable[EventRecord | None]:
        """Return an event and its outcome; None for one that is not stored."""

    def records(self, query: EventQuery) -> Awaitable[EventPage]:
        """Return a page of events and their outcomes, newest first."""


@dataclass(frozen=True, slots=True)
class DispatcherOutputs:
    """Receivers of the effects of each transaction, called in the event loop.

    Attributes:
        send: Calls providers; each result goes to ``EventDispatcher.finished``.
        show: Shows events to sessions.
        inform: Shows events that are not stored to sessions.
    """

    send: Callable[[Sequence[SendRequest]], None]
    show: Callable[[Sequence[SessionEvent]], None]
    inform: Callable[[Sequence[TransientEvent]], None]
