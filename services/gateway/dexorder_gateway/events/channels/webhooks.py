"""Messages to a user's Discord or Slack webhook."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.adapter import (
    HOST_NOT_ALLOWED,
    NO_CONTACT,
    NOT_ACCEPTED,
    truncate,
    utf16_units,
)
from dexorder_gateway.events.channels.http import AllowedHosts, Http, ProviderAnswer
from dexorder_gateway.events.model import Contacts, EventMessage, Result, SendRefused


@dataclass(frozen=True, slots=True)
class WebhookProvider:
    """Differences between providers of webhooks.

    Attributes:
        url: Reads the user's webhook from the contacts.
        body: Writes a message as the JSON to post.
        reasons: Reasons of permanent refusals by status, or by the beginning of the answer's text.
        query: Parameters added to the URL.
    """

    channel: Channel
    url: Callable[[Contacts], str]
    body: Callable[[EventMessage], dict[str, Any]]
    reasons: Mapping[int | str, str]
    query: Mapping[str, str] = field(default_factory=dict)


class Webhook:
    """Channel over the users' webhooks at one provider, limited to allowed hosts."""

    def __init__(self, provider: WebhookProvider, http: Http, hosts: AllowedHosts) -> None:
        self.channel = provider.channel
        self._provider = provider
        self._http = http
        self._hosts = hosts

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        url = self._provider.url(contacts)
        if not url:
            return NO_CONTACT
        return "" if self._hosts.parse(url) else HOST_NOT_ALLOWED

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        url = self._hosts.parse(self._provider.url(contacts))
        if url is None:
            return SendRefused(self.reachable(contacts))
        if self._provider.query:
            url = url.update_query(self._provider.query)
        answer = await self._http.post(url, json=self._provider.body(message))
        if not isinstance(answer, ProviderAnswer):
            return answer
        # Discord's body has the exact wait, its header is rounded up; Slack's body is text.
        if later := answer.later(answer.json().get("retry_after")):
            return later
        text = answer.body[:64].decode(errors="replace").strip()
        reasons = self._provider.reasons
        return SendRefused(reasons.get(answer.status) or reasons.get(text, NOT_ACCEPTED))


_MAX_DISCORD_TITLE = 256
_MAX_DISCORD_TEXT = 2000
_AROUND_TITLE = len("****\n")
_MARKS = re.compile(r"(https?://[^\s<]+)|([\\*_~`|\[\]<]|^[^\S\n]*(?:[>#-]|\d+\.(?=\s)))", re.MULTILINE)
"""Markdown of which the last character is escaped; quotes, headings and lists may be indented. Links stay as they are,
or they would no longer lead anywhere."""
_MARK_CHARACTERS = frozenset(r"\*_~`|[]<>#-.")


def _discord_body(message: EventMessage) -> dict[str, Any]:
    title = truncate(message.title, _MAX_DISCORD_TITLE, _discord_size)
    room = _MAX_DISCORD_TEXT - _AROUND_TITLE - sum(map(_discord_size, title))
    text = f"**{_discord_escaped(title)}**\n{_discord_escaped(truncate(message.body, room, _discord_size))}"
    return {"content": text, "allowed_mentions": {"parse": []}}  # a payload's text must not mention anybody


def _discord_escaped(text: str) -> str:
    return _MARKS.sub(lambda mark: mark[1] or f"{mark[2][:-1]}\\{mark[2][-1]}", text)


def _discord_size(character: str) -> int:
    return utf16_units(character) + (character in _MARK_CHARACTERS)


DISCORD: Final = WebhookProvider(
    Channel.DISCORD,
    attrgetter("discord_webhook_url"),
    _discord_body,
    {
        401: "the webhook's token is refused",
        403: "the webhook is refused",
        404: "no such webhook",
    },
    {"wait": "true"},  # answer only once the message is stored
)


_MAX_SLACK_TEXT = 4000
_SLACK_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SLACK_TABLE = str.maketrans(_SLACK_ESCAPES)


def _slack_body(message: EventMessage) -> dict[str, Any]:
    text = truncate(f"{message.title}\n{message.body}", _MAX_SLACK_TEXT, _slack_size)
    return {"text": text.translate(_SLACK_TABLE), "mrkdwn": False}  # without markup only three characters need escapes


def _slack_size(character: str) -> int:
    return len(_SLACK_ESCAPES.get(character, character))


SLACK: Final = WebhookProvider(
    Channel.SLACK,
    attrgetter("slack_webhook_url"),
    _slack_body,
    {
        "invalid_token": "the webhook's token is refused",
        "action_prohibited": "the workspace does not allow it",
        "channel_not_found": "no such channel",
        "channel_is_archived": "the channel is archived",
        "no_service": "no such webhook",
        "no_team": "no such workspace",
        "user_not_found": "no such user",
    },
)
