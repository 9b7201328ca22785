"""Channels that the settings turn on. A library that only one channel needs is loaded with that channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.adapter import NO_CONTACT, NOT_CONFIGURED, ChannelAdapter
from dexorder_gateway.events.channels.http import AllowedHosts, Http
from dexorder_gateway.events.channels.telegram import Telegram
from dexorder_gateway.events.channels.webhooks import DISCORD, SLACK, Webhook
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.model import Contacts, EventMessage, Later, Result, SendRefused, Sent

if TYPE_CHECKING:
    from dexorder_gateway.events.channels.mobile_push import MobilePush
    from dexorder_gateway.events.channels.web_push import WebPush

_CALL_SHARE = 0.9
"""A call ends a little before its send, so that one silent device of PUSH does not hide that another one accepted."""


class ChannelRegistry(dict[Channel, ChannelAdapter]):
    """Channels that are turned on."""

    def reachable(self, channel: Channel, contacts: Contacts) -> str:
        """Return why nothing can be sent on a channel, empty if it can; for any thread."""
        adapter = self.get(channel)
        return adapter.reachable(contacts) if adapter else NOT_CONFIGURED


@asynccontextmanager
async def open_channels(settings: EventsSettings) -> AsyncIterator[ChannelRegistry]:
    """Open the channels that are turned on; their connections close with the context.

    Raises:
        BadSettings: A channel's setting can't be used; names its variable.
    """
    timeout_seconds = settings.send_timeout_seconds * _CALL_SHARE
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(Http(timeout_seconds))
        adapters = [*_http_channels(settings, http), *_push_channel(settings, http, timeout_seconds)]
        if settings.smtp_url.get_secret_value():
            from dexorder_gateway.events.channels.email import Email

            email = Email(settings.smtp_url, settings.smtp_from, timeout_seconds)
            stack.push_async_callback(email.close)
            adapters.append(email)
        yield ChannelRegistry({adapter.channel: adapter for adapter in adapters})


def _http_channels(settings: EventsSettings, http: Http) -> Iterable[ChannelAdapter]:
    if settings.telegram_token.get_secret_value():
        yield Telegram(http, settings.telegram_url, settings.telegram_token)
    for provider, listed in ((DISCORD, settings.discord_hosts), (SLACK, settings.slack_hosts)):
        if listed:
            yield Webhook(provider, http, AllowedHosts(listed, plain_http=settings.plain_http))


def _push_channel(settings: EventsSettings, http: Http, timeout_seconds: float) -> Iterable[ChannelAdapter]:
    web = mobile = None
    if settings.vapid_key:
        from dexorder_gateway.events.channels.web_push import WebPush

        hosts = AllowedHosts(settings.push_hosts, plain_http=settings.plain_http)
        web = WebPush(http, hosts, settings.vapid_key, settings.vapid_contact)
    if settings.fcm_credentials:
        from dexorder_gateway.events.channels.mobile_push import MobilePush

        mobile = MobilePush(http, settings.fcm_credentials, settings.fcm_url, timeout_seconds)
    if web or mobile:
        yield Push(web, mobile)


class Push:
    """All browsers and phones of a user. A message is sent if the service of one device accepts it."""

    channel = Channel.PUSH

    def __init__(self, web: WebPush | None, mobile: MobilePush | None) -> None:
        self._web = web
        self._mobile = mobile

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        if not contacts.web_push and not contacts.mobile_tokens:
            return NO_CONTACT
        if self._mobile and contacts.mobile_tokens:
            return ""
        if not self._web or not contacts.web_push:
            return NOT_CONFIGURED
        reasons = [self._web.reachable(subscription) for subscription in contacts.web_push]
        return "" if "" in reasons else reasons[0]

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        if reason := self.reachable(contacts):
            return SendRefused(reason)
        sends: list[Awaitable[Result]] = []
        if self._web:
            sends += [self._web.send(message, subscription) for subscription in contacts.web_push]
        if self._mobile:
            sends += [self._mobile.send(message, token) for token in contacts.mobile_tokens]
        return combine_results(await asyncio.gather(*sends))


def combine_results(results: Sequence[Result]) -> Result:
    """Return one result for several devices (at least one): the best one, with all destinations that are gone.

    Of several `Later` the one with the shortest wait counts.
    """
    gone = tuple(place for result in results if not isinstance(result, Later) for place in result.gone)
    if any(isinstance(result, Sent) for result in results):
        return Sent(gone)
    if later := [result for result in results if isinstance(result, Later)]:
        return min(later, key=lambda result: result.retry_after_ms or 0)
    reasons = dict.fromkeys(result.reason for result in results if isinstance(result, SendRefused))
    return SendRefused(", ".join(reasons), gone)
