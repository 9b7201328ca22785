"""Which channel an event takes next, and when. Pure rules: no I/O, no clock; all times are the wall's, nanoseconds.

An event goes through its channels in order: a session is given some seconds to say that it has it, a provider is
called. When all are through, the round begins anew after a pause: a NORMAL event until its time is over, a CRITICAL one
for ever. What can't go on of itself (nobody is there, nobody is active) waits for the session, the report or the
contact that it lacks. The docstrings of ``changes.py`` say what comes of each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from operator import itemgetter

from services.common.model.user_events import Channel, Priority
from services.gateway.events.delivery.board import Board
from services.gateway.events.delivery.changes import NEVER, THROUGH, Changes, QueuedRow, Seen, SendRequest
from services.gateway.events.delivery.channel_policy import ChannelPolicy
from services.gateway.events.delivery.contacts_cache import People, no_contact
from services.gateway.events.delivery.decision import AT_ONCE, Decision
from services.gateway.events.delivery.digest import digest
from services.gateway.events.delivery.escalation import Escalation
from services.gateway.events.delivery.pending_events import PendingEvent, ProviderCall
from services.gateway.events.delivery.provider_limits import ProviderLimits
from services.gateway.events.delivery.rules import DeliverySettings
from services.gateway.events.delivery.scheduler import Scheduler, if_live
from services.gateway.events.model import Contacts, Event, EventKey, Message, Result


class Delivery:
    """All events that are not final. One owner, one thread.

    Args:
        people: Asked at each attempt.
        render: How an event reads.
        reachable: Why a channel outside of sessions can't be used with these contacts; empty where it can.
        at_once: With how many events one call goes on; with the others `due` does.
    """

    def __init__(
        self,
        rules: DeliverySettings,
        people: People,
        *,
        render: Callable[[Event], Message],
        reachable: Callable[[Channel, Contacts], str] = no_contact,
        at_once: int = AT_ONCE,
    ) -> None:
        self._rules = rules
        self._render = render
        self._at_once = at_once
        self._policy = ChannelPolicy(rules, people, reachable)
        self._people = people
        self._limits: ProviderLimits[PendingEvent] = ProviderLimits(rules.max_concurrent_sends)
        self._board = Board()
        self._scheduler = Scheduler(self._board.timers)
        self._escalation = Escalation(rules, people, self._policy, self._board, self._limits, self._scheduler)
        self._calls: dict[tuple[EventKey, int], ProviderCall] = {}
        self._open_calls: dict[tuple[str, Channel], ProviderCall] = {}

    def live(self, key: EventKey) -> QueuedRow | None:
        """An event as it is now; None where it is final or not known."""
        pending = self._board.items.get(key)
        return pending.row() if pending else None

    def next_due_ns(self) -> int | None:
        """When `due` has something to do, if nothing else is called before; None for never."""
        return self._scheduler.next_ns()

    @property
    def unfinished(self) -> bool:
        """Whether what follows from the last calls is only begun: `due` goes on with it."""
        return self._scheduler.unfinished

    def restore(
        self,
        live: Iterable[QueuedRow],
        sequences: Mapping[str, int],
        pauses: Iterable[tuple[str, Channel, int]] = (),
        *,
        now_ns: int,
    ) -> Changes:
        """Go on after a start. To be called first, and once; no session is open.

        Calls that were under way are made again. What waited for something to change is looked at: the settings may
        have.

        Args:
            live: In the order in which they were accepted.
            sequences: The last place in the log of each user's sessions that was ever given to an event, be it live,
                final or forgotten.
            pauses: User, channel, and until when a provider asked not to be called there.
        """
        board = self._board
        for user_id, channel, until_ns in pauses:
            provider = self._limits.of(channel, self._people.contacts(user_id))
            provider.blocked_until_ns = max(provider.blocked_until_ns, until_ns)
            board.timers.set(provider, provider.blocked_until_ns)
        board.sequences.update(sequences)
        placed: list[tuple[int, PendingEvent]] = []
        for row in live:
            pending = board.add(row)
            if pending.sequence is not None:
                placed.append((pending.sequence, pending))
            board.wait(pending, now_ns if row.due_ns == NEVER else row.due_ns)
        for sequence, pending in sorted(placed, key=itemgetter(0)):
            board.user(pending.event.user_id).by_sequence[sequence] = pending
        return self.due(now_ns=now_ns)

    def accept(self, events: Iterable[tuple[Event, bool]], *, now_ns: int) -> Changes:
        """Events whose keys are new, NORMAL or CRITICAL, in this order.

        Args:
            events: Each with whether it is above its container's soft quota: a NORMAL one then waits for others, to go
                out in one message.
        """
        decision = self._decision(now_ns)
        for event, soft in events:
            self._accept(event, soft, decision)
        return self._finish(decision)

    def _accept(self, event: Event, soft: bool, decision: Decision) -> None:
        now_ns = decision.now_ns
        normal = event.priority is Priority.NORMAL
        expires_ns = now_ns + self._rules.normal_ttl_ns if normal else None
        pending = self._board.add(QueuedRow(event, now_ns, expires_ns, due_ns=now_ns, soft=soft and normal))
        if pending.soft:
            user = self._board.user(event.user_id)
            if user.digest_ns <= now_ns:
                user.digest_ns = now_ns + self._rules.digest_ns
            self._board.wait(pending, user.digest_ns)
        else:
            self._escalation.go_on(pending, decision)
        pending.saved = pending.row()
        decision.changes.accepted.append(pending.saved)
        decision.touched.pop(pending, None)

    def finished(self, key: EventKey, number: int, result: Result, *, now_ns: int) -> Changes:
        """What came of a `SendOut`; each must come back once. A number that is not under way changes nothing.

        Where the event is final in the meantime, its attempt is closed all the same, and what the provider said of
        its lane and of destinations holds.
        """
        call = self._calls.pop((key, number), None)
        if call is None:
            return Changes()
        decision = self._decision(now_ns)
        self._escalation.finished(call, result, decision)
        return self._finish(decision)

    def received(self, user_id: str, sequence: int, *, now_ns: int) -> Changes:
        """A session has it. For one that is final, or was never there, nothing changes."""
        user = self._board.users.get(user_id)
        pending = user.by_sequence.get(sequence) if user else None
        return self._received([pending] if pending else [], now_ns)

    def received_up_to(self, user_id: str, sequence: int, *, now_ns: int) -> Changes:
        """A session has this one and all before it."""
        user = self._board.users.get(user_id)
        upto = takewhile(lambda placed: placed[0] <= sequence, user.by_sequence.items()) if user else ()
        return self._received([pending for _, pending in upto], now_ns)

    def _received(self, items: Iterable[PendingEvent], now_ns: int) -> Changes:
        decision = self._decision(now_ns)
        self._scheduler.each(items, if_live(self._escalation.received), decision)
        return self._finish(decision)

    def seen(self, user_id: str, sequence: int, *, now_ns: int) -> Changes:
        """The user has seen it, so a session has it."""
        changes = self.received(user_id, sequence, now_ns=now_ns)
        if 1 <= sequence <= self._board.sequences.get(user_id, 0):
            changes.seen.append(Seen(user_id, sequence, now_ns))
        return changes

    def session_opened(self, user_id: str, *, now_ns: int) -> Changes:
        """A user's first session is open: it is shown what is live and may be, in the order of the log."""
        decision = self._decision(now_ns)
        user = self._board.user(user_id)
        if user.open:
            return decision.changes
        user.open = True

        def show(pending: PendingEvent, decision: Decision) -> None:
            if user.open and pending.in_sessions and not pending.expired(now_ns):
                if pending.sequence is None:
                    self._board.place(pending, decision)
                decision.show(pending)

        placed, others = user.by_sequence.values(), (pending for pending in user.items if pending.sequence is None)
        self._scheduler.each([*placed, *others], if_live(show), decision)
        return self._finish(decision)

    def session_closed(self, user_id: str, *, now_ns: int) -> Changes:
        """A user's last session is closed. An ack that is waited for may still come through the next one."""
        user = self._board.users.get(user_id)
        if user:
            user.open = False
            self._board.forget(user)
        return Changes()

    def reached(self, user_id: str, channel: Channel, until_ns: int, *, now_ns: int) -> Changes:
        """The user was reported active on a channel, and `People` knows: what is through its round goes on there."""
        decision = self._decision(now_ns)

        def go_on(pending: PendingEvent, decision: Decision) -> None:
            ways = self._policy.ways(pending.event, self._people.contacts(user_id))
            channel_index = next(
                (n for n, way in enumerate(ways) if way.channel is channel and way.only_if_active), None
            )
            if channel_index is not None and pending.channel_index == THROUGH:
                pending.channel_index = channel_index
                self._escalation.go_on(pending, decision)

        self._scheduler.each(self._items(user_id) if until_ns > now_ns else (), if_live(go_on), decision)
        return self._finish(decision)

    def contacts_changed(self, user_id: str, *, now_ns: int) -> Changes:
        """The user's contacts are new, and `People` knows: no refusal holds, what is through its round begins anew.

        Not to be called where a destination was only taken out because it is gone.
        """
        decision = self._decision(now_ns)

        def begin_anew(pending: PendingEvent, decision: Decision) -> None:
            pending.refused = ()
            decision.touched[pending] = None
            if pending.channel_index == THROUGH:
                pending.channel_index = 0
                self._escalation.go_on(pending, decision)

        self._scheduler.each(self._items(user_id), if_live(begin_anew), decision)
        return self._finish(decision)

    def _items(self, user_id: str) -> Iterable[PendingEvent]:
        user = self._board.users.get(user_id)
        return user.items if user else ()

    def due(self, *, now_ns: int) -> Changes:
        """Do some of what is due; where there is more, `next_due_ns` is not after ``now_ns``."""
        decision = self._decision(now_ns)
        self._scheduler.run(decision, self._escalation.wake)
        return self._finish(decision)

    def _decision(self, now_ns: int) -> Decision:
        return Decision(now_ns, self._open_calls, left=self._at_once)

    def _finish(self, decision: Decision) -> Changes:
        if not self._scheduler.unfinished:  # else there may be more to go out in the same message
            decision.calls += self._open_calls.values()
            self._open_calls.clear()
        for call in decision.calls:
            leader, number = call.members[0]
            self._calls[leader.event.key, number] = call
            message = digest([pending.event for pending, _ in call.members], self._render)
            send = SendRequest(leader.event.key, number, call.channel, call.user_id, message, call.contacts)
            decision.changes.sends.append(send)
        return decision.finish()
