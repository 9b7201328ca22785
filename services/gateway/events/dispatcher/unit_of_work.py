"""What one turn of the dispatcher gathers: rows to write together, and what follows from them. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.common.model.user_events import Channel, Status
from services.gateway.events.delivery.changes import Changes, SendRequest, SessionEvent
from services.gateway.events.ingress.acks import Ack, PendingAcks, ReplyTo, final_ack
from services.gateway.events.model import Contacts, Event, EventKey
from services.gateway.events.store.records import TransientEvent


@dataclass(slots=True)
class AfterCommit:
    """What is to be done once the turn is on disk.

    Attributes:
        acks: In the order in which the copies came, then those of what became final meanwhile.
        done: Futures of the event loop and what they are told: a value or an error.
        opened: Topics of users whose first session opened; ``closed`` of those whose last one closed.
    """

    acks: list[tuple[ReplyTo, Ack]] = field(default_factory=list)
    sends: Sequence[SendRequest] = ()
    shows: Sequence[SessionEvent] = ()
    informed: list[TransientEvent] = field(default_factory=list)
    done: list[tuple[asyncio.Future[Any], Any]] = field(default_factory=list)
    opened: list[bytes] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class UnitOfWork:
    """A turn under way.

    Attributes:
        new: Accepted events that the delivery rules are still to hear of, each with whether it is soft.
        bodies: Of the events that were accepted in it: a repeat may be in it too.
        contacts: Rows to write; ``presence`` likewise, until when.
    """

    now_ns: int
    changes: Changes = field(default_factory=Changes)
    after_commit: AfterCommit = field(default_factory=AfterCommit)
    new: list[tuple[Event, bool]] = field(default_factory=list)
    bodies: dict[EventKey, bytes] = field(default_factory=dict)
    contacts: dict[str, Contacts] = field(default_factory=dict)
    presence: dict[tuple[str, Channel], int] = field(default_factory=dict)
    _replies: list[tuple[ReplyTo, EventKey | Ack]] = field(default_factory=list)

    def reply(self, reply_to: ReplyTo | None, ack: Ack) -> None:
        """Answer a copy with this."""
        if reply_to is not None:
            self._replies.append((reply_to, ack))

    def reply_state(self, reply_to: ReplyTo | None, key: EventKey) -> None:
        """Answer a copy with the event's state at the end of the turn: one that ends in it gets one ack, not two."""
        if reply_to is not None:
            self._replies.append((reply_to, key))

    def add(self, changes: Changes) -> None:
        """What the delivery rules want."""
        self.changes.add(changes)

    @property
    def writes(self) -> bool:
        """Whether it has any row."""
        rows = self.changes
        return bool(
            rows.accepted or rows.updated or rows.finals or rows.attempts or rows.seen or self.contacts or self.presence
        )

    def end(self, pending_acks: PendingAcks) -> AfterCommit:
        """What follows, now that it is on disk."""
        after_commit, changes = self.after_commit, self.changes
        finals = {final.key: final for final in changes.finals}
        for reply_to, reply in self._replies:
            if isinstance(reply, Ack):
                ack = reply
            else:
                final = finals.get(reply)
                ack = final_ack(final) if final else Ack(reply.event_id, Status.QUEUED)
            after_commit.acks.append((reply_to, ack))
        told = {reply for _, reply in self._replies} if changes.answers else set()
        for answer in changes.answers:
            waiting = pending_acks.done(answer.final.key)
            if waiting is not None and answer.final.key not in told:
                after_commit.acks.append((waiting, final_ack(answer.final)))
        after_commit.sends = changes.sends
        after_commit.shows = changes.shows
        return after_commit
