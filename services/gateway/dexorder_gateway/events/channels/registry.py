"""All channels, each found by its name, and the channels that the settings turn on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

from dexorder_common.model.user_events import SESSION_CHANNELS, Channel
from dexorder_gateway.events.channels.http import Http
from dexorder_gateway.events.channels.spec import ChannelAdapter, ChannelSpec, EventChannelSettings
from dexorder_gateway.events.model import NO_CONTACT, NOT_CONFIGURED, Contacts

SPECS: Mapping[Channel, ChannelSpec[Any]] = {
    channel: import_module(f"{__package__}.{channel.name.lower()}").SPEC
    for channel in Channel
    if channel not in SESSION_CHANNELS
}
"""A channel of the protocol, other than the sessions, is declared in the module of its name in this folder."""
DEFAULT_ORDER = tuple(sorted(SPECS, key=lambda channel: SPECS[channel].place))
OWN_LIMITS = frozenset(channel for channel, spec in SPECS.items() if spec.own_limit)
_CALL_SHARE = 0.9
"""A call ends a little before its send, so that one silent device of PUSH does not hide that another one accepted."""


class ChannelRegistry(dict[Channel, ChannelAdapter]):
    """Channels that are turned on."""

    def reachable(self, channel: Channel, contacts: Contacts) -> str:
        """Return why a channel can't be used, empty if it can; for any thread."""
        if (adapter := self.get(channel)) is None:
            return NOT_CONFIGURED
        return adapter.reachable(contacts) if contacts.on(channel) else NO_CONTACT


@asynccontextmanager
async def open_channels(settings: EventChannelSettings) -> AsyncIterator[ChannelRegistry]:
    """Open the channels that ``EventsSettings`` turn on; their connections close with the context.

    Raises:
        BadSettings: A channel's setting can't be used; names its variable.
    """
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(Http(settings.send_timeout_seconds * _CALL_SHARE))
        opened = {channel: spec.open(settings, http, stack) for channel, spec in SPECS.items()}
        yield ChannelRegistry({channel: adapter for channel, adapter in opened.items() if adapter})
