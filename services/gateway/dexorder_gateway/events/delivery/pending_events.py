"""Events that are not final, in memory: each one, its user, and their index. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from dexorder_common.model.user_events import SESSION_CHANNELS, Channel, Priority
from dexorder_gateway.events.delivery.changes import QueuedRow
from dexorder_gateway.events.delivery.provider_limits import Provider
from dexorder_gateway.events.delivery.timers import Timed
from dexorder_gateway.events.model import EventKey

_row_values = attrgetter(*QueuedRow._fields)


class PendingEvent(Timed):
    """Fields of a `QueuedRow`, mutable, and state that a restart may forget.

    Attributes:
        saved: The row as it was last written.
        shown_ns: When it was shown to the sessions that are open now; 0 for never.
        provider: Provider that queues it.
        done: It is final.
    """

    __slots__ = (*QueuedRow._fields, "done", "provider", "saved", "shown_ns")

    def __init__(self, row: QueuedRow) -> None:
        super().__init__()
        self.event = row.event
        self.accepted_ns = row.accepted_ns
        self.expires_ns = row.expires_ns
        self.channel_index = row.channel_index
        self.rounds = row.rounds
        self.attempts = row.attempts
        self.failures = row.failures
        self.due_ns = row.due_ns
        self.waits_for_ack = row.waits_for_ack
        self.refused = row.refused
        self.sequence = row.sequence
        self.soft = row.soft
        self.saved = row
        self.shown_ns = 0
        self.done = False
        self.provider: Provider[PendingEvent] | None = None

    def row(self) -> QueuedRow:
        """Return the present state as a row."""
        return QueuedRow._make(_row_values(self))

    @property
    def for_sessions(self) -> bool:
        """Return whether sessions are among its channels."""
        named = self.event.channels
        return not named or any(preference.channel in SESSION_CHANNELS for preference in named)

    @property
    def critical(self) -> bool:
        """Return whether it ignores quiet hours and never expires."""
        return self.event.priority is Priority.CRITICAL

    def expired(self, now_ns: int) -> bool:
        """Return whether its time is over."""
        return self.expires_ns is not None and now_ns >= self.expires_ns

    def refusal(self, channel: Channel) -> str:
        """Return why a channel refused permanently; empty where it did not."""
        return next((reason for refused, reason in self.refused if refused is channel), "")


@dataclass(slots=True)
class PendingUser:
    """User with pending events or an open session.

    Attributes:
        pending: Events in the order in which they were accepted.
        by_sequence: Events that have a position in the log of the sessions, in its order.
        digest_ns: When the events that wait for the digest are sent.
    """

    user_id: str
    open: bool = False
    pending: dict[PendingEvent, None] = field(default_factory=dict)
    by_sequence: dict[int, PendingEvent] = field(default_factory=dict)
    digest_ns: int = 0


class PendingEvents:
    """Index of pending events by key, by user, and by position in the user's log, with each log's last position.

    Attributes:
        sequences: Last position in the log of each user's sessions.
        start: New positions in all logs are after it.
    """

    def __init__(self) -> None:
        self.by_key: dict[EventKey, PendingEvent] = {}
        self.users: dict[str, PendingUser] = {}
        self.sequences: dict[str, int] = {}
        self.start = 0

    def user(self, user_id: str) -> PendingUser:
        """Return a user, who is kept while an event is pending or a session open."""
        user = self.users.get(user_id)
        if user is None:
            user = self.users[user_id] = PendingUser(user_id)
        return user

    def forget(self, user: PendingUser) -> None:
        """Drop a user without pending events and open sessions."""
        if not user.open and not user.pending:
            self.users.pop(user.user_id, None)

    def of_user(self, user_id: str) -> dict[PendingEvent, None]:
        """Return a user's pending events in the order in which they were accepted."""
        user = self.users.get(user_id)
        return user.pending if user else {}

    def add(self, row: QueuedRow) -> PendingEvent:
        """Add an event."""
        pending = self.by_key[row.event.key] = PendingEvent(row)
        self.user(row.event.user_id).pending[pending] = None
        return pending

    def assign_sequence(self, pending: PendingEvent) -> None:
        """Give an event the next position in the log of its user's sessions."""
        user_id = pending.event.user_id
        pending.sequence = self.sequences[user_id] = max(self.sequences.get(user_id, 0), self.start) + 1
        self.user(user_id).by_sequence[pending.sequence] = pending

    def remove(self, pending: PendingEvent) -> None:
        """Remove an event that became final."""
        pending.done = True
        del self.by_key[pending.event.key]
        user = self.user(pending.event.user_id)
        del user.pending[pending]
        if pending.sequence is not None:
            del user.by_sequence[pending.sequence]
        self.forget(user)
