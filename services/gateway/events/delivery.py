"""Which channel an event takes next, and when. Pure rules: no I/O, no clock; all times are the wall's, nanoseconds.

An event goes through its channels in order: a session is given some seconds to say that it has it, a provider is
called. When all are through, the round begins anew after a pause: a NORMAL event until its time is over, a CRITICAL one
for ever. What can't go on of itself (nobody is there, nobody is active) waits for the session, the report or the
contact that it lacks. The docstrings of ``changes.py`` say what comes of each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, takewhile
from operator import itemgetter

from services.gateway.events.board import Board
from services.gateway.events.changes import NEVER, THROUGH, Changes, Live, Seen, SendOut
from services.gateway.events.digest import digest
from services.gateway.events.items import Item, Try
from services.gateway.events.lanes import Lane, Lanes
from services.gateway.events.model import Channel, Contacts, Event, EventKey, Later, Message, Priority, Result, Sent
from services.gateway.events.people import People, no_contact
from services.gateway.events.rules import Rules
from services.gateway.events.step import Step
from services.gateway.events.turns import Turns
from services.gateway.events.walk import Walk

DUE_AT_ONCE = 1000


class Delivery:
    """All events that are not final. One owner, one thread.

    Args:
        people: Asked at each attempt.
        render: How an event reads.
        reachable: Why a channel outside of sessions can't be used with these contacts; empty where it can.
    """

    def __init__(
        self,
        rules: Rules,
        people: People,
        *,
        render: Callable[[Event], Message],
        reachable: Callable[[Channel, Contacts], str] = no_contact,
    ) -> None:
        self._rules, self._render = rules, render
        self._turns = Turns(rules, people, reachable)
        self._people = people
        self._lanes: Lanes[Item] = Lanes(rules.sends_at_once)
        self._board = Board()
        self._walk = Walk(rules, people, self._turns, self._board, self._lanes)
        self._calls: dict[tuple[EventKey, int], Try] = {}

    def live(self, key: EventKey) -> Live | None:
        """An event as it is now; None where it is final or not known."""
        item = self._board.items.get(key)
        return item.row() if item else None

    def next_due_ns(self) -> int | None:
        """When `due` has something to do, if nothing else is called before; None for never."""
        return self._board.timers.next_ns()

    def restore(
        self, live: Iterable[Live], sequences: Mapping[str, int], pauses: Iterable[tuple[str, Channel, int]] = (), *,
        now_ns: int,
    ) -> Changes:  # fmt: skip
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
            lane = self._lanes.of(channel, self._people.contacts(user_id))
            lane.blocked_until_ns = max(lane.blocked_until_ns, until_ns)
            board.timers.set(lane, lane.blocked_until_ns)
        board.sequences.update(sequences)
        placed: list[tuple[int, Item]] = []
        for row in live:
            item = board.add(row)
            if item.sequence is not None:
                placed.append((item.sequence, item))
            board.wait(item, now_ns if row.due_ns == NEVER else row.due_ns)
        for sequence, item in sorted(placed, key=itemgetter(0)):
            board.user(item.event.user_id).by_sequence[sequence] = item
        return self.due(now_ns=now_ns)

    def accept(self, events: Iterable[tuple[Event, bool]], *, now_ns: int) -> Changes:
        """Events whose keys are new, NORMAL or CRITICAL, in this order.

        Args:
            events: Each with whether it is above its container's soft quota: a NORMAL one then waits for others, to go
                out in one message.
        """
        step = Step(now_ns)
        for event, soft in events:
            self._accept(event, soft, step)
        return self._finish(step)

    def _accept(self, event: Event, soft: bool, step: Step) -> None:
        now_ns = step.now_ns
        normal = event.priority is Priority.NORMAL
        expires_ns = now_ns + self._rules.normal_ttl_ns if normal else None
        item = self._board.add(Live(event, now_ns, expires_ns, due_ns=now_ns, soft=soft and normal))
        if item.soft:
            user = self._board.user(event.user_id)
            if user.digest_ns <= now_ns:
                user.digest_ns = now_ns + self._rules.digest_ns
            self._board.wait(item, user.digest_ns)
        else:
            self._walk.go_on(item, step)
        item.saved = item.row()
        step.changes.accepted.append(item.saved)
        step.touched.pop(item, None)

    def finished(self, key: EventKey, number: int, result: Result, *, now_ns: int) -> Changes:
        """What came of a `SendOut`; each must come back once. A number that is not under way changes nothing.

        Where the event is final in the meantime, its attempt is closed all the same, and what the provider said of
        its lane and of destinations holds.
        """
        call = self._calls.pop((key, number), None)
        if call is None:
            return Changes()
        step = Step(now_ns)
        pause_ns = _pause_ns(result)
        if pause_ns is not None:
            call.lane.blocked_until_ns = max(call.lane.blocked_until_ns, now_ns + pause_ns)
            self._board.timers.set(call.lane, call.lane.blocked_until_ns)
        if not isinstance(result, Later):
            step.changes.gone += [(call.user_id, call.channel, destination) for destination in result.gone]
        call.lane.under_way -= 1
        outcome = "sent" if isinstance(result, Sent) else result.reason
        retry_at_ns = None if pause_ns is None else now_ns + pause_ns
        for item, its_number in call.members:
            step.ended(item, its_number, call.channel, call.started_ns, outcome, retry_at_ns)
            item.under_way = False
            if not item.done:
                self._walk.tried(item, call, result, pause_ns, step)
        self._walk.release(call.lane, step)
        return self._finish(step)

    def received(self, user_id: str, sequence: int, *, now_ns: int) -> Changes:
        """A session has it. For one that is final, or was never there, nothing changes."""
        user = self._board.users.get(user_id)
        item = user.by_sequence.get(sequence) if user else None
        return self._received([item] if item else [], now_ns)

    def received_up_to(self, user_id: str, sequence: int, *, now_ns: int) -> Changes:
        """A session has this one and all before it."""
        user = self._board.users.get(user_id)
        upto = takewhile(lambda placed: placed[0] <= sequence, user.by_sequence.items()) if user else ()
        return self._received([item for _, item in upto], now_ns)

    def _received(self, items: Sequence[Item], now_ns: int) -> Changes:
        step = Step(now_ns)
        for item in items:
            self._walk.received(item, step)
        return self._finish(step)

    def seen(self, user_id: str, sequence: int, *, now_ns: int) -> Changes:
        """The user has seen it, so a session has it."""
        changes = self.received(user_id, sequence, now_ns=now_ns)
        if 1 <= sequence <= self._board.sequences.get(user_id, 0):
            changes.seen.append(Seen(user_id, sequence, now_ns))
        return changes

    def session_opened(self, user_id: str, *, now_ns: int) -> Changes:
        """A user's first session is open: it is shown what is live and may be, in the order of the log."""
        step = Step(now_ns)
        user = self._board.user(user_id)
        if user.open:
            return step.changes
        user.open = True
        for item in user.items:
            if item.in_sessions and item.sequence is None and not item.expired(now_ns):
                self._board.place(item, step)
        for item in user.by_sequence.values():
            if not item.expired(now_ns):
                step.show(item)
        return self._finish(step)

    def session_closed(self, user_id: str, *, now_ns: int) -> Changes:
        """A user's last session is closed. An ack that is waited for may still come through the next one."""
        user = self._board.users.get(user_id)
        if user:
            user.open = False
            self._board.forget(user)
        return Changes()

    def reached(self, user_id: str, channel: Channel, until_ns: int, *, now_ns: int) -> Changes:
        """The user was reported active on a channel, and `People` knows: what is through its round goes on there."""
        step = Step(now_ns)
        ways_of = self._turns.ways
        contacts = self._people.contacts(user_id)
        for item in self._through(user_id) if until_ns > now_ns else ():
            ways = ways_of(item.event, contacts)
            turn = next((n for n, way in enumerate(ways) if way.channel is channel and way.only_if_active), None)
            if turn is not None:
                item.turn = turn
                self._walk.go_on(item, step)
        return self._finish(step)

    def contacts_changed(self, user_id: str, *, now_ns: int) -> Changes:
        """The user's contacts are new, and `People` knows: no refusal holds, what is through its round begins anew.

        Not to be called where a destination was only taken out because it is gone.
        """
        step = Step(now_ns)
        user = self._board.users.get(user_id)
        for item in user.items if user else ():
            item.refused = ()
            step.touched[item] = None
        for item in self._through(user_id):
            item.turn = 0
            self._walk.go_on(item, step)
        return self._finish(step)

    def _through(self, user_id: str) -> list[Item]:
        user = self._board.users.get(user_id)
        return [item for item in user.items if item.turn == THROUGH] if user else []

    def due(self, *, now_ns: int) -> Changes:
        """Do what is due, at most `DUE_AT_ONCE` things; where there are more, `next_due_ns` is not after ``now_ns``."""
        step = Step(now_ns)
        timers, together_ns = self._board.timers, None
        for done in count():
            if done >= DUE_AT_ONCE and timers.next_ns() != together_ns:
                break
            thing = timers.pop(now_ns)
            if thing is None:
                break
            if isinstance(thing, Lane):
                self._walk.release(thing, step)
                continue
            together_ns = thing.due_ns if thing.soft else None  # such go out in one message
            self._walk.wake(thing, step)
        return self._finish(step)

    def _finish(self, step: Step) -> Changes:
        for call in step.calls:
            leader, number = call.members[0]
            self._calls[leader.event.key, number] = call
            message = digest([item.event for item, _ in call.members], self._render)
            send = SendOut(leader.event.key, number, call.channel, call.user_id, message, call.contacts)
            step.changes.sends.append(send)
        return step.finish()


def _pause_ns(result: Result) -> int | None:
    """What the provider asked for, if it did."""
    if isinstance(result, Later) and result.retry_after_ms is not None:
        return max(result.retry_after_ms, 0) * 1_000_000
    return None
