"""Messages to a user's Matrix room, through an inbound webhook of the bridge Hookshot."""

from __future__ import annotations

import html
from typing import Any, Final

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.spec import EventChannelSettings, truncate, utf8_bytes
from dexorder_gateway.events.channels.webhook import WebhookProvider, webhook_spec
from dexorder_gateway.events.model import EventMessage

_MAX_TITLE = 1_000
_MAX_TEXT = 16_000  # text and HTML are two fields of one Matrix event, which has at most 65,536 bytes
_BREAK = "<br>"


def _body(message: EventMessage) -> dict[str, Any]:
    title = truncate(message.title, _MAX_TITLE, _size)
    body = truncate(message.body, _MAX_TEXT, _size)
    # without HTML, Hookshot would read the text as Markdown
    return {"text": f"{title}\n{body}", "html": f"<b>{_escaped(title)}</b>{_BREAK}{_escaped(body)}"}


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("\n", _BREAK)


def _size(character: str) -> int:
    return utf8_bytes(_escaped(character))


class MatrixSettings(EventChannelSettings):
    """Hosts of webhooks."""

    matrix_hosts: str = ""
    """Comma-separated hosts of users' Matrix webhooks (Hookshot); empty turns the channel off."""


SPEC: Final = webhook_spec(
    WebhookProvider(Channel.MATRIX, _body, {403: "the webhook is refused", 404: "no such webhook"}),
    word="Matrix",
    place=6,
    settings=MatrixSettings,
)
