"""Messages to a user's Discord webhook."""

from __future__ import annotations

import re
from typing import Any, Final

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.spec import EventChannelSettings, truncate, utf16_units
from dexorder_gateway.events.channels.webhook import WebhookProvider, webhook_spec
from dexorder_gateway.events.model import EventMessage

_MAX_TITLE = 256
_MAX_TEXT = 2000
_AROUND_TITLE = len("****\n")
_MARKS = re.compile(r"(https?://[^\s<]+)|([\\*_~`|\[\]<]|^[^\S\n]*(?:[>#-]|\d+\.(?=\s)))", re.MULTILINE)
"""Markdown of which the last character is escaped; quotes, headings and lists may be indented. Links stay as they are,
or they would no longer lead anywhere."""
_MARK_CHARACTERS = frozenset(r"\*_~`|[]<>#-.")


def _body(message: EventMessage) -> dict[str, Any]:
    title = truncate(message.title, _MAX_TITLE, _size)
    room = _MAX_TEXT - _AROUND_TITLE - sum(map(_size, title))
    text = f"**{_escaped(title)}**\n{_escaped(truncate(message.body, room, _size))}"
    return {"content": text, "allowed_mentions": {"parse": []}}  # a payload's text must not mention users


def _escaped(text: str) -> str:
    return _MARKS.sub(lambda mark: mark[1] or f"{mark[2][:-1]}\\{mark[2][-1]}", text)


def _size(character: str) -> int:
    return utf16_units(character) + (character in _MARK_CHARACTERS)


class DiscordSettings(EventChannelSettings):
    """Hosts of webhooks."""

    discord_hosts: str = "discord.com,discordapp.com"
    """Comma-separated hosts of users' Discord webhooks, each with its port if that is not 443."""


SPEC: Final = webhook_spec(
    WebhookProvider(
        Channel.DISCORD,
        _body,
        {
            401: "the webhook's token is refused",
            403: "the webhook is refused",
            404: "no such webhook",
        },
        {"wait": "true"},  # answer only once the message is stored
    ),
    word="Discord",
    place=4,
    settings=DiscordSettings,
)
