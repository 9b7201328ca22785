"""The channels that are set. Libraries that only one of them needs are loaded with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from services.common.model.user_events import Channel
from services.gateway.events.channels.adapter import NOT_CONFIGURED, ChannelAdapter
from services.gateway.events.channels.discord import Discord
from services.gateway.events.channels.hosts import Hosts
from services.gateway.events.channels.http import Http
from services.gateway.events.channels.push import Push
from services.gateway.events.channels.slack import Slack
from services.gateway.events.channels.telegram import Telegram
from services.gateway.events.config import EventsSettings
from services.gateway.events.model import Contacts

_CALL_SHARE = 0.9
"""A call ends a little before its send: one silent device of PUSH then does not hide that another one took it."""


class ChannelRegistry(dict[Channel, ChannelAdapter]):
    """By channel; one that is not there is not turned on."""

    def reachable(self, channel: Channel, contacts: Contacts) -> str:
        """Empty, or why nothing can be sent; from any thread."""
        way = self.get(channel)
        return way.reachable(contacts) if way else NOT_CONFIGURED


@asynccontextmanager
async def open_channels(settings: EventsSettings) -> AsyncIterator[ChannelRegistry]:
    """Make the channels that are set; their connections end with the context.

    Raises:
        BadSettings: A channel's setting can't be used; names its variable.
    """
    timeout_seconds = settings.send_timeout_seconds * _CALL_SHARE
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(Http(timeout_seconds))
        ways = [*_posting(settings, http), *_push(settings, http, timeout_seconds)]
        if settings.smtp_url.get_secret_value():
            from services.gateway.events.channels.email import Email

            email = Email(settings.smtp_url, settings.smtp_from, timeout_seconds)
            stack.push_async_callback(email.close)
            ways.append(email)
        yield ChannelRegistry({way.channel: way for way in ways})


def _posting(settings: EventsSettings, http: Http) -> Iterable[ChannelAdapter]:
    if settings.telegram_token.get_secret_value():
        yield Telegram(http, settings.telegram_url, settings.telegram_token)
    if settings.discord_hosts:
        yield Discord(http, Hosts(settings.discord_hosts, plain_http=settings.plain_http))
    if settings.slack_hosts:
        yield Slack(http, Hosts(settings.slack_hosts, plain_http=settings.plain_http))


def _push(settings: EventsSettings, http: Http, timeout_seconds: float) -> Iterable[ChannelAdapter]:
    web = mobile = None
    if settings.vapid_key:
        from services.gateway.events.channels.web_push import WebPush

        hosts = Hosts(settings.push_hosts, plain_http=settings.plain_http)
        web = WebPush(http, hosts, settings.vapid_key, settings.vapid_contact)
    if settings.fcm_credentials:
        from services.gateway.events.channels.mobile_push import MobilePush

        mobile = MobilePush(http, settings.fcm_credentials, settings.fcm_url, timeout_seconds)
    if web or mobile:
        yield Push(web, mobile)
