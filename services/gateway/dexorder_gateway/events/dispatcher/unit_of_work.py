"""Rows that one transaction commits together, and the effects that follow from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import DeliveryChanges, SendRequest, SessionEvent
from dexorder_gateway.events.model import Ack, Contacts, Event, EventKey, ReplyTo, TransientEvent


@dataclass(slots=True)
class AfterCommit:
    """Effects to carry out once the transaction is on disk.

    Attributes:
        acks: In the order in which the copies arrived, then for events that became final.
        resolved: Futures of the event loop, each with its value or error.
        subscribe: Topics of users with a first session.
        unsubscribe: Topics of users without a session.
    """

    acks: list[tuple[ReplyTo, Ack]] = field(default_factory=list)
    sends: Sequence[SendRequest] = ()
    session_events: Sequence[SessionEvent] = ()
    transient: list[TransientEvent] = field(default_factory=list)
    resolved: list[tuple[asyncio.Future[Any], Any]] = field(default_factory=list)
    subscribe: list[bytes] = field(default_factory=list)
    unsubscribe: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class UnitOfWork:
    """Transaction that is being collected.

    Attributes:
        new: Accepted events that the delivery rules have not seen yet, each with whether it is soft.
        bodies: Bodies of the events that it accepts: it may contain their duplicates, too.
    """

    now_ns: int
    changes: DeliveryChanges = field(default_factory=DeliveryChanges)
    after_commit: AfterCommit = field(default_factory=AfterCommit)
    new: list[tuple[Event, bool]] = field(default_factory=list)
    bodies: dict[EventKey, bytes] = field(default_factory=dict)
    contacts: dict[str, Contacts] = field(default_factory=dict)
    presence: dict[tuple[str, Channel], int] = field(default_factory=dict)
    _replies: list[tuple[ReplyTo, EventKey | Ack]] = field(default_factory=list)

    def reply(self, reply_to: ReplyTo | None, reply: EventKey | Ack) -> None:
        """Answer a copy with an ack, or with the event's state at the end: one that is final by then gets one ack."""
        if reply_to is not None:
            self._replies.append((reply_to, reply))

    @property
    def has_rows(self) -> bool:
        """Return whether there is anything to write."""
        rows = self.changes
        return bool(
            rows.accepted or rows.updated or rows.finals or rows.attempts or rows.seen or self.contacts or self.presence
        )

    def end(self, pending_acks: dict[EventKey, ReplyTo]) -> AfterCommit:
        """Return the effects, now that the rows are on disk."""
        effects, changes = self.after_commit, self.changes
        finals = {final.key: final for final in changes.finals}
        for reply_to, reply in self._replies:
            if isinstance(reply, Ack):
                ack = reply
            else:
                final = finals.get(reply)
                ack = final.ack() if final else Ack(reply.event_id, Status.QUEUED)
            effects.acks.append((reply_to, ack))
        answered = {reply for _, reply in self._replies} if finals else set()
        for key, final in finals.items():
            waiting = pending_acks.pop(key, None)
            if waiting is not None and key not in answered:
                effects.acks.append((waiting, final.ack()))
        effects.sends = changes.sends
        effects.session_events = changes.session_events
        return effects
