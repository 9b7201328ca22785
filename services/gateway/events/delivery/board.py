"""All live events, and the moves that each of them can make. Pure."""

from __future__ import annotations

from services.gateway.events.delivery.changes import NEVER, Answer, Final, Live
from services.gateway.events.delivery.decision import Step
from services.gateway.events.delivery.pending_events import Item, User
from services.gateway.events.delivery.provider_limits import Lane
from services.gateway.events.delivery.timers import Timers
from services.gateway.events.model import Channel, EventKey, Status


class Board:
    """Events by key, by user and by place in the user's log, and when each is due."""

    def __init__(self) -> None:
        self.items: dict[EventKey, Item] = {}
        self.users: dict[str, User] = {}
        self.sequences: dict[str, int] = {}
        self.timers: Timers[Item | Lane[Item]] = Timers()

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

    def add(self, live: Live) -> Item:
        """One more event."""
        item = self.items[live.event.key] = Item(live)
        self.user(live.event.user_id).items[item] = None
        return item

    def place(self, item: Item, step: Step) -> None:
        """Give it the next place in the log of its user's sessions."""
        user_id = item.event.user_id
        item.sequence = self.sequences[user_id] = self.sequences.get(user_id, 0) + 1
        self.user(user_id).by_sequence[item.sequence] = item
        step.touched[item] = None

    def wait(self, item: Item, due_ns: int) -> None:
        """Until then, or until its time is over."""
        item.due_ns = due_ns
        self._set_timer(item, due_ns if item.expires_ns is None else min(due_ns, item.expires_ns))

    def wait_in_lane(self, item: Item, lane: Lane[Item], now_ns: int) -> None:
        """Until the lane takes it, or until its time is over."""
        item.lane = lane
        lane.wait(item, critical=item.critical)
        item.due_ns = max(now_ns, lane.blocked_until_ns)
        self._set_timer(item, NEVER if item.expires_ns is None else item.expires_ns)

    def _set_timer(self, item: Item, at_ns: int) -> None:
        if at_ns == NEVER:
            self.timers.cancel(item)
        else:
            self.timers.set(item, at_ns)

    def wait_for_ack(self, item: Item, until_ns: int, step: Step) -> None:
        """It is before the user's sessions: until then one may say that it has it."""
        step.begun(item, Channel.WEB, item.shown_ns)
        item.waits_for_ack = True
        self.wait(item, until_ns)

    def end_wait_for_ack(self, item: Item, outcome: str, ack_ns: int, step: Step) -> None:
        """The ack came, or did not."""
        item.waits_for_ack = False
        step.ended(item, item.tries, Channel.WEB, item.due_ns - ack_ns, outcome)

    def final(self, item: Item, status: Status, via: Channel | None, error: str, step: Step) -> None:
        """The event's end. A call that is under way ends later, and changes nothing of it."""
        item.done = True
        self.timers.cancel(item)
        del self.items[item.event.key]
        user = self.user(item.event.user_id)
        del user.items[item]
        if item.sequence is not None:
            del user.by_sequence[item.sequence]
        self.forget(user)
        final = Final(item.event.key, status, via, error, step.now_ns)
        step.changes.finals.append(final)
        step.changes.answers.append(Answer(final))
