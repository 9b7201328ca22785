"""Decision of the delivery rules on one input, while it is made, and the work that is left to later ones. Pure.

Containers wait for their acks, so a decision moves a limited number of events.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.delivery.changes import AttemptRow, DeliveryChanges, SendRequest, SessionEvent
from dexorder_gateway.events.delivery.pending_events import PendingEvent
from dexorder_gateway.events.delivery.provider_limits import Provider
from dexorder_gateway.events.delivery.timers import Timers
from dexorder_gateway.events.model import Contacts, Event, EventMessage

T = TypeVar("T")
MAX_EVENTS = 100
"""Events that one decision moves; the others wait for the next one."""
MAX_DIGEST_LINES = 50


@dataclass(slots=True)
class ProviderCall:
    """Call of a provider, for one event or for several in one message.

    Members are events with the numbers of their attempts; the first one's key and number identify the call.
    """

    user_id: str
    channel: Channel
    contacts: Contacts
    started_ns: int
    members: list[tuple[PendingEvent, int]]

    def request(self, render: Callable[[Event], EventMessage]) -> SendRequest:
        """Return the call as the dispatcher carries it out."""
        leader, number = self.members[0]
        message = digest([pending.event for pending, _ in self.members], render)
        return SendRequest(leader.event.key, number, self.channel, self.user_id, message, self.contacts)


@dataclass(slots=True)
class Decision:
    """Collects `DeliveryChanges`.

    Attributes:
        open_calls: Calls that more events may join, by user and channel; earlier decisions may have started them.
        calls: Other calls that start.
        touched: Events with rows that may differ from the disk.
        left: Number of events that it may still move.
    """

    now_ns: int
    open_calls: dict[tuple[str, Channel], ProviderCall] = field(default_factory=dict)
    changes: DeliveryChanges = field(default_factory=DeliveryChanges)
    touched: dict[PendingEvent, None] = field(default_factory=dict)
    calls: list[ProviderCall] = field(default_factory=list)
    left: int = MAX_EVENTS

    def begin_attempt(self, pending: PendingEvent, channel: Channel, started_ns: int) -> int:
        """Record the start of an attempt; return its number."""
        pending.attempts += 1
        self.changes.attempts.append(AttemptRow(pending.event.key, pending.attempts, channel, started_ns))
        return pending.attempts

    def end_attempt(
        self,
        pending: PendingEvent,
        number: int,
        channel: Channel,
        started_ns: int,
        outcome: str,
        retry_at_ns: int | None = None,
    ) -> None:
        """Record the outcome of an attempt."""
        row = AttemptRow(pending.event.key, number, channel, started_ns, self.now_ns, outcome, retry_at_ns)
        self.changes.attempts.append(row)

    def add_attempt(self, pending: PendingEvent, channel: Channel, started_ns: int, outcome: str) -> None:
        """Record an attempt with its outcome."""
        pending.attempts += 1
        self.end_attempt(pending, pending.attempts, channel, started_ns, outcome)

    def begin_call(self, user_id: str, channel: Channel, contacts: Contacts, *, alone: bool) -> ProviderCall:
        """Start a call without members yet. Other events of the user may join unless it is ``alone``."""
        call = ProviderCall(user_id, channel, contacts, self.now_ns, [])
        if alone:
            self.calls.append(call)
        else:
            self.open_calls[user_id, channel] = call
        return call

    def show(self, pending: PendingEvent) -> None:
        """Show an event to the open sessions of its user."""
        assert pending.sequence is not None
        pending.shown_ns = self.now_ns
        self.changes.session_events.append(SessionEvent(pending.event.user_id, pending.sequence, pending.event))

    def finish(self) -> DeliveryChanges:
        """Return the changes, with the rows of those events that are not new and have changed."""
        for pending in self.touched:
            row = pending.row()
            if not pending.done and row != pending.saved:
                pending.saved = row
                self.changes.updated.append(row)
        return self.changes


def digest(events: Sequence[Event], render: Callable[[Event], EventMessage]) -> EventMessage:
    """Return one message that lists the titles of the first `MAX_DIGEST_LINES` events and counts the others.

    A single event is rendered as usual.
    """
    if len(events) == 1:
        return render(events[0])
    listed = [render(event) for event in events[:MAX_DIGEST_LINES]]
    lines = [message.title for message in listed]
    if len(events) > MAX_DIGEST_LINES:
        lines.append(f"and {len(events) - MAX_DIGEST_LINES} more")
    names = (f"{event.key.container}\x00{event.key.event_id}".encode() for event in events)
    reference = hashlib.sha256(b"\x00".join(names)).hexdigest()[:32]
    newest_ms = max(event.timestamp_ms for event in events)
    return EventMessage(reference, f"{len(events)} events", "\n".join(lines), events[0].priority, newest_ms)


def if_pending(action: Callable[[PendingEvent, Decision], None]) -> Callable[[PendingEvent, Decision], None]:
    """Return the action, skipped for events that are final by then."""
    return lambda pending, decision: None if pending.done else action(pending, decision)


@dataclass(slots=True)
class _Work:
    now_ns: int
    things: deque[Any]
    action: Callable[[Any, Decision], None]

    def continue_in(self, decision: Decision) -> None:
        """Continue at the time at which the work started: events sent together are due together later."""
        decision.now_ns = self.now_ns
        while self.things and decision.left > 0:
            decision.left -= 1
            self.action(self.things.popleft(), decision)


class Scheduler:
    """Unfinished work, and timers of events and providers."""

    def __init__(self, timers: Timers[PendingEvent | Provider[PendingEvent]]) -> None:
        self._timers = timers
        self._begun: deque[_Work] = deque()
        self._together: tuple[int, int] | None = None

    @property
    def unfinished(self) -> bool:
        """Return whether work that belongs together is only partly done; `run` continues it."""
        return bool(self._begun) or self._together is not None

    def next_ns(self) -> int | None:
        """Return when the next work is due; None for never."""
        return self._begun[0].now_ns if self._begun else self._timers.next_ns()

    def each(self, things: Iterable[T], action: Callable[[T, Decision], None], decision: Decision) -> None:
        """Do something with each thing: now with as many as the decision may move, with the others in `run`."""
        work = _Work(decision.now_ns, deque(things), action)  # a copy: the actions may change the iterable
        work.continue_in(decision)
        if work.things:
            self._begun.append(work)

    def run(self, decision: Decision, wake: Callable[[PendingEvent | Provider[PendingEvent], Decision], None]) -> None:
        """Do a portion of the work that is due at the decision's time, unfinished work first."""
        now_ns = decision.now_ns
        while self._begun and decision.left > 0:
            self._begun[0].continue_in(decision)
            if not self._begun[0].things:
                self._begun.popleft()
        while decision.left > 0 and (thing := self._next(decision, now_ns)) is not None:
            wake(thing, decision)
            decision.left -= 1
        decision.now_ns = now_ns
        if self._together and self._timers.next_ns() != self._together[0]:
            self._together = None

    def _next(self, decision: Decision, now_ns: int) -> PendingEvent | Provider[PendingEvent] | None:
        """Pop a timer. All that is due at the same time gets the time at which the first of it was handled."""
        at_ns = self._timers.next_ns()
        if self._together is None or at_ns != self._together[0]:
            self._together = None if at_ns is None or at_ns > now_ns else (at_ns, now_ns)
        if self._together:
            decision.now_ns = self._together[1]
        return self._timers.pop(now_ns)
