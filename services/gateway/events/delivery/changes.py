"""What the delivery rules want kept and, once that is on disk, done. Pure data between `delivery` and `dispatcher`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.common.model.user_events import Channel, Status
from services.gateway.events.model import Contacts, Event, EventKey, Message

NEVER = 2**63 - 1
"""A due time that does not come; fits into SQLite's integers."""
THROUGH = -1
"""The turn of an event all of whose channels had theirs."""


class QueuedRow(NamedTuple):
    """An event that is not final, as a row: all that a restart needs to go on with it. A tuple, as many are made.

    Attributes:
        expires_ns: Wall clock; None for CRITICAL.
        turn: Index into the channels that are tried, from 0; `THROUGH` between two rounds.
        rounds: Rounds that are through and were followed by another one.
        tries: Tries so far, over all channels; the number of the last attempt.
        failures: Tries of the present turn that ended in `Later`.
        due_ns: Wall clock: nothing happens before, unless a session, an ack or a result comes; `NEVER` for not of
            itself. While a channel is tried, when that began: after a restart it is tried again.
        waits_for_ack: It was shown to a session in this turn, whose ack is due then.
        refused: Channels that refused for good, each with its reason.
        sequence: Its place in the log of its user's sessions, once it had one.
        soft: Above its container's soft quota: goes out with others of its kind in one message.
    """

    event: Event
    accepted_ns: int
    expires_ns: int | None
    channel_index: int = 0
    rounds: int = 0
    tries: int = 0
    failures: int = 0
    due_ns: int = 0
    waits_for_ack: bool = False
    refused: tuple[tuple[Channel, str], ...] = ()
    sequence: int | None = None
    soft: bool = False


@dataclass(frozen=True, slots=True)
class Final:
    """An event's end. ``via`` only where it was delivered, ``error`` only where it was not."""

    key: EventKey
    status: Status
    via: Channel | None
    error: str
    completed_ns: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One try; written when it begins and again when its outcome is known."""

    key: EventKey
    number: int
    channel: Channel
    started_ns: int
    ended_ns: int | None = None
    outcome: str = ""
    retry_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The user said so."""

    user_id: str
    sequence: int
    seen_ns: int


# Things to do once the rows are on disk.


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Try a channel outside; its `Result` comes back to ``Delivery.finished`` with the same key and number."""

    key: EventKey
    number: int
    channel: Channel
    user_id: str
    message: Message
    contacts: Contacts


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """Put an event before the open sessions of its user."""

    user_id: str
    sequence: int
    event: Event
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell the container what is final now, if one of its connections waits for it."""

    final: Final


@dataclass(slots=True, init=False)
class Changes:
    """In this order: rows, commit, effects. Rows of one kind are in the order in which they were made.

    Attributes:
        gone: User, channel and destination that no longer exists, to be taken out of the contacts.
    """

    accepted: list[QueuedRow]
    updated: list[QueuedRow]
    finals: list[Final]
    attempts: list[AttemptRow]
    seen: list[Seen]
    gone: list[tuple[str, Channel, str]] = field(repr=False)
    sends: list[SendRequest]
    shows: list[SessionEvent]
    answers: list[Answer]

    def __init__(self) -> None:  # by hand: nine default factories cost more than an event's rules
        self.accepted = []
        self.updated = []
        self.finals = []
        self.attempts = []
        self.seen = []
        self.gone = []
        self.sends = []
        self.shows = []
        self.answers = []

    def add(self, further: Changes) -> None:
        """What comes after it."""
        self.accepted += further.accepted
        self.updated += further.updated
        self.finals += further.finals
        self.attempts += further.attempts
        self.seen += further.seen
        self.gone += further.gone
        self.sends += further.sends
        self.shows += further.shows
        self.answers += further.answers
