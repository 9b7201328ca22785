"""What sessions and gRPC services ask of the dispatcher; all of it is called in the event loop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from services.common.model.user_events import Channel
from services.gateway.events.ingress.acks import AckCallback
from services.gateway.events.ingress.containers import Container
from services.gateway.events.model import Contacts, EventKey
from services.gateway.events.store.records import Page, Query, Record, Replay, ReplayBatch

Place = tuple[str, int]
"""Epoch and sequence: a place in the log of a user's sessions."""


class DispatcherPort(Protocol):
    """The dispatcher as the event loop sees it. What is called first is done first."""

    def publish(self, container: Container, body: bytes, answer: AckCallback) -> None:
        """Accept an event; ``answer`` gets its state now and, unless that was final, once more when it is."""

    def session_opened(self, user_id: str) -> None:
        """The first session of a user is open; from now on what is for them is shown."""

    def session_closed(self, user_id: str) -> None:
        """The last one is closed."""

    def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> Awaitable[None]:
        """The user received or saw an event; done when it is on disk. InvalidRequest for another epoch."""

    def replay(self, user_id: str, cursor: Place | None) -> Awaitable[Replay]:
        """What a session has to be shown first. All up to the cursor counts as received."""

    def replay_more(self, user_id: str, after: int, waiting_to: int) -> Awaitable[ReplayBatch]:
        """What follows; up to ``waiting_to`` only what still waits. What was shown is there."""

    def contacts(self, user_id: str) -> Awaitable[Contacts]:
        """How a user can be reached."""

    def set_contacts(self, user_id: str, contacts: Contacts) -> Awaitable[None]:
        """Replace that; done when it is on disk."""

    def reached(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """A user is active on a channel until then (wall clock)."""

    def record(self, key: EventKey) -> Awaitable[Record | None]:
        """What became of an event; None for one that is not kept."""

    def records(self, query: Query) -> Awaitable[Page]:
        """What became of many."""
