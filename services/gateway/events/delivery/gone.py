"""Contacts without a destination that no longer exists. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.common.model.user_events import Channel
from services.gateway.events.model import Contacts

_SINGLE = {
    Channel.TELEGRAM: "telegram_chat_id",
    Channel.EMAIL: "email",
    Channel.DISCORD: "discord_webhook_url",
    Channel.SLACK: "slack_webhook_url",
}


def without(contacts: Contacts, channel: Channel, destination: str) -> Contacts:
    """The same but for a destination: chat id, address, URL, token, or a subscription by its endpoint."""
    if channel is Channel.PUSH:
        return replace(
            contacts,
            web_push=tuple(each for each in contacts.web_push if each.endpoint != destination),
            mobile_tokens=tuple(each for each in contacts.mobile_tokens if each != destination),
        )
    name = _SINGLE.get(channel, "")
    emptied: dict[str, Any] = {name: ""} if name and getattr(contacts, name) == destination else {}
    return replace(contacts, **emptied)
