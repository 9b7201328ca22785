"""Delivery of all events that are not final: inputs by key and user, which `state_machine` turns into transitions.

Pure: no I/O, no clock; all times are the wall clock's, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile
from operator import itemgetter

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.delivery.changes import NEVER, DeliveryChanges, QueuedRow, Seen
from dexorder_gateway.events.delivery.channel_policy import ChannelPolicy, ContactsCache, DeliverySettings
from dexorder_gateway.events.delivery.decision import MAX_EVENTS, Decision, ProviderCall, Scheduler, if_pending
from dexorder_gateway.events.delivery.pending_events import PendingEvent, PendingEvents
from dexorder_gateway.events.delivery.provider_limits import Provider
from dexorder_gateway.events.delivery.state_machine import StateMachine
from dexorder_gateway.events.delivery.timers import Timers
from dexorder_gateway.events.model import Contacts, Event, EventKey, EventMessage, Result, no_contact


class EventDelivery:
    """All pending events. One owner, one thread.

    Args:
        contacts: Read at each attempt.
        reachable: Returns why a provider's channel can't be used with these contacts; empty where it can.
        max_events: Events that one call moves; `due` moves the others.
    """

    def __init__(
        self,
        settings: DeliverySettings,
        contacts: ContactsCache,
        *,
        render: Callable[[Event], EventMessage],
        reachable: Callable[[Channel, Contacts], str] = no_contact,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._render = render
        self._max_events = max_events
        self._contacts = contacts
        self._events = PendingEvents()
        timers: Timers[PendingEvent | Provider[PendingEvent]] = Timers()
        self._scheduler = Scheduler(timers)
        policy = ChannelPolicy(settings, contacts, reachable)
        self._machine = StateMachine(settings, contacts, policy, self._events, timers, self._scheduler)
        self._calls: dict[tuple[EventKey, int], ProviderCall] = {}
        self._open_calls: dict[tuple[str, Channel], ProviderCall] = {}

    def queued(self, key: EventKey) -> QueuedRow | None:
        """Return an event's present row; None where it is final or not known."""
        pending = self._events.by_key.get(key)
        return pending.row() if pending else None

    def newest(self, user_id: str) -> int:
        """Return the last position in the log of a user's sessions, 0 before the first event."""
        return self._events.sequences.get(user_id, 0)

    def next_due_ns(self) -> int | None:
        """Return when `due` has something to do, unless another call changes that; None for never."""
        return self._scheduler.next_ns()

    @property
    def unfinished(self) -> bool:
        """Return whether the last calls have more effects that belong to them: `due` continues them."""
        return self._scheduler.unfinished

    def restore(
        self,
        rows: Iterable[QueuedRow],
        sequences: Mapping[str, int],
        pauses: Iterable[tuple[str, Channel, int]] = (),
        *,
        now_ns: int,
    ) -> DeliveryChanges:
        """Continue after a start. To be called first, and once; no session is open.

        Calls that were under way are made again. Events without a due time are advanced, as settings may have changed.
        New positions in the logs are after the microseconds of the clock, so after all that were given before, even if
        the file is an older copy that lacks some of them.

        Args:
            rows: In the order in which the events were accepted.
            sequences: Last position in the log of each user's sessions that was ever given to an event, whether
                queued, final or forgotten.
            pauses: User, channel, and until when a provider asked not to be called there.
        """
        for user_id, channel, until_ns in pauses:
            self._machine.pause(channel, self._contacts.contacts(user_id), until_ns)
        self._events.sequences.update(sequences)
        self._events.start = now_ns // 1_000
        placed: list[tuple[int, PendingEvent]] = []
        for row in rows:
            pending = self._events.add(row)
            if pending.sequence is not None:
                placed.append((pending.sequence, pending))
            self._machine.wait(pending, now_ns if row.due_ns == NEVER else row.due_ns)
        for sequence, pending in sorted(placed, key=itemgetter(0)):
            self._events.user(pending.event.user_id).by_sequence[sequence] = pending
        return self.due(now_ns=now_ns)

    def accept(self, events: Iterable[tuple[Event, bool]], *, now_ns: int) -> DeliveryChanges:
        """Accept events with new keys, NORMAL or CRITICAL, in this order; soft NORMAL ones wait for the digest."""
        decision = self._begin(now_ns)
        for event, soft in events:
            self._machine.accept(event, soft, decision)
        return self._end(decision)

    def finished(self, key: EventKey, number: int, result: Result, *, now_ns: int) -> DeliveryChanges:
        """Handle the result of a `SendRequest`; each must come back once. An unknown number is ignored.

        If the event has become final, its attempt is closed nevertheless, and the provider's pause and missing
        destinations count.
        """
        call = self._calls.pop((key, number), None)
        if call is None:
            return DeliveryChanges()
        decision = self._begin(now_ns)
        self._machine.call_finished(call, result, decision)
        return self._end(decision)

    def received(self, user_id: str, sequence: int, *, now_ns: int) -> DeliveryChanges:
        """Handle the ack of a session; ignore it for an event that is final or unknown."""
        user = self._events.users.get(user_id)
        pending = user.by_sequence.get(sequence) if user else None
        return self._each([pending] if pending else (), self._machine.acked, now_ns)

    def received_up_to(self, user_id: str, sequence: int, *, now_ns: int) -> DeliveryChanges:
        """Handle the ack of a session for this event and all before it."""
        user = self._events.users.get(user_id)
        up_to = takewhile(lambda placed: placed[0] <= sequence, user.by_sequence.items()) if user else ()
        return self._each([pending for _, pending in up_to], self._machine.acked, now_ns)

    def seen(self, user_id: str, sequence: int, *, now_ns: int) -> DeliveryChanges:
        """Record that the user has seen an event, which implies an ack."""
        changes = self.received(user_id, sequence, now_ns=now_ns)
        if 1 <= sequence <= self.newest(user_id):
            changes.seen.append(Seen(user_id, sequence, now_ns))
        return changes

    def session_opened(self, user_id: str, *, now_ns: int) -> DeliveryChanges:
        """Show a user's first session the pending events that may be shown, in the order of the log."""
        user = self._events.user(user_id)
        if user.open:
            return DeliveryChanges()
        user.open = True
        others = (pending for pending in user.pending if pending.sequence is None)
        return self._each([*user.by_sequence.values(), *others], self._machine.show, now_ns)

    def session_closed(self, user_id: str) -> None:
        """Record that a user's last session is closed. A pending ack may still come through the next one."""
        user = self._events.users.get(user_id)
        if user:
            user.open = False
            self._events.forget(user)

    def user_active(self, user_id: str, channel: Channel, until_ns: int, *, now_ns: int) -> DeliveryChanges:
        """Continue events that ended their round without the user on this channel. `ContactsCache` has the report."""
        events = self._events.of_user(user_id) if until_ns > now_ns else ()
        return self._each(events, partial(self._machine.user_active, channel), now_ns)

    def contacts_changed(self, user_id: str, *, now_ns: int) -> DeliveryChanges:
        """Drop the refusals of a user's events and start the next rounds. `ContactsCache` has the contacts.

        Not to be called where a destination was only removed because it no longer exists.
        """
        return self._each(self._events.of_user(user_id), self._machine.contacts_changed, now_ns)

    def due(self, *, now_ns: int) -> DeliveryChanges:
        """Do a portion of the work that is due; if more is left, `next_due_ns` is not after ``now_ns``."""
        decision = self._begin(now_ns)
        self._scheduler.run(decision, self._machine.wake)
        return self._end(decision)

    def _each(
        self, events: Iterable[PendingEvent], action: Callable[[PendingEvent, Decision], None], now_ns: int
    ) -> DeliveryChanges:
        decision = self._begin(now_ns)
        self._scheduler.each(events, if_pending(action), decision)
        return self._end(decision)

    def _begin(self, now_ns: int) -> Decision:
        return Decision(now_ns, self._open_calls, left=self._max_events)

    def _end(self, decision: Decision) -> DeliveryChanges:
        if not self._scheduler.unfinished:  # else more events may join the same message
            decision.calls += self._open_calls.values()
            self._open_calls.clear()
        for call in decision.calls:
            request = call.request(self._render)
            self._calls[request.key, request.number] = call
            decision.changes.sends.append(request)
        return decision.finish()
