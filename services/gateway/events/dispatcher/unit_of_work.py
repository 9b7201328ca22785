"""What one turn of the courier gathers: rows to write together, and what follows from them. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.gateway.events.delivery.changes import Changes, SendOut, Show
from services.gateway.events.ingress.acks import Ack, Asker, Askers, final_ack
from services.gateway.events.model import Channel, Contacts, Event, EventKey, Status
from services.gateway.events.store.records import Informed


@dataclass(slots=True)
class Effects:
    """What is to be done once the turn is on disk.

    Attributes:
        acks: In the order in which the copies came, then those of what became final meanwhile.
        done: Futures of the event loop and what they are told: a value or an error.
        opened: Topics of users whose first session opened; ``closed`` of those whose last one closed.
    """

    acks: list[tuple[Asker, Ack]] = field(default_factory=list)
    sends: Sequence[SendOut] = ()
    shows: Sequence[Show] = ()
    informed: list[Informed] = field(default_factory=list)
    done: list[tuple[asyncio.Future[Any], Any]] = field(default_factory=list)
    opened: list[bytes] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Turn:
    """A turn under way.

    Attributes:
        new: Accepted events that the delivery rules are still to hear of, each with whether it is soft.
        bodies: Of the events that were accepted in it: a repeat may be in it too.
        contacts: Rows to write; ``presence`` likewise, until when.
    """

    now_ns: int
    changes: Changes = field(default_factory=Changes)
    effects: Effects = field(default_factory=Effects)
    new: list[tuple[Event, bool]] = field(default_factory=list)
    bodies: dict[EventKey, bytes] = field(default_factory=dict)
    contacts: dict[str, Contacts] = field(default_factory=dict)
    presence: dict[tuple[str, Channel], int] = field(default_factory=dict)
    _replies: list[tuple[Asker, EventKey | Ack]] = field(default_factory=list)

    def reply(self, asker: Asker | None, ack: Ack) -> None:
        """Answer a copy with this."""
        if asker is not None:
            self._replies.append((asker, ack))

    def reply_state(self, asker: Asker | None, key: EventKey) -> None:
        """Answer a copy with the event's state at the end of the turn: one that ends in it gets one ack, not two."""
        if asker is not None:
            self._replies.append((asker, key))

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

    def end(self, askers: Askers) -> Effects:
        """What follows, now that it is on disk."""
        effects, changes = self.effects, self.changes
        finals = {final.key: final for final in changes.finals}
        for asker, reply in self._replies:
            if isinstance(reply, Ack):
                ack = reply
            else:
                final = finals.get(reply)
                ack = final_ack(final) if final else Ack(reply.event_id, Status.QUEUED)
            effects.acks.append((asker, ack))
        told = {reply for _, reply in self._replies} if changes.answers else set()
        for answer in changes.answers:
            waiting = askers.done(answer.final.key)
            if waiting is not None and answer.final.key not in told:
                effects.acks.append((waiting, final_ack(answer.final)))
        effects.sends = changes.sends
        effects.shows = changes.shows
        return effects
