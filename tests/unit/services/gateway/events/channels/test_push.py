"""Push messages to browsers, which decrypt them, and to phones behind FCM."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.channels.push import combine_results
from dexorder_gateway.events.channels.registry import ChannelRegistry, open_channels
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.model import Contacts, EventMessage, Later, Result, SendRefused, Sent, WebPushSubscription
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.fcm import UNREGISTERED, fcm_error
from tests.fakes.events.providers import Providers
from tests.fakes.events.scripted import Reply, ScriptedServer
from tests.unit.services.gateway.events.samples import MESSAGE, SILENCE, message


async def push(channels: ChannelRegistry, contacts: Contacts, sent: EventMessage = MESSAGE) -> Result:
    return await channels[Channel.PUSH].send(sent, contacts)


async def test_a_browser_reads_what_was_sent(providers: Providers, channels: ChannelRegistry) -> None:
    browser = providers.push.subscribe()
    assert await push(channels, contacts_with(web_push=(browser,)), message("Grüße 😀", 'a\n"b"')) == Sent()
    (shown,) = providers.push.shown
    assert shown.endpoint == browser.endpoint
    assert shown.data == {"title": "Grüße 😀", "body": 'a\n"b"', "tag": MESSAGE.reference, "timestamp": 1}
    assert (shown.ttl, shown.urgency, shown.topic) == (86_400, "high", MESSAGE.reference)
    await push(channels, contacts_with(web_push=(browser,)), message(priority=Priority.NORMAL))
    assert (providers.push.shown[1].ttl, providers.push.shown[1].urgency) == (3600, "normal")


async def test_a_phone_reads_what_was_sent_and_one_access_token_serves_many(
    providers: Providers, all_channels: ChannelRegistry
) -> None:
    phones = (providers.fcm.register(), providers.fcm.register())
    assert await push(all_channels, contacts_with(mobile_tokens=phones)) == Sent()
    assert await push(all_channels, contacts_with(mobile_tokens=phones)) == Sent()
    assert [message["token"] for message in providers.fcm.messages] == [*phones, *phones]
    first = providers.fcm.messages[0]
    assert first["notification"] == {"title": MESSAGE.title, "body": MESSAGE.body}
    assert first["android"]["priority"] == "high" and first["android"]["collapse_key"] == MESSAGE.reference
    assert first["apns"]["headers"] == {"apns-collapse-id": MESSAGE.reference, "apns-priority": "10"}
    assert len(providers.fcm.tokens.calls) == 1


@pytest.mark.parametrize("filler", ["x", "😀", "€", '"', "\\", "\n"])
async def test_long_messages_fit(filler: str, providers: Providers, all_channels: ChannelRegistry) -> None:
    to = contacts_with(web_push=(providers.push.subscribe(),), mobile_tokens=(providers.fcm.register(),))
    assert await push(all_channels, to, message("t" + filler * 5000, "b" + filler * 9000)) == Sent()
    assert providers.push.shown[0].data["body"].endswith("…")
    assert providers.fcm.messages[0]["notification"]["body"].endswith("…")


@pytest.mark.parametrize(
    ("service", "reply", "result"),
    [
        ("push", Reply(404), SendRefused("the subscription is gone", ("GONE",))),
        ("push", Reply(410), SendRefused("the subscription is gone", ("GONE",))),
        ("push", Reply(401), SendRefused("our VAPID key is refused")),
        ("push", Reply(403), SendRefused("our VAPID key is refused")),
        ("push", Reply(413), SendRefused("too large")),
        ("push", Reply(429, "", {"Retry-After": "7"}), Later("too many requests", 7000)),
        ("push", Reply(502), Later("the provider has an error")),
        ("push", Reply(301, "", {"Location": "http://127.0.0.1:1/"}), SendRefused("not accepted")),
        ("fcm", UNREGISTERED, SendRefused("the phone's registration is gone", ("GONE",))),
        ("fcm", fcm_error(404, "NOT_FOUND"), SendRefused("our FCM project is refused")),
        (
            "fcm",
            fcm_error(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH"),
            SendRefused("the phone is registered elsewhere"),
        ),
        ("fcm", fcm_error(401, "UNAUTHENTICATED"), SendRefused("our FCM account is refused")),
        ("fcm", fcm_error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT"), SendRefused("not accepted")),
        ("fcm", fcm_error(429, "X", "QUOTA_EXCEEDED", {"Retry-After": "1"}), Later("too many requests", 1000)),
        ("fcm", fcm_error(503, "UNAVAILABLE"), Later("the provider has an error")),
        ("fcm", Reply(400, {"error": {"details": "none", "status": 7}}), SendRefused("not accepted")),
        ("fcm", Reply(400, "[]"), SendRefused("not accepted")),
    ],
)
async def test_answers_cost_one_call(
    service: str, reply: Reply, result: Result, providers: Providers, all_channels: ChannelRegistry
) -> None:
    browser, phone = providers.push.subscribe(), providers.fcm.register()
    to = contacts_with(web_push=(browser,)) if service == "push" else contacts_with(mobile_tokens=(phone,))
    server: ScriptedServer = getattr(providers, service)
    server.script(reply)
    if isinstance(result, SendRefused) and result.gone:
        result = replace(result, gone=(browser.endpoint if service == "push" else phone,))
    assert await push(all_channels, to) == result
    assert len(server.calls) == 1


@SILENCE
async def test_a_silent_push_service_is_tried_later(providers: Providers, channels: ChannelRegistry) -> None:
    providers.push.script(Reply(hang=True))
    assert await push(channels, contacts_with(web_push=(providers.push.subscribe(),))) == Later("timeout")
    assert len(providers.push.calls) == 1


@pytest.mark.parametrize(
    "reply", [Reply(400, {"error": "invalid_grant", "error_description": "not this"}), Reply(404, "nothing here")]
)
async def test_an_account_that_google_refuses(
    reply: Reply, providers: Providers, all_channels: ChannelRegistry
) -> None:
    providers.fcm.tokens.always = reply
    phone = contacts_with(mobile_tokens=(providers.fcm.register(),))
    assert await push(all_channels, phone) == SendRefused("our FCM account is refused")
    assert not providers.fcm.calls


async def test_an_unreachable_google_is_tried_later(providers: Providers, all_channels: ChannelRegistry) -> None:
    await providers.fcm.tokens.__aexit__(None, None, None)
    assert await push(all_channels, contacts_with(mobile_tokens=(providers.fcm.register(),))) == Later("no connection")


@SILENCE
async def test_a_silent_google_is_asked_once_and_does_not_hide_a_browser_that_accepted(
    providers: Providers, all_channels: ChannelRegistry
) -> None:
    providers.fcm.tokens.always = Reply(hang=True)
    phone = contacts_with(mobile_tokens=(providers.fcm.register(),))
    assert await push(all_channels, contacts_with(phone, web_push=(providers.push.subscribe(),))) == Sent()
    assert await push(all_channels, phone) in (Later("timeout"), Later("no connection"))
    assert len(providers.fcm.tokens.calls) <= 3  # google-auth itself asks again
    providers.fcm.tokens.always = None
    results = []
    for _ in range(50):  # until the thread that asked has given up
        results.append(await push(all_channels, phone))
        if results[-1] == Sent():
            break
        await asyncio.sleep(0.05)
    assert results[-1] == Sent()


async def test_one_device_is_enough_and_the_gone_ones_are_named(
    providers: Providers, all_channels: ChannelRegistry
) -> None:
    here, gone = providers.push.subscribe(), providers.push.subscribe()
    providers.push.unsubscribe(gone)
    to = contacts_with(web_push=(gone, here), mobile_tokens=("phone:unknown",))
    assert await push(all_channels, to) == Sent((gone.endpoint, "phone:unknown"))
    assert len(providers.push.shown) == 1


@SILENCE
async def test_a_silent_device_does_not_hide_one_that_accepted(
    providers: Providers, all_channels: ChannelRegistry
) -> None:
    providers.push.script(Reply(hang=True))
    to = contacts_with(web_push=(providers.push.subscribe(),), mobile_tokens=(providers.fcm.register(),))
    assert await push(all_channels, to) == Sent()


@pytest.mark.parametrize(
    ("results", "one"),
    [
        ([SendRefused("a", ("1",)), Later("b", 5), Sent(("2",))], Sent(("1", "2"))),
        ([SendRefused("a", ("1",)), Later("b", 5), Later("c", 3)], Later("c", 3)),
        ([Later("b", 5), Later("c")], Later("c")),
        ([SendRefused("a", ("1",)), SendRefused("b"), SendRefused("a", ("2",))], SendRefused("a, b", ("1", "2"))),
    ],
)
def test_results_of_several_devices_are_one(results: list[Result], one: Result) -> None:
    assert combine_results(results) == one


@pytest.mark.parametrize(
    ("p256dh", "auth"),
    [
        ("", ""),
        ("AAAA", "AAAA"),
        ("x", "y"),
        ("é", "é"),
        ("B" + "A" * 86, "AAAAAAAAAAAAAAAAAAAAAA"),
        ("A" * 87, "A" * 22),
    ],
)
async def test_a_subscription_with_broken_keys_is_refused(
    p256dh: str, auth: str, providers: Providers, channels: ChannelRegistry
) -> None:
    broken = WebPushSubscription(providers.push.subscribe().endpoint, p256dh, auth)
    assert await push(channels, contacts_with(web_push=(broken,))) == SendRefused("no valid subscription")
    assert not providers.push.calls


async def test_unreachable_contacts_cost_no_call(providers: Providers, channels: ChannelRegistry) -> None:
    elsewhere = replace(providers.push.subscribe(), endpoint=f"{providers.slack.url}/push/x")
    for contacts, why in ((Contacts(), "no contact"), (contacts_with(web_push=(elsewhere,)), "host not allowed")):
        assert channels.reachable(Channel.PUSH, contacts) == why
        assert await push(channels, contacts) == SendRefused(why)
    both = contacts_with(web_push=(elsewhere, providers.push.subscribe()))
    assert channels.reachable(Channel.PUSH, both) == ""
    assert await push(channels, both) == Sent()
    assert not providers.slack.calls


async def test_only_services_that_are_turned_on_are_called(providers: Providers, settings: EventsSettings) -> None:
    to = contacts_with(web_push=(providers.push.subscribe(),), mobile_tokens=(providers.fcm.register(),))
    async with open_channels(settings.model_copy(update={"fcm_credentials": None})) as channels:
        assert await push(channels, to) == Sent()
        assert channels.reachable(Channel.PUSH, contacts_with(to, web_push=())) == "not configured"
    async with open_channels(settings.model_copy(update={"vapid_key": None})) as channels:
        assert await push(channels, to) == Sent()
        assert channels.reachable(Channel.PUSH, contacts_with(to, mobile_tokens=())) == "not configured"
    assert len(providers.push.calls) == len(providers.fcm.calls) == 1
