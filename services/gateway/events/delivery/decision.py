"""What one call of the delivery rules has decided so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.gateway.events.delivery.changes import AttemptRow, Changes, Show
from services.gateway.events.delivery.pending_events import Item, Try
from services.gateway.events.delivery.provider_limits import Lane
from services.gateway.events.model import Channel, Contacts

AT_ONCE = 100


@dataclass(slots=True)
class Step:
    """Collects `Changes`.

    Attributes:
        touched: Items whose rows may differ from those on disk.
        open_calls: Calls that more events may join, by user and channel; earlier steps may have begun them.
        calls: The others that begin.
        left: How many more events it may go on with; the others wait for the next step.
    """

    now_ns: int
    open_calls: dict[tuple[str, Channel], Try] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    touched: dict[Item, None] = field(default_factory=dict)
    calls: list[Try] = field(default_factory=list)
    left: int = AT_ONCE

    def begun(self, item: Item, channel: Channel, started_ns: int) -> int:
        """One more try; its number."""
        item.tries += 1
        self.changes.attempts.append(AttemptRow(item.event.key, item.tries, channel, started_ns))
        return item.tries

    def ended(
        self, item: Item, number: int, channel: Channel, started_ns: int, outcome: str, retry_at_ns: int | None = None
    ) -> None:
        """What came of a try."""
        row = AttemptRow(item.event.key, number, channel, started_ns, self.now_ns, outcome, retry_at_ns)
        self.changes.attempts.append(row)

    def passed(self, item: Item, channel: Channel, started_ns: int, outcome: str) -> None:
        """One more try, whose outcome is known."""
        item.tries += 1
        self.ended(item, item.tries, channel, started_ns, outcome)

    def call(self, user_id: str, channel: Channel, contacts: Contacts, lane: Lane[Item], *, alone: bool) -> Try:
        """One more call, which others of the user may join but where it goes ``alone``; its members are to come."""
        call = Try(user_id, channel, contacts, lane, self.now_ns, [])
        lane.under_way += 1
        if alone:
            self.calls.append(call)
        else:
            self.open_calls[user_id, channel] = call
        return call

    def show(self, item: Item) -> None:
        """Before the open sessions of its user."""
        assert item.sequence is not None
        item.shown_ns = self.now_ns
        self.changes.shows.append(Show(item.event.user_id, item.sequence, item.event))

    def finish(self) -> Changes:
        """All of it: rows of what has changed and is not new are written again."""
        for item in self.touched:
            row = item.row()
            if not item.done and row != item.saved:
                item.saved = row
                self.changes.updated.append(row)
        return self.changes
