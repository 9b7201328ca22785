"""All live events, and the moves that each of them can make. Pure."""

from __future__ import annotations

from services.common.model.user_events import Channel, Status
from services.gateway.events.delivery.changes import NEVER, Answer, Final, QueuedRow
from services.gateway.events.delivery.decision import Decision
from services.gateway.events.delivery.pending_events import PendingEvent, User
from services.gateway.events.delivery.provider_limits import Provider
from services.gateway.events.delivery.timers import Timers
from services.gateway.events.model import EventKey


class Board:
    """Events by key, by user and by place in the user's log, and when each is due."""

    def __init__(self) -> None:
        self.items: dict[EventKey, PendingEvent] = {}
        self.users: dict[str, User] = {}
        self.sequences: dict[str, int] = {}
        self.timers: Timers[PendingEvent | Provider[PendingEvent]] = Timers()

    def user(self, user_id: str) -> User:
        """A user, for as long as an event is live or a session open."""
        user = self.users.get(user_id)
        if user is None:
            user = self.users[user_id] = User(user_id)
        return user

    def forget(self, user: User) -> None:
        """Keep nothing of a user of whom there is nothing."""
        if not user.open and not user.items:
            self.users.pop(user.user_id, None)

    def add(self, live: QueuedRow) -> PendingEvent:
        """One more event."""
        pending = self.items[live.event.key] = PendingEvent(live)
        self.user(live.event.user_id).items[pending] = None
        return pending

    def place(self, pending: PendingEvent, decision: Decision) -> None:
        """Give it the next place in the log of its user's sessions."""
        user_id = pending.event.user_id
        pending.sequence = self.sequences[user_id] = self.sequences.get(user_id, 0) + 1
        self.user(user_id).by_sequence[pending.sequence] = pending
        decision.touched[pending] = None

    def wait(self, pending: PendingEvent, due_ns: int) -> None:
        """Until then, or until its time is over."""
        pending.due_ns = due_ns
        self._set_timer(pending, due_ns if pending.expires_ns is None else min(due_ns, pending.expires_ns))

    def wait_for_provider(self, pending: PendingEvent, provider: Provider[PendingEvent], now_ns: int) -> None:
        """Until the lane takes it, or until its time is over."""
        pending.provider = provider
        provider.wait(pending, critical=pending.critical)
        pending.due_ns = max(now_ns, provider.blocked_until_ns)
        self._set_timer(pending, NEVER if pending.expires_ns is None else pending.expires_ns)

    def _set_timer(self, pending: PendingEvent, at_ns: int) -> None:
        if at_ns == NEVER:
            self.timers.cancel(pending)
        else:
            self.timers.set(pending, at_ns)

    def wait_for_ack(self, pending: PendingEvent, until_ns: int, decision: Decision) -> None:
        """It is before the user's sessions: until then one may say that it has it."""
        decision.begun(pending, Channel.WEB, pending.shown_ns)
        pending.waits_for_ack = True
        self.wait(pending, until_ns)

    def end_wait_for_ack(self, pending: PendingEvent, outcome: str, ack_ns: int, decision: Decision) -> None:
        """The ack came, or did not."""
        pending.waits_for_ack = False
        decision.ended(pending, pending.tries, Channel.WEB, pending.due_ns - ack_ns, outcome)

    def final(self, pending: PendingEvent, status: Status, via: Channel | None, error: str, decision: Decision) -> None:
        """The event's end. A call that is under way ends later, and changes nothing of it."""
        pending.done = True
        self.timers.cancel(pending)
        del self.items[pending.event.key]
        user = self.user(pending.event.user_id)
        del user.items[pending]
        if pending.sequence is not None:
            del user.by_sequence[pending.sequence]
        self.forget(user)
        final = Final(pending.event.key, status, via, error, decision.now_ns)
        decision.changes.finals.append(final)
        decision.changes.answers.append(Answer(final))
