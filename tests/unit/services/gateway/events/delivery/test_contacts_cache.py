"""Removal of a destination that no longer exists, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.delivery.contacts_cache import without
from dexorder_gateway.events.model import Contacts, WebPushSubscription

ONE, TWO = (WebPushSubscription(f"https://push/{n}", "p", "a") for n in (1, 2))
ALL = Contacts("7", "a@b", (ONE, TWO), ("t1", "t2"), "https://discord/1", "https://slack/1")


@pytest.mark.parametrize(
    ("channel", "destination", "left"),
    [
        (Channel.PUSH, "https://push/1", replace(ALL, web_push=(TWO,))),
        (Channel.PUSH, "t2", replace(ALL, mobile_tokens=("t1",))),
        (Channel.TELEGRAM, "7", replace(ALL, telegram_chat_id="")),
        (Channel.EMAIL, "a@b", replace(ALL, email="")),
        (Channel.DISCORD, "https://discord/1", replace(ALL, discord_webhook_url="")),
        (Channel.SLACK, "https://slack/1", replace(ALL, slack_webhook_url="")),
        (Channel.TELEGRAM, "8", ALL),  # changed in the meantime
        (Channel.WEB, "7", ALL),
    ],
)
def test_without(channel: Channel, destination: str, left: Contacts) -> None:
    assert without(ALL, channel, destination) == left
