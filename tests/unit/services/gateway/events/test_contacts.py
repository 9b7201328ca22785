"""Accepted and refused contacts, and their secrets."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.spec import HIDDEN
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.model import NO_CONTACTS, Contacts, QuietHours, WebPushSubscription
from dexorder_gateway.events.proto_mapping import contacts_answer, contacts_of
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as events_pb
from tests.fakes.events.contacts import contacts_with, destinations

POINT = base64.urlsafe_b64encode(b"\x04" + bytes(64)).rstrip(b"=").decode()
AUTH = base64.urlsafe_b64encode(bytes(range(16))).rstrip(b"=").decode()
FULL = contacts_with(
    telegram_chat_id="-100123",
    email="alice@example.com",
    web_push=(WebPushSubscription("https://push/1", POINT, AUTH), WebPushSubscription("https://push/2", POINT, AUTH)),
    mobile_tokens=("m1:secret", "m2:secret"),
    discord_webhook_url="https://discord/secret",
    slack_webhook_url="https://slack/secret",
    channel_order=(Channel.EMAIL, Channel.TELEGRAM),
    quiet_hours=QuietHours(22 * 60, 7 * 60, "Europe/Berlin"),
)


HOSTS: dict[str, Any] = {"push_hosts": "push", "discord_hosts": "discord", "slack_hosts": "slack"}
SETTINGS = EventsSettings(**HOSTS)


def accepted(given: pb.Contacts, before: Contacts = NO_CONTACTS) -> Contacts:
    return contacts_of(given, before, SETTINGS)


def test_contacts_that_are_read_and_written_back_stay_the_same() -> None:
    shown = contacts_answer(FULL)
    assert "secret" not in str(shown)
    assert AUTH not in str(shown)
    assert accepted(shown, FULL) == FULL
    assert accepted(pb.Contacts(), FULL) == NO_CONTACTS


def test_a_secret_is_replaced_without_the_others() -> None:
    shown = contacts_answer(FULL)
    shown.slack_webhook_url = "https://slack/new"
    shown.mobile_tokens.append("m3")
    del shown.web_push[0]
    changed = accepted(shown, FULL)
    assert changed.on(Channel.DISCORD) == FULL.on(Channel.DISCORD)
    assert changed.on(Channel.SLACK) == ("https://slack/new",)
    assert destinations(changed, "mobile_tokens") == ("m1:secret", "m2:secret", "m3")
    assert destinations(changed, "web_push") == destinations(FULL, "web_push")[1:]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: setattr(c, "telegram_chat_id", "12; drop"), "telegram_chat_id"),
        (lambda c: setattr(c, "email", "no address"), "email"),
        (lambda c: setattr(c, "email", "a@b\r\nBcc: x"), "email"),
        (lambda c: setattr(c, "email", "a@b,c@d"), "email"),
        (lambda c: setattr(c, "email", "a" * 65 + "@b"), "email"),
        (lambda c: setattr(c, "discord_webhook_url", "https://slack/s3cret"), "discord_webhook_url: host not allowed"),
        (lambda c: setattr(c, "slack_webhook_url", "https://slack/" + "x" * 2048), "slack_webhook_url is not a URL"),
        (lambda c: setattr(c, "slack_webhook_url", "https://slack/s3cret x"), "slack_webhook_url is not a URL"),
        (lambda c: c.web_push.add(endpoint="http://inner/", p256dh=POINT, auth=AUTH), r"web_push\[2\].endpoint: host"),
        (lambda c: c.web_push.add(endpoint="https://push/3", p256dh="xx", auth=AUTH), r"web_push\[2\].p256dh"),
        (lambda c: c.web_push.add(endpoint="https://push/3", p256dh=POINT, auth="s3cret"), r"web_push\[2\].auth"),
        (lambda c: c.web_push.add(endpoint="https://push/3", p256dh=POINT, auth=HIDDEN), r"web_push\[2\].auth"),
        (lambda c: c.web_push.extend([c.web_push[0]] * 20), "web_push has 22 entries"),
        (lambda c: c.mobile_tokens.append(HIDDEN), r"mobile_tokens has 3 times \*\*\* for 2 tokens"),
        (lambda c: c.mobile_tokens.pop(), r"mobile_tokens has 1 times \*\*\* for 2 tokens"),
        (lambda c: c.mobile_tokens.append("s3cret token"), r"mobile_tokens\[2\]"),
        (lambda c: c.mobile_tokens.append("x" * 4097), r"mobile_tokens\[2\]"),
        (lambda c: c.mobile_tokens.extend(map(str, range(19))), "mobile_tokens has 21 entries"),
        (lambda c: c.channel_order.append(42), "channel_order: 42"),
        (lambda c: c.channel_order.append(events_pb.EMAIL), "channel_order has a duplicate channel"),
        (lambda c: setattr(c.quiet_hours, "end_minute", 22 * 60), "quiet_hours begin and end at minute 1320"),
        (lambda c: setattr(c.quiet_hours, "time_zone", "Mars/Base"), "quiet_hours.time_zone 'Mars/Base'"),
        (lambda c: setattr(c.quiet_hours, "time_zone", "../../etc/passwd"), "quiet_hours.time_zone"),
        (lambda c: setattr(c.quiet_hours, "time_zone", "Europe"), "quiet_hours.time_zone"),
        (lambda c: setattr(c.quiet_hours, "time_zone", ""), "quiet_hours.time_zone"),
        (lambda c: setattr(c.quiet_hours, "time_zone", "a\0b"), "quiet_hours.time_zone"),
        (lambda c: setattr(c.quiet_hours, "time_zone", "x" * 5000), "quiet_hours.time_zone"),
    ],
)
def test_an_invalid_field_is_named_without_its_secret(change: Callable[[pb.Contacts], None], problem: str) -> None:
    shown = contacts_answer(FULL)
    change(shown)
    with pytest.raises(InvalidRequest, match=problem) as caught:
        accepted(shown, FULL)
    assert "s3cret" not in str(caught.value)
