"""Push messages to all browsers and phones of a user."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.http import AllowedHosts, Http
from dexorder_gateway.events.channels.spec import HIDDEN, BaseUrl, ChannelSpec, EventChannelSettings, OptionalPath
from dexorder_gateway.events.channels.webhook import VISIBLE, check_url
from dexorder_gateway.events.model import (
    NO_CONTACT,
    NOT_CONFIGURED,
    Contacts,
    Destination,
    EventMessage,
    Later,
    Result,
    SendRefused,
    Sent,
    WebPushSubscription,
)

if TYPE_CHECKING:
    from dexorder_gateway.events.channels.mobile_push import MobilePush
    from dexorder_gateway.events.channels.web_push import WebPush
    from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb

MAX_DEVICES = 20
MAX_TOKEN_CHARACTERS = 4_096
_POINT_BYTES = 65
_AUTH_BYTES = 16


class PushSettings(EventChannelSettings):
    """Keys for the push services."""

    vapid_key: OptionalPath = None
    """PEM file of the private key for web push; empty turns it off."""
    vapid_contact: str = "mailto:dexorder@localhost"
    """``mailto:`` or ``https:`` address that a push service may contact."""
    push_hosts: str = "fcm.googleapis.com,*.push.services.mozilla.com,*.notify.windows.com,*.push.apple.com"
    """Comma-separated hosts of browsers' push subscriptions; ``*.`` matches any subdomain."""
    fcm_credentials: OptionalPath = None
    """Google's service account file for mobile push; empty turns it off."""
    fcm_url: BaseUrl = "https://fcm.googleapis.com"
    """Base URL of FCM."""


def _browsers(destinations: Sequence[Destination]) -> list[WebPushSubscription]:
    return [each for each in destinations if isinstance(each, WebPushSubscription)]


def _tokens(destinations: Sequence[Destination]) -> list[str]:
    return [each for each in destinations if isinstance(each, str)]


class Push:
    """All browsers and phones of a user. A message is sent if the service of one device accepts it."""

    def __init__(self, web: WebPush | None, mobile: MobilePush | None) -> None:
        self._web = web
        self._mobile = mobile

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        browsers, tokens = _browsers(contacts.on(Channel.PUSH)), _tokens(contacts.on(Channel.PUSH))
        if not browsers and not tokens:
            return NO_CONTACT
        if self._mobile and tokens:
            return ""
        if not self._web or not browsers:
            return NOT_CONFIGURED
        reasons = [self._web.reachable(browser) for browser in browsers]
        return "" if "" in reasons else reasons[0]

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        if reason := self.reachable(contacts):
            return SendRefused(reason)
        sends: list[Awaitable[Result]] = []
        if self._web:
            sends += [self._web.send(message, browser) for browser in _browsers(contacts.on(Channel.PUSH))]
        if self._mobile:
            sends += [self._mobile.send(message, token) for token in _tokens(contacts.on(Channel.PUSH))]
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


class WebPushField:
    """Browsers; only the secret of a subscription is hidden."""

    name = "web_push"

    def show(self, destinations: Sequence[Destination]) -> list[dict[str, str]]:
        """See `ContactField`."""
        return [asdict(replace(each, auth=HIDDEN)) for each in _browsers(destinations)]

    def read(
        self, given: Sequence[pb.WebPushSubscription], before: Sequence[Destination], settings: PushSettings
    ) -> tuple[Destination, ...]:
        """See `ContactField`."""
        _check_count(self.name, len(given))
        known = {each.endpoint: each.auth for each in _browsers(before)}
        found: dict[str, Destination] = {}
        for index, each in enumerate(given):
            name = f"{self.name}[{index}]"
            auth = known.get(each.endpoint, "") if each.auth == HIDDEN else each.auth
            check_url(f"{name}.endpoint", each.endpoint, settings.push_hosts, settings)
            if _decoded_size(each.p256dh) != _POINT_BYTES:
                raise InvalidRequest(f"{name}.p256dh is not base64url of {_POINT_BYTES} bytes")
            if _decoded_size(auth) != _AUTH_BYTES:
                raise InvalidRequest(f"{name}.auth is not base64url of {_AUTH_BYTES} bytes")
            found[each.endpoint] = WebPushSubscription(each.endpoint, each.p256dh, auth)
        return tuple(found.values())


class MobileTokensField:
    """Phones. As many `HIDDEN` as there are tokens keep them all."""

    name = "mobile_tokens"

    def show(self, destinations: Sequence[Destination]) -> list[str]:
        """See `ContactField`."""
        return [HIDDEN for _ in _tokens(destinations)]

    def read(
        self, given: Sequence[str], before: Sequence[Destination], settings: PushSettings
    ) -> tuple[Destination, ...]:
        """See `ContactField`."""
        known = _tokens(before)
        hidden = sum(token == HIDDEN for token in given)
        if hidden not in (0, len(known)):
            raise InvalidRequest(f"{self.name} has {hidden} times {HIDDEN} for {len(known)} tokens; keep all or none")
        kept = iter(known)
        tokens = tuple(dict.fromkeys(next(kept) if token == HIDDEN else token for token in given))
        _check_count(self.name, len(tokens))
        for index, token in enumerate(tokens):
            if len(token) > MAX_TOKEN_CHARACTERS or not VISIBLE.fullmatch(token):
                raise InvalidRequest(
                    f"{self.name}[{index}] does not have 1 to {MAX_TOKEN_CHARACTERS} visible characters"
                )
        return tokens


def _check_count(name: str, count: int) -> None:
    if count > MAX_DEVICES:
        raise InvalidRequest(f"{name} has {count} entries; at most {MAX_DEVICES} are allowed")


def _decoded_size(text: str) -> int | None:
    """Return the number of bytes that base64url stands for, with or without padding; None if it is invalid."""
    try:
        return len(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None


def _open(settings: PushSettings, http: Http, stack: AsyncExitStack) -> Push | None:
    web = mobile = None
    if settings.vapid_key:
        from dexorder_gateway.events.channels.web_push import WebPush

        hosts = AllowedHosts(settings.push_hosts, plain_http=settings.plain_http)
        web = WebPush(http, hosts, settings.vapid_key, settings.vapid_contact)
    if settings.fcm_credentials:
        from dexorder_gateway.events.channels.mobile_push import MobilePush

        mobile = MobilePush(http, settings.fcm_credentials, settings.fcm_url, http.timeout_seconds)
    return Push(web, mobile) if web or mobile else None


SPEC: Final = ChannelSpec(
    channel=Channel.PUSH,
    word="Push",
    place=2,
    settings=PushSettings,
    contacts=(WebPushField(), MobileTokensField()),
    open=_open,
    setup="browsers: `VAPID_KEY` (P-256, PEM: `openssl ecparam -name prime256v1 -genkey -noout`), `VAPID_CONTACT`, "
    "hosts in `PUSH_HOSTS`; phones: `FCM_CREDENTIALS`, the service account's JSON",
    needs=f"up to {MAX_DEVICES} each",
)
