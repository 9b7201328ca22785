"""Calls that share a provider's limits, and who waits for them. Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from services.common.model.user_events import Channel
from services.gateway.events.delivery.timers import Timed
from services.gateway.events.model import Contacts

T = TypeVar("T")
ProviderName = tuple[Channel, str]


class Provider(Timed, Generic[T]):
    """One provider, or one webhook: not before `blocked_until_ns`, and so many calls at once.

    Attributes:
        waiting: CRITICAL ones and others, each in the order in which they came. What has left in the meantime is
            still in there.
    """

    __slots__ = ("_most", "blocked_until_ns", "name", "under_way", "waiting")

    def __init__(self, name: ProviderName, most: int) -> None:
        super().__init__()
        self._most = most
        self.name = name
        self.blocked_until_ns = 0
        self.under_way = 0
        self.waiting: tuple[deque[T], deque[T]] = (deque(), deque())

    def free(self, now_ns: int) -> bool:
        """Whether a call may begin."""
        return now_ns >= self.blocked_until_ns and self.under_way < self._most

    def wait(self, thing: T, *, critical: bool) -> None:
        """Behind those of its kind."""
        self.waiting[0 if critical else 1].append(thing)

    def next(self) -> T | None:
        """Who waits longest, CRITICAL ones first; it waits no longer."""
        for queue in self.waiting:
            if queue:
                return queue.popleft()
        return None

    def idle(self, now_ns: int) -> bool:
        """Whether there is nothing to remember of it."""
        return not (self.under_way or self.waiting[0] or self.waiting[1] or now_ns < self.blocked_until_ns)


class ProviderLimits(Generic[T]):
    """Telegram, e-mail and push are one lane each: all users share our bot, server and key. A webhook is its own.

    Args:
        most: Most calls under way in one lane.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limits: dict[ProviderName, Provider[T]] = {}

    def of(self, channel: Channel, contacts: Contacts) -> Provider[T]:
        """Where a call to this user would go."""
        name = (channel, _webhook(channel, contacts))
        provider = self._limits.get(name)
        if provider is None:
            provider = self._limits[name] = Provider(name, self._most)
        return provider

    def blocked_until_ns(self, channel: Channel, contacts: Contacts) -> int:
        """Until when a call to this user would have to wait; a time that is past, or 0, for not at all."""
        provider = self._limits.get((channel, _webhook(channel, contacts)))
        return provider.blocked_until_ns if provider else 0

    def forget(self, provider: Provider[T], now_ns: int) -> None:
        """Keep nothing of a lane that is idle; there is one for each webhook that any user ever had."""
        if provider.idle(now_ns) and self._limits.get(provider.name) is provider:
            del self._limits[provider.name]


def _webhook(channel: Channel, contacts: Contacts) -> str:
    if channel is Channel.DISCORD:
        return contacts.discord_webhook_url
    return contacts.slack_webhook_url if channel is Channel.SLACK else ""
