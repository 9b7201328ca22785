"""Every rule over every channel, so that a new one can't forget any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import SESSION_CHANNELS, Channel, Priority
from dexorder_gateway.events.channels.registry import DEFAULT_ORDER, SPECS
from dexorder_gateway.events.channels.spec import HIDDEN, truncate, utf8_bytes, utf16_units
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import DeliveryChanges, SendRequest
from dexorder_gateway.events.delivery.provider_limits import ProviderLimits
from dexorder_gateway.events.dispatcher.start import delivery_settings
from dexorder_gateway.events.model import (
    NO_CONTACTS,
    Contacts,
    EventKey,
    EventMessage,
    SendRefused,
    Sent,
    address_of,
    no_contact,
)
from dexorder_gateway.events.proto_mapping import contacts_answer, contacts_of
from dexorder_gateway.events.sessions.web_server import PAGE, page_files
from dexorder_gateway.events.store.schema import contacts_text, read_contacts
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as events_pb
from tests.paths import ROOT

POINT = "BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
AUTH = ("AAECAwQFBgcICQoLDA0ODw", "BAECAwQFBgcICQoLDA0ODw")
CONTACTS: dict[str, tuple[Any, Any]] = {
    "telegram_chat_id": ("100", "200"),
    "email": ("alice@example.org", "bob@example.org"),
    "web_push": (
        [pb.WebPushSubscription(endpoint="https://push.test/0", p256dh=POINT, auth=AUTH[0])],
        [pb.WebPushSubscription(endpoint="https://push.test/1", p256dh=POINT, auth=AUTH[1])],
    ),
    "mobile_tokens": (["phone:1"], ["phone:2"]),
    "discord_webhook_url": ("https://discord.test/s3cret", "https://discord.test/0ther"),
    "slack_webhook_url": ("https://slack.test/s3cret", "https://slack.test/0ther"),
    "matrix_webhook_url": ("https://matrix.test/s3cret", "https://matrix.test/0ther"),
}
"""Contacts of two users in each field. A field of a new channel must be added here."""
SHOWN = {"telegram_chat_id", "email"}
"""Fields that are shown, because they let nobody else write to the user. All others hold a secret."""
SHARED = {Channel.TELEGRAM, Channel.EMAIL, Channel.PUSH}
"""Channels with one bot, server or account of ours, whose pause concerns all users."""
HOSTS = {f"{name}_hosts": f"{name}.test" for name in ("push", "discord", "slack", "matrix")}
SETTINGS = EventsSettings.model_validate(HOSTS)
FIELDS = [(channel, field) for channel, spec in SPECS.items() for field in spec.contacts]
by_field = pytest.mark.parametrize(("channel", "field"), FIELDS, ids=[field.name for _, field in FIELDS])
by_channel = pytest.mark.parametrize("channel", SPECS, ids=[channel.name for channel in SPECS])


def user(number: int, *names: str) -> Contacts:
    """Return the contacts of a user in these fields, through the protocol."""
    given = pb.Contacts(**{name: CONTACTS[name][number] for name in names})
    return contacts_of(given, NO_CONTACTS, SETTINGS)


def names(channel: Channel) -> Sequence[str]:
    return [field.name for field in SPECS[channel].contacts]


def test_channels_and_fields_are_those_of_the_protocol() -> None:
    assert {channel.name: channel.value for channel in Channel} == dict(events_pb.ChannelType.items())
    assert set(SPECS) == set(Channel) - SESSION_CHANNELS and all(spec.channel is name for name, spec in SPECS.items())
    of_channels = set(pb.Contacts.DESCRIPTOR.fields_by_name) - {"channel_order", "quiet_hours"}
    assert sorted(field.name for _, field in FIELDS) == sorted(of_channels) == sorted(CONTACTS)


def test_the_default_order_names_each_channel_once() -> None:
    assert sorted(DEFAULT_ORDER) == sorted(SPECS)
    assert len({spec.place for spec in SPECS.values()}) == len(SPECS)
    assert delivery_settings(EventsSettings()).channel_order == DEFAULT_ORDER


@by_field
def test_a_contact_is_read_hidden_and_written_back(channel: Channel, field: Any) -> None:
    contacts = user(0, field.name)
    assert contacts.on(channel) and set(contacts.destinations) == {channel}
    shown = contacts_answer(contacts)
    assert (HIDDEN in str(shown)) == (field.name not in SHOWN)
    assert "s3cret" not in str(shown) and AUTH[0] not in str(shown) and "phone:" not in str(shown)
    assert contacts_of(shown, contacts, SETTINGS) == contacts
    assert contacts_of(pb.Contacts(), contacts, SETTINGS) == NO_CONTACTS


@by_field
def test_a_contact_is_checked_and_the_error_names_its_field(channel: Channel, field: Any) -> None:
    wrong: Any = "no s3cret"
    if field.name == "web_push":
        wrong = [pb.WebPushSubscription(endpoint=wrong, p256dh=POINT, auth=AUTH[0])]
    elif field.name == "mobile_tokens":
        wrong = [wrong]
    with pytest.raises(InvalidRequest, match=field.name) as refused:
        contacts_of(pb.Contacts(**{field.name: wrong}), NO_CONTACTS, SETTINGS)
    assert "s3cret" not in str(refused.value)


@by_channel
def test_urls_of_users_are_called_only_at_the_hosts_of_their_own_channel(channel: Channel) -> None:
    for name in names(channel):
        text = str(CONTACTS[name][0])
        if "https:" in text:
            others = EventsSettings.model_validate(HOSTS | {f"{channel.name.lower()}_hosts": "elsewhere.test"})
            with pytest.raises(InvalidRequest, match="host not allowed"):
                contacts_of(pb.Contacts(**{name: CONTACTS[name][0]}), NO_CONTACTS, others)


@by_channel
def test_a_channel_without_a_contact_is_skipped_and_a_missing_destination_removed(channel: Channel) -> None:
    contacts = user(0, *CONTACTS)
    assert no_contact(channel, contacts) == "" and no_contact(channel, NO_CONTACTS) == "no contact"
    for destination in contacts.on(channel):
        assert (
            contacts.without(channel, "another") == contacts.without(Channel.WEB, address_of(destination)) == contacts
        )
        contacts = contacts.without(channel, address_of(destination))
    assert contacts == user(0, *(name for name in CONTACTS if name not in names(channel)))


@by_channel
def test_a_pause_concerns_those_who_share_the_provider(channel: Channel) -> None:
    settings = delivery_settings(SETTINGS)
    limits: ProviderLimits[object] = ProviderLimits(settings.max_concurrent_sends, settings.own_limits)
    alice, bob = user(0, *names(channel)), user(1, *names(channel))
    assert limits.of(channel, alice) is limits.of(channel, alice)
    assert (limits.of(channel, alice) is limits.of(channel, bob)) == (channel in SHARED)
    limits.of(channel, alice).blocked_until_ns = 7
    assert limits.blocked_until_ns(channel, bob) == (7 if channel in SHARED else 0)


@by_channel
def test_contacts_are_stored_and_never_in_a_repr(channel: Channel) -> None:
    contacts = user(0, *names(channel))
    assert read_contacts(contacts_text(contacts)) == contacts
    message = EventMessage("aa", "t", "b", Priority.NORMAL, 1)
    shown = repr((contacts, SendRequest(EventKey("c", "e"), 1, channel, "alice", message, contacts)))
    for destination in contacts.on(channel):
        changes = DeliveryChanges()
        changes.gone.append(("alice", channel, address_of(destination)))
        gone = (address_of(destination),)
        shown += f"{Sent(gone)} {SendRefused('no such address', gone)} {changes}"
    assert not [each for each in contacts.on(channel) if address_of(each) in shown]
    assert not [secret for secret in AUTH if secret in shown]


@by_channel
def test_a_channel_is_documented_and_named_on_the_page(channel: Channel) -> None:
    spec = SPECS[channel]
    settings = (ROOT / "docs" / "settings.md").read_text()
    own = set(spec.settings.model_fields) - set(spec.settings.__base__.model_fields)  # type: ignore[union-attr]
    assert own and not [name for name in own if f"`DEXORDER_EVENTS_{name.upper()}`" not in settings]
    table = (ROOT / "docs" / "gateway-events.md").read_text()
    assert not [name for name in names(channel) if f"`{name}`" not in table]
    script, kind = page_files(PAGE)["channels.js"]
    words = orjson.loads(script.removeprefix(b"export const CHANNEL_WORDS = ").removesuffix(b";\n"))
    assert words[channel.name] == spec.word and list(words) == [each.name for each in Channel]
    assert kind == "text/javascript"


@given(st.text(max_size=60), st.integers(3, 70), st.sampled_from([utf8_bytes, utf16_units]))
def test_a_text_fits_and_keeps_as_much_as_there_is_room_for(text: str, limit: int, size: Callable[[str], int]) -> None:
    short = truncate(text, limit, size)
    assert sum(map(size, short)) <= limit
    if sum(map(size, text)) <= limit:
        assert short == text
    else:
        kept = short.removesuffix("…")
        assert short != kept and text.startswith(kept)
        dropped = text[len(kept) :]
        more = len(dropped) - len(dropped.lstrip()) + 1
        assert sum(map(size, text[: len(kept) + more])) + size("…") > limit
