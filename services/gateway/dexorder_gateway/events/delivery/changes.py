"""Rows to commit and effects to carry out afterwards: the decisions of the delivery rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.model import Ack, Contacts, Event, EventKey, EventMessage

NEVER = 2**63 - 1
"""Due time of an event that waits for something other than time; fits into SQLite's integers."""
ROUND_ENDED = -1
"""``channel_index`` of an event that has tried all its channels and waits for the next round."""


class QueuedRow(NamedTuple):
    """Row of the outbox for an event that is not final: all that a restart needs. A tuple, because many are made.

    Attributes:
        expires_ns: Wall clock; None for CRITICAL.
        channel_index: Index of the channel that is tried now, from 0, or `ROUND_ENDED`.
        rounds: Completed rounds that were followed by another one.
        attempts: Attempts so far, over all channels; the number of the last attempt.
        failures: Attempts at the present channel that ended in `Later`.
        due_ns: Wall clock of the next step, unless a session, an ack or a result comes first; `NEVER` to wait for one
            of these. During a call, the time at which it started: after a restart the channel is tried again.
        waits_for_ack: The event was shown to a session; its ack is due at ``due_ns``.
        refused: Channels that refused permanently, each with its reason.
        sequence: Position in the log of the user's sessions, once it has one.
        soft: Above its container's soft quota: sent with others of its kind in one message.
    """

    event: Event
    accepted_ns: int
    expires_ns: int | None
    channel_index: int = 0
    rounds: int = 0
    attempts: int = 0
    failures: int = 0
    due_ns: int = 0
    waits_for_ack: bool = False
    refused: tuple[tuple[Channel, str], ...] = ()
    sequence: int | None = None
    soft: bool = False


STATE_FIELDS = QueuedRow._fields[2:]
"""Fields that change while an event is queued; the outbox derives its columns from them."""


@dataclass(frozen=True, slots=True)
class Final:
    """End of an event. ``via`` is set only where it was delivered, ``error`` only where it was not."""

    key: EventKey
    status: Status
    via: Channel | None
    error: str
    completed_ns: int

    def ack(self) -> Ack:
        """Return the ack of the event."""
        return Ack(self.key.event_id, self.status, self.error, self.via)


class AttemptRow(NamedTuple):
    """One attempt at a channel; written at its start and again with its outcome."""

    key: EventKey
    number: int
    channel: Channel
    started_ns: int
    ended_ns: int | None = None
    outcome: str = ""
    retry_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Report of a session that its user has seen an event."""

    user_id: str
    sequence: int
    seen_ns: int


@dataclass(frozen=True, slots=True)
class SendRequest:
    """One call of a provider; its `Result` goes to ``EventDelivery.finished`` with the same key and number."""

    key: EventKey
    number: int
    channel: Channel
    user_id: str
    message: EventMessage
    contacts: Contacts


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """Event at its position in the log of its user's sessions; ``settled`` once it is final."""

    user_id: str
    sequence: int
    event: Event
    settled: bool = False


@dataclass(slots=True, init=False)
class DeliveryChanges:
    """Rows, in the order in which they were made, and the effects that follow once they are committed."""

    accepted: list[QueuedRow]
    updated: list[QueuedRow]
    finals: list[Final]
    attempts: list[AttemptRow]
    seen: list[Seen]
    gone: list[tuple[str, Channel, str]] = field(repr=False)
    """User, channel and destination that no longer exists, to be removed from the contacts."""
    sends: list[SendRequest]
    session_events: list[SessionEvent]

    def __init__(self) -> None:  # by hand: eight default factories cost more than an event's rules
        self.accepted = []
        self.updated = []
        self.finals = []
        self.attempts = []
        self.seen = []
        self.gone = []
        self.sends = []
        self.session_events = []

    def add(self, later: DeliveryChanges) -> None:
        """Append the changes of a later decision."""
        self.accepted += later.accepted
        self.updated += later.updated
        self.finals += later.finals
        self.attempts += later.attempts
        self.seen += later.seen
        self.gone += later.gone
        self.sends += later.sends
        self.session_events += later.session_events
