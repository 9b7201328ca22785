"""Messages to a user's Slack webhook."""

from __future__ import annotations

from typing import Any, Final

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.spec import EventChannelSettings, truncate
from dexorder_gateway.events.channels.webhook import WebhookProvider, webhook_spec
from dexorder_gateway.events.model import EventMessage

_MAX_TEXT = 4000
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_TABLE = str.maketrans(_ESCAPES)


def _body(message: EventMessage) -> dict[str, Any]:
    text = truncate(f"{message.title}\n{message.body}", _MAX_TEXT, _size)
    return {"text": text.translate(_TABLE), "mrkdwn": False}  # without markup only three characters need escapes


def _size(character: str) -> int:
    return len(_ESCAPES.get(character, character))


class SlackSettings(EventChannelSettings):
    """Hosts of webhooks."""

    slack_hosts: str = "hooks.slack.com"
    """Comma-separated hosts of users' Slack webhooks."""


SPEC: Final = webhook_spec(
    WebhookProvider(
        Channel.SLACK,
        _body,
        {
            "invalid_token": "the webhook's token is refused",
            "action_prohibited": "the workspace does not allow it",
            "channel_not_found": "no such channel",
            "channel_is_archived": "the channel is archived",
            "no_service": "no such webhook",
            "no_team": "no such workspace",
            "user_not_found": "no such user",
        },
    ),
    word="Slack",
    place=5,
    settings=SlackSettings,
)
