"""Channels of an event: the user's contacts and presence, order, present use, and waits between attempts. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from dexorder_common.model.user_events import Channel, Preference
from dexorder_gateway.events.delivery.pending_events import PendingEvent
from dexorder_gateway.events.model import NO_CONTACTS, Contacts, Event, QuietHours

SECOND_NS = 1_000_000_000
_SESSION = Preference(Channel.ACTIVE_SESSION)


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Settings of the same names in ``EventsSettings``, durations in nanoseconds.

    ``digest_ns`` is at most half of ``normal_ttl_ns``: an event must not expire while it waits for the digest. On the
    channels in ``own_limits`` each destination is a separate provider.
    """

    normal_ttl_ns: int
    session_ack_ns: int
    channel_attempts: int
    retry_base_ns: int
    retry_max_ns: int
    digest_ns: int
    channel_order: tuple[Channel, ...]
    max_concurrent_sends: int
    own_limits: frozenset[Channel]

    @property
    def max_pause_ns(self) -> int:
        """Return the longest pause of a provider for which an event waits instead of trying the next channel."""
        return 6 * self.session_ack_ns


class ContactsCache:
    """The outbox's contacts and presence (user, channel, end of activity by the wall clock) of all users."""

    def __init__(
        self, contacts: Mapping[str, Contacts] | None = None, presence: Iterable[tuple[str, Channel, int]] = ()
    ) -> None:
        self._contacts = dict(contacts or {})
        self._until = {(user_id, channel): until_ns for user_id, channel, until_ns in presence}

    def contacts(self, user_id: str) -> Contacts:
        """Return a user's contacts; `NO_CONTACTS` for an unknown user."""
        return self._contacts.get(user_id, NO_CONTACTS)

    def set_contacts(self, user_id: str, contacts: Contacts) -> None:
        """Replace a user's contacts."""
        self._contacts[user_id] = contacts

    def active(self, user_id: str, channel: Channel, now_ns: int) -> bool:
        """Return whether the user was reported active on a provider's channel, and the report still holds."""
        return self._until.get((user_id, channel), 0) > now_ns

    def set_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """Store a report; a time in the past ends it."""
        self._until[user_id, channel] = until_ns


class Availability(NamedTuple):
    """State of a provider's channel for an event.

    Attributes:
        refusal: Why it can never be used; empty where it can.
        active: Whether the user is active there, or need not be.
        from_ns: End of the user's quiet hours; now, outside of them.
    """

    refusal: str
    active: bool
    from_ns: int


class ChannelPolicy:
    """Rules that look at one event."""

    def __init__(
        self, settings: DeliverySettings, contacts: ContactsCache, reachable: Callable[[Channel, Contacts], str]
    ) -> None:
        self._settings = settings
        self._contacts = contacts
        self._reachable = reachable
        self._default = (_SESSION, *map(Preference, settings.channel_order))

    def channels(self, event: Event, contacts: Contacts) -> tuple[Preference, ...]:
        """Return the channels to try in order: the event's own; else a session, then the user's or the default ones."""
        if event.channels:
            return event.channels
        if contacts.channel_order:
            return (_SESSION, *map(Preference, contacts.channel_order))
        return self._default

    def availability(
        self, pending: PendingEvent, preference: Preference, contacts: Contacts, now_ns: int
    ) -> Availability:
        """Return the state of a provider's channel."""
        channel = preference.channel
        refusal = pending.refusal(channel) or self._reachable(channel, contacts)
        active = not preference.only_if_active or self._contacts.active(pending.event.user_id, channel, now_ns)
        quiet_ns = None if pending.critical else quiet_until(contacts.quiet_hours, now_ns)
        return Availability(refusal, active, quiet_ns or now_ns)

    def retries_channel(self, pending: PendingEvent, retry_after_ns: int | None) -> bool:
        """Return whether a channel that answered `Later` is tried again before the next one.

        A CRITICAL event goes to the next channel at once, and returns in the next round; it waits only for a provider
        that names a short time.
        """
        if pending.failures >= self._settings.channel_attempts:
            return False
        return not pending.critical if retry_after_ns is None else retry_after_ns <= self._settings.max_pause_ns

    def backoff_ns(self, pending: PendingEvent, failures: int) -> int:
        """Return the wait after this many failures, from 1: doubled up to a maximum, less a jitter of up to a half."""
        settings = self._settings
        full_ns = min(settings.retry_base_ns << min(failures - 1, 40), settings.retry_max_ns)
        return full_ns - full_ns * _jitter(pending, failures) // 0x20000


def _jitter(pending: PendingEvent, failures: int) -> int:
    """Return 0-65535, the same in each process, unlike ``hash``. Events of one digest get the same number."""
    key = pending.event.key
    seed = pending.event.user_id if pending.soft else f"{key.container}\x00{key.event_id}\x00{pending.attempts}"
    return zlib.crc32(f"{seed}\x00{failures}".encode()) & 0xFFFF


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def quiet_until(hours: QuietHours | None, now_ns: int) -> int | None:
    """Return the end of the quiet hours that ``now_ns`` (wall clock) is in; None outside of quiet hours.

    A start that equals its end means never. Where clocks skip the end, quiet hours end when the clocks continue; where
    clocks are set back, a repeated minute is quiet both times. Hours are validated where they are set.
    """
    if hours is None:
        return None
    local = datetime.fromtimestamp(now_ns // SECOND_NS, UTC).astimezone(_zone(hours.time_zone))
    start, end, minute = hours.start_minute, hours.end_minute, local.hour * 60 + local.minute
    if start < end:
        quiet, next_day = start <= minute < end, False
    else:
        quiet, next_day = start != end and (minute >= start or minute < end), minute >= start
    if not quiet:
        return None
    day = local.date() + timedelta(days=int(next_day))
    ends = datetime(day.year, day.month, day.day, end // 60, end % 60, tzinfo=local.tzinfo, fold=local.fold)
    while not _exists(ends):
        ends += timedelta(minutes=1)
    end_ns = int(ends.timestamp()) * SECOND_NS
    return quiet_until(hours, end_ns) or end_ns  # the next quiet hours start at once where clocks skip the time between


def _exists(local: datetime) -> bool:
    """Return whether a clock ever shows this time."""
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(tzinfo=None)
