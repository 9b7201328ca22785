"""Values whose repr shows no contact of a user; removal of a destination that no longer exists, and of nothing else."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.channels.registry import SPECS
from dexorder_gateway.events.delivery.changes import DeliveryChanges, SendRequest
from dexorder_gateway.events.model import Contacts, EventKey, EventMessage, SendRefused, Sent, WebPushSubscription
from tests.fakes.events.contacts import contacts_with

HIDDEN = "4711-alice"


@pytest.mark.parametrize("name", [field.name for spec in SPECS.values() for field in spec.contacts])
def test_repr_hides_contacts(name: str) -> None:
    browser = WebPushSubscription(**{each.name: HIDDEN for each in fields(WebPushSubscription)})
    contacts = contacts_with(**{name: (browser,) if name == "web_push" else (HIDDEN,)})
    assert contacts.destinations
    message = EventMessage("aa", "t", "b", Priority.NORMAL, 1)
    assert HIDDEN not in repr(contacts)
    assert HIDDEN not in repr(SendRequest(EventKey("c", "e"), 1, Channel.EMAIL, "alice", message, contacts))


def test_repr_hides_missing_destinations() -> None:
    changes = DeliveryChanges()
    changes.gone.append(("alice", Channel.PUSH, HIDDEN))
    assert HIDDEN not in f"{Sent((HIDDEN,))} {SendRefused('no such address', (HIDDEN,))} {changes}"


ONE, TWO = (WebPushSubscription(f"https://push/{n}", "p", "a") for n in (1, 2))
ALL = contacts_with(
    telegram_chat_id="7",
    email="a@b",
    web_push=(ONE, TWO),
    mobile_tokens=("t1", "t2"),
    discord_webhook_url="https://discord/1",
    slack_webhook_url="https://slack/1",
)


@pytest.mark.parametrize(
    ("channel", "destination", "left"),
    [
        (Channel.PUSH, "https://push/1", contacts_with(ALL, web_push=(TWO,))),
        (Channel.PUSH, "t2", contacts_with(ALL, mobile_tokens=("t1",))),
        (Channel.TELEGRAM, "7", contacts_with(ALL, telegram_chat_id="")),
        (Channel.EMAIL, "a@b", contacts_with(ALL, email="")),
        (Channel.DISCORD, "https://discord/1", contacts_with(ALL, discord_webhook_url="")),
        (Channel.SLACK, "https://slack/1", contacts_with(ALL, slack_webhook_url="")),
        (Channel.TELEGRAM, "8", ALL),  # changed in the meantime
        (Channel.WEB, "7", ALL),
    ],
)
def test_without(channel: Channel, destination: str, left: Contacts) -> None:
    assert ALL.without(channel, destination) == left
