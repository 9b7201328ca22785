"""An event's way through its channels: each call goes on until something has to be waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.common.model.user_events import SESSION_CHANNELS, Channel, Preference, Status
from services.gateway.events.delivery.board import Board
from services.gateway.events.delivery.changes import NEVER, THROUGH
from services.gateway.events.delivery.channel_policy import ChannelPolicy
from services.gateway.events.delivery.contacts_cache import People
from services.gateway.events.delivery.decision import Decision
from services.gateway.events.delivery.pending_events import PendingEvent, ProviderCall
from services.gateway.events.delivery.provider_limits import Provider, ProviderLimits
from services.gateway.events.delivery.rules import DeliverySettings
from services.gateway.events.delivery.scheduler import Scheduler, if_live
from services.gateway.events.model import Contacts, Later, Refused, Result, Sent


class Escalation:
    """Moves events on; what comes of it is in the `Step`."""

    def __init__(
        self,
        rules: DeliverySettings,
        people: People,
        policy: ChannelPolicy,
        board: Board,
        lanes: ProviderLimits[PendingEvent],
        scheduler: Scheduler,
    ) -> None:
        self._rules = rules
        self._people = people
        self._policy = policy
        self._board = board
        self._limits = lanes
        self._scheduler = scheduler

    def wake(self, thing: PendingEvent | Provider[PendingEvent], decision: Decision) -> None:
        """The time of a lane, or of an event that waited, has come."""
        if isinstance(thing, Provider):
            self.release(thing, decision)
        else:
            self._wake(thing, decision)

    def _wake(self, pending: PendingEvent, decision: Decision) -> None:
        pending.provider = None
        if pending.waits_for_ack and decision.now_ns >= pending.due_ns:
            self._board.end_wait_for_ack(pending, "no ack", self._rules.session_ack_ns, decision)
            pending.channel_index += 1
        elif pending.channel_index == THROUGH:
            pending.channel_index = 0
        self.go_on(pending, decision)

    def go_on(self, pending: PendingEvent, decision: Decision) -> None:
        """Take its turn, and the next ones."""
        decision.touched[pending] = None
        if pending.expired(decision.now_ns):
            self.fail(pending, "expired", decision)
            return
        contacts = self._people.contacts(pending.event.user_id)
        ways = self._policy.ways(pending.event, contacts)
        while pending.channel_index < len(ways):
            way = ways[pending.channel_index]
            if (
                self._session(pending, way, decision)
                if way.channel in SESSION_CHANNELS
                else self._call(pending, way, contacts, decision)
            ):
                return
            pending.channel_index = pending.channel_index + 1
            pending.failures = 0
        self._end_round(pending, ways, contacts, decision)

    def _session(self, pending: PendingEvent, way: Preference, decision: Decision) -> bool:
        """Show it where a session is open; whether an ack may still come in time."""
        is_open = self._board.user(pending.event.user_id).open
        if pending.sequence is None:
            self._board.place(pending, decision)
            if is_open:
                decision.show(pending)
        if not is_open:
            if way.only_if_active and pending.rounds == 0:
                decision.passed(pending, way.channel, decision.now_ns, "not active")
            return False
        until_ns = pending.shown_ns + self._rules.session_ack_ns
        if until_ns <= decision.now_ns:
            return False
        self._board.wait_for_ack(pending, until_ns, decision)
        return True

    def _call(self, pending: PendingEvent, way: Preference, contacts: Contacts, decision: Decision) -> bool:
        """Call a provider or wait for its lane, if the channel can be used."""
        user_id, channel, now_ns = pending.event.user_id, way.channel, decision.now_ns
        availability = self._policy.availability(pending, way, contacts, now_ns)
        if availability.refusal:
            return False
        if not availability.active:
            if pending.rounds == 0:  # the log says it once
                decision.passed(pending, channel, now_ns, "not active")
            return False
        if availability.from_ns > now_ns:
            self._outlast(pending, availability.from_ns)
            return False
        call = decision.open_calls.get((user_id, channel)) if pending.soft else None
        if call is None:
            provider = self._limits.of(channel, contacts)
            if provider.blocked_until_ns - now_ns > self._rules.patience_ns:
                return False
            if not provider.free(now_ns):
                self._board.wait_for_provider(pending, provider, now_ns)
                return True
            call = decision.call(user_id, channel, contacts, provider, alone=not pending.soft)
        call.members.append((pending, decision.begun(pending, channel, now_ns)))
        pending.under_way = True
        pending.due_ns = now_ns
        self._board.timers.cancel(pending)  # its time may be over meanwhile: the result is what counts
        return True

    def _outlast(self, pending: PendingEvent, quiet_until_ns: int) -> None:
        """Its time begins anew when the quiet hours end; once, or a long one would never be over."""
        if pending.expires_ns == pending.accepted_ns + self._rules.normal_ttl_ns:
            pending.expires_ns = quiet_until_ns + self._rules.normal_ttl_ns

    def _end_round(
        self, pending: PendingEvent, ways: Sequence[Preference], contacts: Contacts, decision: Decision
    ) -> None:
        """Begin anew after a pause, if a channel may then do what it could not; else wait for what is missing."""
        pending.channel_index = THROUGH
        reasons: dict[str, str] = {}
        hopeless, due_ns, now_ns = True, NEVER, decision.now_ns
        for way in ways:
            if way.channel in SESSION_CHANNELS:
                hopeless = False
                continue
            availability = self._policy.availability(pending, way, contacts, now_ns)
            if availability.refusal:
                reasons[way.channel.name] = availability.refusal
                continue
            hopeless = False
            if availability.active and availability.from_ns > now_ns:
                due_ns = min(due_ns, availability.from_ns)
            elif availability.active:
                again_ns = now_ns + self._policy.backoff_ns(pending, pending.rounds + 1)
                due_ns = min(due_ns, max(again_ns, self._limits.blocked_until_ns(way.channel, contacts)))
        if hopeless:
            self.fail(pending, "; ".join(f"{name}: {reason}" for name, reason in reasons.items()), decision)
            return
        pending.rounds += due_ns != NEVER
        self._board.wait(pending, due_ns)

    def finished(self, call: ProviderCall, result: Result, decision: Decision) -> None:
        """What came of a call: its attempts end, its events go on, and so do those that wait for its lane."""
        pause_ns = _pause_ns(result)
        retry_at_ns = None if pause_ns is None else decision.now_ns + pause_ns
        if retry_at_ns is not None:
            call.provider.blocked_until_ns = max(call.provider.blocked_until_ns, retry_at_ns)
            self._board.timers.set(call.provider, call.provider.blocked_until_ns)
        if not isinstance(result, Later):
            decision.changes.gone += [(call.user_id, call.channel, destination) for destination in result.gone]
        call.provider.under_way -= 1
        outcome = "sent" if isinstance(result, Sent) else result.reason

        def settle(member: tuple[PendingEvent, int], decision: Decision) -> None:
            pending, number = member
            decision.ended(pending, number, call.channel, call.started_ns, outcome, retry_at_ns)
            pending.under_way = False
            if not pending.done:
                self._tried(pending, call, result, pause_ns, decision)

        self._scheduler.each(call.members, settle, decision)
        self.release(call.provider, decision)

    def _tried(
        self, pending: PendingEvent, call: ProviderCall, result: Result, pause_ns: int | None, decision: Decision
    ) -> None:
        decision.touched[pending] = None
        if isinstance(result, Sent):
            self._board.final(pending, Status.DELIVERED, call.channel, "", decision)
            return
        if isinstance(result, Refused):
            if self._people.contacts(pending.event.user_id) == call.contacts:  # else it is not they that were refused
                pending.refused += ((call.channel, result.reason),)
        else:
            pending.failures += 1
            if self._policy.stays(pending, pause_ns):
                if pause_ns is None:
                    self._board.wait(pending, decision.now_ns + self._policy.backoff_ns(pending, pending.failures))
                else:
                    self.go_on(pending, decision)
                return
        pending.channel_index = pending.channel_index + 1
        pending.failures = 0
        self.go_on(pending, decision)

    def release(self, provider: Provider[PendingEvent], decision: Decision) -> None:
        """Let those go on that wait for a lane, as far as it takes them; those that go together wait for one call."""
        while decision.left > 0 and provider.free(decision.now_ns) and (pending := provider.next()) is not None:
            decision.left -= 1
            if pending.provider is not provider or pending.done:
                continue
            mates = self._board.user(pending.event.user_id).items if pending.soft else ()
            together = [mate for mate in mates if mate.soft and mate.provider is provider and mate is not pending]
            for each in (pending, *together):
                each.provider = None
            self.go_on(pending, decision)
            self._scheduler.each(together, if_live(self.go_on), decision)
        if decision.left <= 0 and provider.free(decision.now_ns):
            self._board.timers.set(provider, decision.now_ns)
        self._limits.forget(provider, decision.now_ns)

    def received(self, pending: PendingEvent, decision: Decision) -> None:
        """A session has it."""
        if pending.waits_for_ack:
            self._board.end_wait_for_ack(pending, "received", self._rules.session_ack_ns, decision)
        else:
            decision.passed(pending, Channel.WEB, pending.shown_ns or decision.now_ns, "received")
        self._board.final(pending, Status.DELIVERED, Channel.WEB, "", decision)

    def fail(self, pending: PendingEvent, error: str, decision: Decision) -> None:
        """It won't be delivered."""
        if pending.waits_for_ack:
            self._board.end_wait_for_ack(pending, "no ack", self._rules.session_ack_ns, decision)
        self._board.final(pending, Status.ERROR, None, error, decision)


def _pause_ns(result: Result) -> int | None:
    """What the provider asked for, if it did."""
    if isinstance(result, Later) and result.retry_after_ms is not None:
        return max(result.retry_after_ms, 0) * 1_000_000
    return None
