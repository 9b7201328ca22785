"""Channels over users' webhooks. The URL comes from the user, so it is called only if its host is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.http import AllowedHosts, Http, ProviderAnswer
from dexorder_gateway.events.channels.spec import ChannelSpec, EventChannelSettings, S, TextField
from dexorder_gateway.events.model import (
    HOST_NOT_ALLOWED,
    NO_CONTACT,
    NOT_ACCEPTED,
    Contacts,
    EventMessage,
    Result,
    SendRefused,
)

MAX_URL_CHARACTERS = 2_048
VISIBLE = re.compile(r"[!-~]+")


def check_url(name: str, url: str, listed: str, settings: EventChannelSettings) -> None:
    """Raise InvalidRequest unless a user's URL may be called. The channel checks again when it sends."""
    if len(url) > MAX_URL_CHARACTERS or not VISIBLE.fullmatch(url):
        raise InvalidRequest(f"{name} is not a URL of at most {MAX_URL_CHARACTERS} visible characters")
    if not AllowedHosts(listed, plain_http=settings.plain_http).parse(url):
        raise InvalidRequest(f"{name}: {HOST_NOT_ALLOWED}")


@dataclass(frozen=True, slots=True)
class WebhookProvider:
    """Differences between providers of webhooks.

    Attributes:
        body: Writes a message as the JSON to post.
        reasons: Reasons of permanent refusals by status, or by the start of the answer's text.
        query: Parameters added to the URL.
    """

    channel: Channel
    body: Callable[[EventMessage], dict[str, Any]]
    reasons: Mapping[int | str, str]
    query: Mapping[str, str] = field(default_factory=dict)


class Webhook:
    """Client of the users' webhooks at one provider, limited to allowed hosts."""

    def __init__(self, provider: WebhookProvider, http: Http, hosts: AllowedHosts) -> None:
        self._provider = provider
        self._http = http
        self._hosts = hosts

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        url = contacts.address(self._provider.channel)
        if not url:
            return NO_CONTACT
        return "" if self._hosts.parse(url) else HOST_NOT_ALLOWED

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        url = self._hosts.parse(contacts.address(self._provider.channel))
        if url is None:
            return SendRefused(self.reachable(contacts))
        if self._provider.query:
            url = url.update_query(self._provider.query)
        answer = await self._http.post(url, json=self._provider.body(message))
        if not isinstance(answer, ProviderAnswer):
            return answer
        # A JSON body has the exact wait, where the header is rounded up; other bodies are text.
        if later := answer.later(answer.json().get("retry_after")):
            return later
        text = answer.body[:64].decode(errors="replace").strip()
        reasons = self._provider.reasons
        return SendRefused(reasons.get(answer.status) or reasons.get(text, NOT_ACCEPTED))


def webhook_spec(provider: WebhookProvider, *, word: str, place: int, settings: type[S]) -> ChannelSpec[S]:
    """Return the declaration of a channel with the contact ``<channel>_webhook_url``.

    Its setting ``<channel>_hosts`` lists the allowed hosts, comma-separated; empty turns the channel off.
    """
    name = provider.channel.name.lower()
    hosts: Callable[[S], str] = attrgetter(f"{name}_hosts")

    def check(field: str, url: str, settings: S) -> None:
        check_url(field, url, hosts(settings), settings)

    def adapter(settings: S, http: Http, _: object) -> Webhook | None:
        listed = hosts(settings)
        return Webhook(provider, http, AllowedHosts(listed, plain_http=settings.plain_http)) if listed else None

    return ChannelSpec(
        channel=provider.channel,
        word=word,
        place=place,
        settings=settings,
        contacts=(TextField(f"{name}_webhook_url", check, secret=True),),
        open=adapter,
        setup=f"`{name.upper()}_HOSTS`",
        own_limit=True,
    )
