"""Messages by a user's Slack webhook."""

from __future__ import annotations

from typing import Final

from services.common.model.user_events import Channel
from services.gateway.events.channels.adapter import HOST_NOT_ALLOWED, NO_CONTACT
from services.gateway.events.channels.hosts import Hosts
from services.gateway.events.channels.http import Answer, Http
from services.gateway.events.channels.text import cut
from services.gateway.events.model import Contacts, Later, Message, Refused, Result, Sent

_MOST_TEXT = 4000
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_TABLE = str.maketrans(_ESCAPES)
_REASONS: Final = {
    "invalid_token": "the webhook's token is refused",
    "action_prohibited": "the workspace does not allow it",
    "channel_not_found": "no such channel",
    "channel_is_archived": "the channel is archived",
    "no_service": "no such webhook",
    "no_team": "no such workspace",
    "user_not_found": "no such user",
}
"""Slack's words and ours."""


class Slack:
    """Webhooks of users, as far as their hosts are listed."""

    channel = Channel.SLACK

    def __init__(self, http: Http, hosts: Hosts) -> None:
        self._http = http
        self._hosts = hosts

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        if not contacts.slack_webhook_url:
            return NO_CONTACT
        return "" if self._hosts.allowed(contacts.slack_webhook_url) else HOST_NOT_ALLOWED

    async def send(self, message: Message, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        url = self._hosts.allowed(contacts.slack_webhook_url)
        if url is None:
            return Refused(self.reachable(contacts))
        text = cut(f"{message.title}\n{message.body}", _MOST_TEXT, _escaped_size)
        # without Slack's own markup only three characters mean something
        answer = await self._http.post(url, json={"text": text.translate(_TABLE), "mrkdwn": False})
        return answer if isinstance(answer, Later) else _result(answer)


def _escaped_size(character: str) -> int:
    return len(_ESCAPES.get(character, character))


def _result(answer: Answer) -> Result:
    if answer.ok:
        return Sent()
    said = answer.body[:64].decode(errors="replace").strip()
    return answer.later() or Refused(_REASONS.get(said, "not accepted"))
