"""An event's way through its channels: each call goes on until something has to be waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.events.delivery.board import Board
from services.gateway.events.delivery.changes import NEVER, THROUGH
from services.gateway.events.delivery.channel_policy import Turns
from services.gateway.events.delivery.contacts_cache import People
from services.gateway.events.delivery.decision import Step
from services.gateway.events.delivery.pending_events import Item, Try
from services.gateway.events.delivery.provider_limits import Lane, Lanes
from services.gateway.events.delivery.rules import Rules
from services.gateway.events.delivery.scheduler import Agenda, if_live
from services.gateway.events.model import (
    SESSION_CHANNELS,
    Channel,
    Contacts,
    Later,
    Preference,
    Refused,
    Result,
    Sent,
    Status,
)


class Walk:
    """Moves events on; what comes of it is in the `Step`."""

    def __init__(
        self, rules: Rules, people: People, turns: Turns, board: Board, lanes: Lanes[Item], agenda: Agenda
    ) -> None:
        self._rules = rules
        self._people = people
        self._turns = turns
        self._board = board
        self._lanes = lanes
        self._agenda = agenda

    def wake(self, thing: Item | Lane[Item], step: Step) -> None:
        """The time of a lane, or of an event that waited, has come."""
        if isinstance(thing, Lane):
            self.release(thing, step)
        else:
            self._wake(thing, step)

    def _wake(self, item: Item, step: Step) -> None:
        item.lane = None
        if item.waits_for_ack and step.now_ns >= item.due_ns:
            self._board.end_wait_for_ack(item, "no ack", self._rules.session_ack_ns, step)
            item.turn += 1
        elif item.turn == THROUGH:
            item.turn = 0
        self.go_on(item, step)

    def go_on(self, item: Item, step: Step) -> None:
        """Take its turn, and the next ones."""
        step.touched[item] = None
        if item.expired(step.now_ns):
            self.fail(item, "expired", step)
            return
        contacts = self._people.contacts(item.event.user_id)
        ways = self._turns.ways(item.event, contacts)
        while item.turn < len(ways):
            way = ways[item.turn]
            if (
                self._session(item, way, step)
                if way.channel in SESSION_CHANNELS
                else self._call(item, way, contacts, step)
            ):
                return
            item.turn = item.turn + 1
            item.failures = 0
        self._end_round(item, ways, contacts, step)

    def _session(self, item: Item, way: Preference, step: Step) -> bool:
        """Show it where a session is open; whether an ack may still come in time."""
        is_open = self._board.user(item.event.user_id).open
        if item.sequence is None:
            self._board.place(item, step)
            if is_open:
                step.show(item)
        if not is_open:
            if way.only_if_active and item.rounds == 0:
                step.passed(item, way.channel, step.now_ns, "not active")
            return False
        until_ns = item.shown_ns + self._rules.session_ack_ns
        if until_ns <= step.now_ns:
            return False
        self._board.wait_for_ack(item, until_ns, step)
        return True

    def _call(self, item: Item, way: Preference, contacts: Contacts, step: Step) -> bool:
        """Call a provider or wait for its lane, if the channel can be used."""
        user_id, channel, now_ns = item.event.user_id, way.channel, step.now_ns
        outlook = self._turns.outlook(item, way, contacts, now_ns)
        if outlook.refusal:
            return False
        if not outlook.active:
            if item.rounds == 0:  # the log says it once
                step.passed(item, channel, now_ns, "not active")
            return False
        if outlook.from_ns > now_ns:
            self._outlast(item, outlook.from_ns)
            return False
        call = step.open_calls.get((user_id, channel)) if item.soft else None
        if call is None:
            lane = self._lanes.of(channel, contacts)
            if lane.blocked_until_ns - now_ns > self._rules.patience_ns:
                return False
            if not lane.free(now_ns):
                self._board.wait_in_lane(item, lane, now_ns)
                return True
            call = step.call(user_id, channel, contacts, lane, alone=not item.soft)
        call.members.append((item, step.begun(item, channel, now_ns)))
        item.under_way = True
        item.due_ns = now_ns
        self._board.timers.cancel(item)  # its time may be over meanwhile: the result is what counts
        return True

    def _outlast(self, item: Item, quiet_until_ns: int) -> None:
        """Its time begins anew when the quiet hours end; once, or a long one would never be over."""
        if item.expires_ns == item.accepted_ns + self._rules.normal_ttl_ns:
            item.expires_ns = quiet_until_ns + self._rules.normal_ttl_ns

    def _end_round(self, item: Item, ways: Sequence[Preference], contacts: Contacts, step: Step) -> None:
        """Begin anew after a pause, if a channel may then do what it could not; else wait for what is missing."""
        item.turn = THROUGH
        reasons: dict[str, str] = {}
        hopeless, due_ns, now_ns = True, NEVER, step.now_ns
        for way in ways:
            if way.channel in SESSION_CHANNELS:
                hopeless = False
                continue
            outlook = self._turns.outlook(item, way, contacts, now_ns)
            if outlook.refusal:
                reasons[way.channel.name] = outlook.refusal
                continue
            hopeless = False
            if outlook.active and outlook.from_ns > now_ns:
                due_ns = min(due_ns, outlook.from_ns)
            elif outlook.active:
                again_ns = now_ns + self._turns.backoff_ns(item, item.rounds + 1)
                due_ns = min(due_ns, max(again_ns, self._lanes.blocked_until_ns(way.channel, contacts)))
        if hopeless:
            self.fail(item, "; ".join(f"{name}: {reason}" for name, reason in reasons.items()), step)
            return
        item.rounds += due_ns != NEVER
        self._board.wait(item, due_ns)

    def finished(self, call: Try, result: Result, step: Step) -> None:
        """What came of a call: its attempts end, its events go on, and so do those that wait for its lane."""
        pause_ns = _pause_ns(result)
        retry_at_ns = None if pause_ns is None else step.now_ns + pause_ns
        if retry_at_ns is not None:
            call.lane.blocked_until_ns = max(call.lane.blocked_until_ns, retry_at_ns)
            self._board.timers.set(call.lane, call.lane.blocked_until_ns)
        if not isinstance(result, Later):
            step.changes.gone += [(call.user_id, call.channel, destination) for destination in result.gone]
        call.lane.under_way -= 1
        outcome = "sent" if isinstance(result, Sent) else result.reason

        def settle(member: tuple[Item, int], step: Step) -> None:
            item, number = member
            step.ended(item, number, call.channel, call.started_ns, outcome, retry_at_ns)
            item.under_way = False
            if not item.done:
                self._tried(item, call, result, pause_ns, step)

        self._agenda.each(call.members, settle, step)
        self.release(call.lane, step)

    def _tried(self, item: Item, call: Try, result: Result, pause_ns: int | None, step: Step) -> None:
        step.touched[item] = None
        if isinstance(result, Sent):
            self._board.final(item, Status.DELIVERED, call.channel, "", step)
            return
        if isinstance(result, Refused):
            if self._people.contacts(item.event.user_id) == call.contacts:  # else it is not they that were refused
                item.refused += ((call.channel, result.reason),)
        else:
            item.failures += 1
            if self._turns.stays(item, pause_ns):
                if pause_ns is None:
                    self._board.wait(item, step.now_ns + self._turns.backoff_ns(item, item.failures))
                else:
                    self.go_on(item, step)
                return
        item.turn = item.turn + 1
        item.failures = 0
        self.go_on(item, step)

    def release(self, lane: Lane[Item], step: Step) -> None:
        """Let those go on that wait for a lane, as far as it takes them; those that go together wait for one call."""
        while step.left > 0 and lane.free(step.now_ns) and (item := lane.next()) is not None:
            step.left -= 1
            if item.lane is not lane or item.done:
                continue
            mates = self._board.user(item.event.user_id).items if item.soft else ()
            together = [mate for mate in mates if mate.soft and mate.lane is lane and mate is not item]
            for each in (item, *together):
                each.lane = None
            self.go_on(item, step)
            self._agenda.each(together, if_live(self.go_on), step)
        if step.left <= 0 and lane.free(step.now_ns):
            self._board.timers.set(lane, step.now_ns)
        self._lanes.forget(lane, step.now_ns)

    def received(self, item: Item, step: Step) -> None:
        """A session has it."""
        if item.waits_for_ack:
            self._board.end_wait_for_ack(item, "received", self._rules.session_ack_ns, step)
        else:
            step.passed(item, Channel.WEB, item.shown_ns or step.now_ns, "received")
        self._board.final(item, Status.DELIVERED, Channel.WEB, "", step)

    def fail(self, item: Item, error: str, step: Step) -> None:
        """It won't be delivered."""
        if item.waits_for_ack:
            self._board.end_wait_for_ack(item, "no ack", self._rules.session_ack_ns, step)
        self._board.final(item, Status.ERROR, None, error, step)


def _pause_ns(result: Result) -> int | None:
    """What the provider asked for, if it did."""
    if isinstance(result, Later) and result.retry_after_ms is not None:
        return max(result.retry_after_ms, 0) * 1_000_000
    return None
