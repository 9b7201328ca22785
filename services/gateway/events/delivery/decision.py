"""What one call of the delivery rules has decided so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.common.model.user_events import Channel
from services.gateway.events.delivery.changes import AttemptRow, Changes, SessionEvent
from services.gateway.events.delivery.pending_events import PendingEvent, ProviderCall
from services.gateway.events.delivery.provider_limits import Provider
from services.gateway.events.model import Contacts

AT_ONCE = 100


@dataclass(slots=True)
class Decision:
    """Collects `Changes`.

    Attributes:
        touched: Items whose rows may differ from those on disk.
        open_calls: Calls that more events may join, by user and channel; earlier steps may have begun them.
        calls: The others that begin.
        left: How many more events it may go on with; the others wait for the next step.
    """

    now_ns: int
    open_calls: dict[tuple[str, Channel], ProviderCall] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    touched: dict[PendingEvent, None] = field(default_factory=dict)
    calls: list[ProviderCall] = field(default_factory=list)
    left: int = AT_ONCE

    def begun(self, pending: PendingEvent, channel: Channel, started_ns: int) -> int:
        """One more try; its number."""
        pending.tries += 1
        self.changes.attempts.append(AttemptRow(pending.event.key, pending.tries, channel, started_ns))
        return pending.tries

    def ended(
        self,
        pending: PendingEvent,
        number: int,
        channel: Channel,
        started_ns: int,
        outcome: str,
        retry_at_ns: int | None = None,
    ) -> None:
        """What came of a try."""
        row = AttemptRow(pending.event.key, number, channel, started_ns, self.now_ns, outcome, retry_at_ns)
        self.changes.attempts.append(row)

    def passed(self, pending: PendingEvent, channel: Channel, started_ns: int, outcome: str) -> None:
        """One more try, whose outcome is known."""
        pending.tries += 1
        self.ended(pending, pending.tries, channel, started_ns, outcome)

    def call(
        self, user_id: str, channel: Channel, contacts: Contacts, provider: Provider[PendingEvent], *, alone: bool
    ) -> ProviderCall:
        """One more call, which others of the user may join but where it goes ``alone``; its members are to come."""
        call = ProviderCall(user_id, channel, contacts, provider, self.now_ns, [])
        provider.under_way += 1
        if alone:
            self.calls.append(call)
        else:
            self.open_calls[user_id, channel] = call
        return call

    def show(self, pending: PendingEvent) -> None:
        """Before the open sessions of its user."""
        assert pending.sequence is not None
        pending.shown_ns = self.now_ns
        self.changes.shows.append(SessionEvent(pending.event.user_id, pending.sequence, pending.event))

    def finish(self) -> Changes:
        """All of it: rows of what has changed and is not new are written again."""
        for pending in self.touched:
            row = pending.row()
            if not pending.done and row != pending.saved:
                pending.saved = row
                self.changes.updated.append(row)
        return self.changes
