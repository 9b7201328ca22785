"""Messages by a user's Discord webhook."""

from __future__ import annotations

import re
from typing import Final

from services.common.model.user_events import Channel
from services.gateway.events.channels.adapter import HOST_NOT_ALLOWED, NO_CONTACT
from services.gateway.events.channels.hosts import Hosts
from services.gateway.events.channels.http import Answer, Http
from services.gateway.events.channels.text import cut, utf16_units
from services.gateway.events.model import Contacts, Later, Message, Refused, Result, Sent

_MOST_TITLE, _MOST_TEXT = 256, 2000
_AROUND_TITLE = len("****\n")
_MARKS = re.compile(r"(https?://[^\s<]+)|([\\*_~`|\[\]<]|^[^\S\n]*(?:[>#-]|\d+\.(?=\s)))", re.MULTILINE)
"""Markdown, of which the last character is escaped: quotes, headings and lists may be indented. Not within links, which
would no longer lead anywhere."""
_MARK_CHARACTERS = frozenset(r"\*_~`|[]<>#-.")
_REASONS: Final = {
    400: "not accepted",
    401: "the webhook's token is refused",
    403: "the webhook is refused",
    404: "no such webhook",
}


class Discord:
    """Webhooks of users, as far as their hosts are listed."""

    channel = Channel.DISCORD

    def __init__(self, http: Http, hosts: Hosts) -> None:
        self._http = http
        self._hosts = hosts

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        if not contacts.discord_webhook_url:
            return NO_CONTACT
        return "" if self._hosts.allowed(contacts.discord_webhook_url) else HOST_NOT_ALLOWED

    async def send(self, message: Message, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        url = self._hosts.allowed(contacts.discord_webhook_url)
        if url is None:
            return Refused(self.reachable(contacts))
        # wait: answered only once it is stored; nobody can be mentioned by what an event's payload says
        asked = {"content": _markdown(message), "allowed_mentions": {"parse": []}}
        answer = await self._http.post(url.update_query(wait="true"), json=asked)
        return answer if isinstance(answer, Later) else _result(answer)


def _markdown(message: Message) -> str:
    title = cut(message.title, _MOST_TITLE, _escaped_size)
    room = _MOST_TEXT - _AROUND_TITLE - sum(map(_escaped_size, title))
    return f"**{_escaped(title)}**\n{_escaped(cut(message.body, room, _escaped_size))}"


def _escaped(text: str) -> str:
    return _MARKS.sub(lambda mark: mark[1] or f"{mark[2][:-1]}\\{mark[2][-1]}", text)


def _escaped_size(character: str) -> int:
    return utf16_units(character) + (character in _MARK_CHARACTERS)


def _result(answer: Answer) -> Result:
    if answer.ok:
        return Sent()
    # the body's wait has fractions, the header is rounded up
    return answer.later(answer.json().get("retry_after")) or Refused(_REASONS.get(answer.status, "not accepted"))
