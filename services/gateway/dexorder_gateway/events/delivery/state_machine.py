"""States of an event that is being delivered, and the transitions between them.

Pure: no I/O, no clock; all times are the wall clock's, in nanoseconds. The outbox stores the fields that tell the
states apart, so that a restart continues in the same state.

    state              fields                        transition
    -----------------  ----------------------------  ---------------------------------------------------------------
    WAITING_DIGEST     soft, attempts == 0, timer    the user's digest is due: -> advance
    WAITING_ACK        waits_for_ack, timer          no ack in time: -> advance from the next channel
    WAITING_PROVIDER   provider, no due time         a call of the channel, or the provider's pause, ends: -> advance
    IN_CALL            no provider, no timer         Sent: -> DELIVERED
                                                     Refused: -> advance from the next channel
                                                     Later: -> WAITING_RETRY, or advance from this or the next channel
    WAITING_RETRY      failures > 0, timer           backoff is over: -> advance
    ROUND_ENDED        channel_index == ROUND_ENDED  backoff or quiet hours are over, contacts changed:
                                                     -> advance from the first channel
                                                     the user is active on a channel: -> advance from that channel
    DELIVERED, FAILED  done                          final

    advance: take the first channel, from ``channel_index`` on, that can be used now
      session            an open one is given time for an ack   -> WAITING_ACK
      provider           it has a free call                     -> IN_CALL
                         no free call, or a short pause         -> WAITING_PROVIDER
      no channel         one may be usable later                -> ROUND_ENDED
                         all refuse permanently                 -> FAILED, "CHANNEL: reason" of each

    in any state         a session acks                         -> DELIVERED
    in all but IN_CALL   ``expires_ns`` is over (NORMAL only)    -> FAILED, "expired"

A channel can't be used where it has refused permanently, where the user must be active and is not, in the user's quiet
hours (CRITICAL ignores them), and in a long pause of the provider. A session that opens is shown the event in any
state; the ack may come from there while another channel is tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.user_events import SESSION_CHANNELS, Channel, Preference, Priority, Status
from dexorder_gateway.events.delivery.changes import NEVER, ROUND_ENDED, Final, QueuedRow
from dexorder_gateway.events.delivery.channel_policy import ChannelPolicy, ContactsCache, DeliverySettings
from dexorder_gateway.events.delivery.decision import Decision, ProviderCall, Scheduler, if_pending
from dexorder_gateway.events.delivery.pending_events import PendingEvent, PendingEvents
from dexorder_gateway.events.delivery.provider_limits import Provider, ProviderLimits
from dexorder_gateway.events.delivery.timers import Timers
from dexorder_gateway.events.model import Contacts, Event, Later, Result, SendRefused, Sent


class StateMachine:
    """Transitions of all pending events; their rows and effects are added to a `Decision`."""

    def __init__(
        self,
        settings: DeliverySettings,
        contacts: ContactsCache,
        policy: ChannelPolicy,
        events: PendingEvents,
        timers: Timers[PendingEvent | Provider[PendingEvent]],
        scheduler: Scheduler,
    ) -> None:
        self._settings = settings
        self._contacts = contacts
        self._policy = policy
        self._events = events
        self._timers = timers
        self._scheduler = scheduler
        self._limits: ProviderLimits[PendingEvent] = ProviderLimits(settings.max_concurrent_sends, settings.own_limits)

    def accept(self, event: Event, soft: bool, decision: Decision) -> None:
        """Add an event; a NORMAL one above the soft quota waits for the digest."""
        now_ns = decision.now_ns
        normal = event.priority is Priority.NORMAL
        expires_ns = now_ns + self._settings.normal_ttl_ns if normal else None
        pending = self._events.add(QueuedRow(event, now_ns, expires_ns, due_ns=now_ns, soft=soft and normal))
        if pending.soft:
            user = self._events.user(event.user_id)
            if user.digest_ns <= now_ns:
                user.digest_ns = now_ns + self._settings.digest_ns
            self.wait(pending, user.digest_ns)
        else:
            self.advance(pending, decision)
        pending.saved = pending.row()
        decision.changes.accepted.append(pending.saved)
        decision.touched.pop(pending, None)

    def pause(self, channel: Channel, contacts: Contacts, until_ns: int) -> None:
        """Start no call of a provider before this time; a longer pause that was asked for earlier holds."""
        provider = self._limits.of(channel, contacts)
        provider.blocked_until_ns = max(provider.blocked_until_ns, until_ns)
        self._timers.set(provider, provider.blocked_until_ns)

    def wake(self, thing: PendingEvent | Provider[PendingEvent], decision: Decision) -> None:
        """Handle the timer of an event, or of a provider at the end of its pause."""
        if isinstance(thing, Provider):
            self._limits.unblock(thing)
            self._begin_calls(thing.channel, decision)
            self._limits.forget(thing, decision.now_ns)
            return
        thing.provider = None
        if thing.waits_for_ack and decision.now_ns >= thing.due_ns:
            self._end_ack_wait(thing, "no ack", decision)
            thing.channel_index += 1
        elif thing.channel_index == ROUND_ENDED:
            thing.channel_index = 0
        self.advance(thing, decision)

    def show(self, pending: PendingEvent, decision: Decision) -> None:
        """Show an event to the sessions that opened, if it may be shown there."""
        user = self._events.user(pending.event.user_id)
        if user.open and pending.for_sessions and not pending.expired(decision.now_ns):
            if pending.sequence is None:
                self._events.assign_sequence(pending)
                decision.touched[pending] = None
            decision.show(pending)

    def acked(self, pending: PendingEvent, decision: Decision) -> None:
        """Handle the ack of a session."""
        if pending.waits_for_ack:
            self._end_ack_wait(pending, "received", decision)
        else:
            decision.add_attempt(pending, Channel.WEB, pending.shown_ns or decision.now_ns, "received")
        self._finish(pending, Status.DELIVERED, Channel.WEB, "", decision)

    def user_active(self, channel: Channel, pending: PendingEvent, decision: Decision) -> None:
        """Continue an event that ended its round at a channel where the user had to be active."""
        preferences = self._policy.channels(pending.event, self._contacts.contacts(pending.event.user_id))
        index = next((n for n, p in enumerate(preferences) if p.channel is channel and p.only_if_active), None)
        if index is not None and pending.channel_index == ROUND_ENDED:
            pending.channel_index = index
            self.advance(pending, decision)

    def contacts_changed(self, pending: PendingEvent, decision: Decision) -> None:
        """Drop all refusals, and start the next round where one ended."""
        pending.refused = ()
        decision.touched[pending] = None
        if pending.channel_index == ROUND_ENDED:
            pending.channel_index = 0
            self.advance(pending, decision)

    def call_finished(self, call: ProviderCall, result: Result, decision: Decision) -> None:
        """End the attempts of a call, move its events, and start calls for events that waited for a free one."""
        provider = self._limits.of(call.channel, call.contacts)
        pause_ns: int | None = None
        retry_at_ns: int | None = None
        if isinstance(result, Later) and result.retry_after_ms is not None:
            pause_ns = max(result.retry_after_ms, 0) * 1_000_000
            retry_at_ns = decision.now_ns + pause_ns
            self.pause(call.channel, call.contacts, retry_at_ns)
        if not isinstance(result, Later):
            decision.changes.gone += [(call.user_id, call.channel, destination) for destination in result.gone]
        self._limits.end_call(provider)
        outcome = "sent" if isinstance(result, Sent) else result.reason

        def settle(member: tuple[PendingEvent, int], decision: Decision) -> None:
            pending, number = member
            decision.end_attempt(pending, number, call.channel, call.started_ns, outcome, retry_at_ns)
            if not pending.done:
                self._settle(pending, call, result, pause_ns, decision)

        self._scheduler.each(call.members, settle, decision)
        self._begin_calls(call.channel, decision)
        self._limits.forget(provider, decision.now_ns)

    def wait(self, pending: PendingEvent, due_ns: int) -> None:
        """Wait until a time, or until the event expires."""
        pending.due_ns = due_ns
        self._set_timer(pending, due_ns if pending.expires_ns is None else min(due_ns, pending.expires_ns))

    def advance(self, pending: PendingEvent, decision: Decision) -> None:
        """Try the present channel and the following ones, until the event has to wait or is final."""
        decision.touched[pending] = None
        if pending.expired(decision.now_ns):
            self._fail(pending, "expired", decision)
            return
        contacts = self._contacts.contacts(pending.event.user_id)
        preferences = self._policy.channels(pending.event, contacts)
        while pending.channel_index < len(preferences):
            preference = preferences[pending.channel_index]
            if (
                self._try_session(pending, preference, decision)
                if preference.channel in SESSION_CHANNELS
                else self._try_provider(pending, preference, contacts, decision)
            ):
                return
            pending.channel_index += 1
            pending.failures = 0
        self._end_round(pending, preferences, contacts, decision)

    def _try_session(self, pending: PendingEvent, preference: Preference, decision: Decision) -> bool:
        """Show the event where a session is open; return whether an ack may still come in time."""
        is_open = self._events.user(pending.event.user_id).open
        if pending.sequence is None:
            self._events.assign_sequence(pending)
            if is_open:
                decision.show(pending)
        if not is_open:
            if preference.only_if_active and pending.rounds == 0:
                decision.add_attempt(pending, preference.channel, decision.now_ns, "not active")
            return False
        until_ns = pending.shown_ns + self._settings.session_ack_ns
        if until_ns <= decision.now_ns:
            return False
        decision.begin_attempt(pending, Channel.WEB, pending.shown_ns)
        pending.waits_for_ack = True
        self.wait(pending, until_ns)
        return True

    def _end_ack_wait(self, pending: PendingEvent, outcome: str, decision: Decision) -> None:
        pending.waits_for_ack = False
        shown_ns = pending.due_ns - self._settings.session_ack_ns
        decision.end_attempt(pending, pending.attempts, Channel.WEB, shown_ns, outcome)

    def _try_provider(
        self, pending: PendingEvent, preference: Preference, contacts: Contacts, decision: Decision
    ) -> bool:
        """Start or join a call, or wait for the provider; return False where the channel can't be used now."""
        user_id, channel, now_ns = pending.event.user_id, preference.channel, decision.now_ns
        availability = self._policy.availability(pending, preference, contacts, now_ns)
        if availability.refusal:
            return False
        if not availability.active:
            if pending.rounds == 0:  # recorded once, not in each round
                decision.add_attempt(pending, channel, now_ns, "not active")
            return False
        if availability.from_ns > now_ns:
            self._outlast_quiet_hours(pending, availability.from_ns)
            return False
        call = decision.open_calls.get((user_id, channel)) if pending.soft else None
        if call is None:
            provider = self._limits.of(channel, contacts)
            if provider.blocked_until_ns - now_ns > self._settings.max_pause_ns:
                return False
            if not self._limits.free(provider, now_ns):
                self._wait_for_provider(pending, provider, now_ns)
                return True
            self._limits.begin_call(provider)
            call = decision.begin_call(user_id, channel, contacts, alone=not pending.soft)
        call.members.append((pending, decision.begin_attempt(pending, channel, now_ns)))
        pending.due_ns = now_ns
        self._timers.cancel(pending)  # it may expire during the call: the result counts
        return True

    def _outlast_quiet_hours(self, pending: PendingEvent, quiet_until_ns: int) -> None:
        """Restart the event's time at the end of the quiet hours; once only, or a long one would never expire."""
        if pending.expires_ns == pending.accepted_ns + self._settings.normal_ttl_ns:
            pending.expires_ns = quiet_until_ns + self._settings.normal_ttl_ns

    def _wait_for_provider(self, pending: PendingEvent, provider: Provider[PendingEvent], now_ns: int) -> None:
        pending.provider = provider
        self._limits.wait(provider, pending, critical=pending.critical)
        pending.due_ns = max(now_ns, provider.blocked_until_ns)
        self._set_timer(pending, NEVER if pending.expires_ns is None else pending.expires_ns)

    def _set_timer(self, pending: PendingEvent, at_ns: int) -> None:
        if at_ns == NEVER:
            self._timers.cancel(pending)
        else:
            self._timers.set(pending, at_ns)

    def _end_round(
        self, pending: PendingEvent, preferences: Sequence[Preference], contacts: Contacts, decision: Decision
    ) -> None:
        """Wait until a channel may be usable; fail if none ever will be."""
        pending.channel_index = ROUND_ENDED
        reasons: dict[str, str] = {}
        hopeless, due_ns, now_ns = True, NEVER, decision.now_ns
        for preference in preferences:
            if preference.channel in SESSION_CHANNELS:
                hopeless = False
                continue
            availability = self._policy.availability(pending, preference, contacts, now_ns)
            if availability.refusal:
                reasons[preference.channel.name] = availability.refusal
                continue
            hopeless = False
            if availability.active and availability.from_ns > now_ns:
                due_ns = min(due_ns, availability.from_ns)
            elif availability.active:
                retry_ns = now_ns + self._policy.backoff_ns(pending, pending.rounds + 1)
                due_ns = min(due_ns, max(retry_ns, self._limits.blocked_until_ns(preference.channel, contacts)))
        if hopeless:
            self._fail(pending, "; ".join(f"{name}: {reason}" for name, reason in reasons.items()), decision)
            return
        pending.rounds += due_ns != NEVER
        self.wait(pending, due_ns)

    def _settle(
        self, pending: PendingEvent, call: ProviderCall, result: Result, pause_ns: int | None, decision: Decision
    ) -> None:
        """Move an event on after its call."""
        decision.touched[pending] = None
        if isinstance(result, Sent):
            self._finish(pending, Status.DELIVERED, call.channel, "", decision)
            return
        if isinstance(result, SendRefused):
            if self._contacts.contacts(pending.event.user_id) == call.contacts:  # else older contacts were refused
                pending.refused += ((call.channel, result.reason),)
        else:
            pending.failures += 1
            if self._policy.retries_channel(pending, pause_ns):
                if pause_ns is None:
                    self.wait(pending, decision.now_ns + self._policy.backoff_ns(pending, pending.failures))
                else:
                    self.advance(pending, decision)
                return
        pending.channel_index += 1
        pending.failures = 0
        self.advance(pending, decision)

    def _begin_calls(self, channel: Channel, decision: Decision) -> None:
        """Advance events that wait for a provider of the channel while calls are free; a digest waits for one call."""
        now_ns = decision.now_ns
        while decision.left > 0 and (provider := self._limits.next(channel, now_ns)) is not None:
            decision.left -= 1
            pending = self._limits.take(provider)
            if pending.provider is not provider or pending.done:
                continue  # it has left the queue in the meantime
            mates = self._events.of_user(pending.event.user_id) if pending.soft else ()
            together = [mate for mate in mates if mate.soft and mate.provider is provider and mate is not pending]
            for each in (pending, *together):
                each.provider = None
            self.advance(pending, decision)
            self._scheduler.each(together, if_pending(self.advance), decision)
        if (provider := self._limits.next(channel, now_ns)) is not None:
            self._timers.set(provider, now_ns)  # the next decision continues

    def _fail(self, pending: PendingEvent, error: str, decision: Decision) -> None:
        if pending.waits_for_ack:
            self._end_ack_wait(pending, "no ack", decision)
        self._finish(pending, Status.ERROR, None, error, decision)

    def _finish(
        self, pending: PendingEvent, status: Status, via: Channel | None, error: str, decision: Decision
    ) -> None:
        """End an event. A call that is under way ends later, without effect."""
        self._timers.cancel(pending)
        self._events.remove(pending)
        decision.changes.finals.append(Final(pending.event.key, status, via, error, decision.now_ns))
