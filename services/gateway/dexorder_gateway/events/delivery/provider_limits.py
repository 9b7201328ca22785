"""Limits of providers: pauses they asked for, calls at the same time, and the events that wait for either. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection
from typing import Generic, TypeVar

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.delivery.timers import Timed
from dexorder_gateway.events.model import Contacts

T = TypeVar("T")


class Provider(Timed, Generic[T]):
    """Provider or webhook, with the events that wait for a call there. Only `ProviderLimits` touches its queues.

    Attributes:
        name: Channel, and the webhook's URL where each user has their own.
        blocked_until_ns: End of the pause that it asked for.
    """

    __slots__ = ("blocked_until_ns", "name", "queues")

    def __init__(self, name: tuple[Channel, str]) -> None:
        super().__init__()
        self.name = name
        self.blocked_until_ns = 0
        self.queues: tuple[deque[T], deque[T]] = (deque(), deque())  # CRITICAL ones and others

    @property
    def channel(self) -> Channel:
        """Return the channel that it belongs to."""
        return self.name[0]

    @property
    def waiting(self) -> bool:
        """Return whether events are in its queues."""
        return bool(self.queues[0] or self.queues[1])


class ProviderLimits(Generic[T]):
    """All providers. Most channels are one provider: all users share our bot, server or key.

    A queued event may be delivered otherwise in the meantime; it stays in the queue, and the caller of `take` checks.

    Args:
        max_calls: Calls at the same time on one channel, over all its providers.
        own_limits: Channels where each destination is a provider, such as webhooks.
    """

    def __init__(self, max_calls: int, own_limits: Collection[Channel]) -> None:
        self._max_calls = max_calls
        self._own_limits = own_limits
        self._calls: Counter[Channel] = Counter()
        self._providers: dict[tuple[Channel, str], Provider[T]] = {}
        self._rotation: defaultdict[Channel, dict[Provider[T], None]] = defaultdict(dict)

    def of(self, channel: Channel, contacts: Contacts) -> Provider[T]:
        """Return the provider that a call to this user goes to."""
        name = (channel, self._own_limit(channel, contacts))
        provider = self._providers.get(name)
        if provider is None:
            provider = self._providers[name] = Provider(name)
        return provider

    def blocked_until_ns(self, channel: Channel, contacts: Contacts) -> int:
        """Return until when a call to this user would have to wait; a past time, or 0, for not at all."""
        provider = self._providers.get((channel, self._own_limit(channel, contacts)))
        return provider.blocked_until_ns if provider else 0

    def free(self, provider: Provider[T], now_ns: int) -> bool:
        """Return whether a call may start now."""
        return now_ns >= provider.blocked_until_ns and self._calls[provider.channel] < self._max_calls

    def begin_call(self, provider: Provider[T]) -> None:
        """Count a call; `end_call` ends it."""
        self._calls[provider.channel] += 1

    def end_call(self, provider: Provider[T]) -> None:
        """Count the end of a call."""
        self._calls[provider.channel] -= 1

    def wait(self, provider: Provider[T], event: T, *, critical: bool) -> None:
        """Queue an event until `take` returns it."""
        provider.queues[0 if critical else 1].append(event)
        self._rotation[provider.channel][provider] = None

    def unblock(self, provider: Provider[T]) -> None:
        """Let a provider take part again once its pause is over."""
        if provider.waiting:
            self._rotation[provider.channel][provider] = None

    def next(self, channel: Channel, now_ns: int) -> Provider[T] | None:
        """Return the provider that may be called next; None if no call may start. Webhooks alternate."""
        rotation = self._rotation[channel]
        while rotation and self._calls[channel] < self._max_calls:
            provider = next(iter(rotation))
            if now_ns >= provider.blocked_until_ns:
                return provider
            del rotation[provider]  # until `unblock`
        return None

    def take(self, provider: Provider[T]) -> T:
        """Remove and return the first event of the provider that `next` returned, CRITICAL ones first."""
        rotation = self._rotation[provider.channel]
        del rotation[provider]
        event = (provider.queues[0] or provider.queues[1]).popleft()
        if provider.waiting:
            rotation[provider] = None
        return event

    def forget(self, provider: Provider[T], now_ns: int) -> None:
        """Drop a provider without a queue and a pause; otherwise every webhook of any user would be kept."""
        idle = not provider.waiting and now_ns >= provider.blocked_until_ns
        if idle and self._providers.get(provider.name) is provider:
            del self._providers[provider.name]

    def _own_limit(self, channel: Channel, contacts: Contacts) -> str:
        """Return the destination that sets a provider of the channel apart; empty if all users share one."""
        return contacts.address(channel) if channel in self._own_limits else ""
