"""Whose turn it is: the channels of an event, what each may do now, and how long to wait. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

from services.common.model.user_events import Channel, Preference
from services.gateway.events.delivery.contacts_cache import People
from services.gateway.events.delivery.pending_events import PendingEvent
from services.gateway.events.delivery.quiet_hours import quiet_until
from services.gateway.events.delivery.rules import DeliverySettings
from services.gateway.events.model import Contacts, Event

_SESSION = Preference(Channel.ACTIVE_SESSION)


class Availability(NamedTuple):
    """What a channel outside of sessions may do for an event.

    Attributes:
        refusal: Why it never will; empty where it may.
        active: Whether the user is, as far as that is asked.
        from_ns: When quiet hours let it; now, if they do.
    """

    refusal: str
    active: bool
    from_ns: int


class ChannelPolicy:
    """The rules that look at one event.

    Args:
        reachable: Why a channel outside of sessions can't be used with these contacts; empty where it can.
    """

    def __init__(self, rules: DeliverySettings, people: People, reachable: Callable[[Channel, Contacts], str]) -> None:
        self._rules = rules
        self._people = people
        self._reachable = reachable
        self._usual = (_SESSION, *map(Preference, rules.channel_order))

    def ways(self, event: Event, contacts: Contacts) -> tuple[Preference, ...]:
        """The channels to try, in order: as named, else a session and then the user's or the usual ones."""
        if event.channels:
            return event.channels
        if contacts.channel_order:
            return (_SESSION, *map(Preference, contacts.channel_order))
        return self._usual

    def availability(self, pending: PendingEvent, way: Preference, contacts: Contacts, now_ns: int) -> Availability:
        """Look at one channel outside of sessions."""
        refusal = pending.refusal(way.channel) or self._reachable(way.channel, contacts)
        active = not way.only_if_active or self._people.active(pending.event.user_id, way.channel, now_ns)
        quiet_ns = None if pending.critical else quiet_until(contacts.quiet_hours, now_ns)
        return Availability(refusal, active, quiet_ns or now_ns)

    def stays(self, pending: PendingEvent, retry_after_ns: int | None) -> bool:
        """Whether a channel that said "later" is tried again before the next one.

        A CRITICAL event goes on to the next at once, and comes back in the next round: only a provider that names a
        short time is waited for.
        """
        if pending.failures >= self._rules.channel_attempts:
            return False
        return not pending.critical if retry_after_ns is None else retry_after_ns <= self._rules.patience_ns

    def backoff_ns(self, pending: PendingEvent, failures: int) -> int:
        """Wait after so many failures, from 1: doubled each time, up to the most, less up to a half by chance."""
        rules = self._rules
        full_ns = min(rules.retry_base_ns << min(failures - 1, 40), rules.retry_most_ns)
        return full_ns - full_ns * _chance(pending, failures) // 0x20000


def _chance(pending: PendingEvent, failures: int) -> int:
    """0-65535; Python's own hash differs in each process. Those that go out together come back together."""
    key = pending.event.key
    seed = pending.event.user_id if pending.soft else f"{key.container}\x00{key.event_id}\x00{pending.tries}"
    return zlib.crc32(f"{seed}\x00{failures}".encode()) & 0xFFFF
