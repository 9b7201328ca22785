"""Checks 7-12: provider calls, their order and their results."""

from __future__ import annotations

import asyncio
import time

import pytest

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.conftest import SESSION_ACK_S
from tests.integration.events.container import CRITICAL, event
from tests.integration.events.provider_servers import Answer
from tests.integration.events.rig import Rig

ACTIVE_SESSION, WEB = given.ACTIVE_SESSION, given.WEB
TELEGRAM, EMAIL, PUSH, DISCORD, SLACK = given.TELEGRAM, given.EMAIL, given.PUSH, given.DISCORD, given.SLACK
RETRY_AFTER_S = 1
REFUSED = "TELEGRAM: blocked by the user; EMAIL: no such address; PUSH: the subscription is gone"


async def test_07_a_silent_client_is_passed_over(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    async with rig.container(name := rig.name()) as container, rig.session(user) as session:
        sent_s = time.monotonic()
        await container.queued(sent := event(user, "c-1", CRITICAL, [ACTIVE_SESSION, TELEGRAM]))
        heard = await session.next()
        assert await container.delivered(sent) == TELEGRAM
        (call,) = rig.provider_servers.telegram.calls(user)
        assert call.at_s - sent_s >= SESSION_ACK_S
        await session.ack(session.place(heard))
        await container.hears_nothing()
        assert len(rig.provider_servers.telegram.calls(user)) == 1
    record = await rig.record(name, "c-1")
    assert record is not None and record.delivered_via == TELEGRAM
    assert [attempt.channel for attempt in record.attempts][-1] == TELEGRAM


async def test_08_channels_are_tried_strictly_in_order(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    provider_servers = rig.provider_servers
    provider_servers.telegram.plan(user, 403)
    provider_servers.email.plan(user, 451, 451, 451, 451)
    provider_servers.push.plan(user, 201)
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [TELEGRAM, EMAIL, PUSH]))
        assert await container.delivered(sent) == PUSH
        emails = len(provider_servers.email.calls(user))
        order = provider_servers.order(user)
        assert order == ["telegram", *["email"] * emails, "push"] and emails >= 1
        await asyncio.sleep(0.5)
        assert provider_servers.order(user) == order, "the mail's retry was cancelled"
        await container.hears_nothing()


async def test_08_every_channel_carries_the_event(rig: Rig) -> None:
    user = rig.user()
    await rig.reachable(user, mobile_tokens=[rig.provider_servers.phone(user)])
    async with rig.container() as container:
        for channel in (TELEGRAM, EMAIL, PUSH, DISCORD, SLACK):
            await container.queued(sent := event(user, f"c-{channel}", CRITICAL, [channel]))
            assert await container.delivered(sent) == channel
    for provider in rig.provider_servers.all:
        (call,) = provider.calls(user)
        assert "BTC/USDT" in call.text, f"{provider.name}: {call.text}"


async def test_09_only_if_active_skips_a_channel(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [(TELEGRAM, True), EMAIL]))
        assert await container.delivered(sent) == EMAIL
        assert rig.provider_servers.order(user) == ["email"]
        await rig.active(user, TELEGRAM, 60)
        await container.queued(sent := event(user, "c-2", CRITICAL, [(TELEGRAM, True), EMAIL]))
        assert await container.delivered(sent) == TELEGRAM


async def test_09_presence_is_looked_at_again_at_each_attempt(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    rig.provider_servers.email.plan(user, *[451] * 1000)
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [(TELEGRAM, True), EMAIL]))
        await rig.provider_servers.email.called(user, 1)
        assert not rig.provider_servers.telegram.calls(user)
        await rig.active(user, TELEGRAM, 60)
        assert await container.delivered(sent) == TELEGRAM


async def test_11_retry_after_holds_the_bot_and_nothing_else(rig: Rig) -> None:
    first, second = rig.user(), rig.user()
    for user in (first, second):
        await rig.reachable(user)
    telegram = rig.provider_servers.telegram
    telegram.plan(first, Answer(429, retry_after=RETRY_AFTER_S))
    async with rig.container(name := rig.name()) as container:
        await container.queued(held := event(first, "c-1", CRITICAL, [TELEGRAM]))
        (refused,) = await telegram.called(first, 1)
        await rig.tried(name, held)
        await container.queued(same_bot := event(second, "c-2", CRITICAL, [TELEGRAM]))
        await container.queued(other := event(second, "c-3", CRITICAL, [EMAIL]))
        assert await container.delivered(other) == EMAIL
        assert not telegram.calls(second)
        acks = {ack.event_id: ack for ack in [await container.ack(), await container.ack()]}
        assert {ack.delivered_via for ack in acks.values()} == {TELEGRAM}
        assert acks.keys() == {held.event_id, same_bot.event_id}
    after = [*telegram.calls(first)[1:], *telegram.calls(second)]
    assert len(after) == 2 and min(call.at_s for call in after) - refused.at_s >= RETRY_AFTER_S


@pytest.mark.parametrize("status", [429, 503])
async def test_11_retry_after_of_fcm_holds_the_phones_and_nothing_else(rig: Rig, status: int) -> None:
    first, second, phones = rig.user(), rig.user(), rig.provider_servers.phones
    for user in (first, second):
        await rig.reachable(user, mobile_tokens=[rig.provider_servers.phone(user)], web_push=[])
    phones.plan(first, Answer(status, retry_after=RETRY_AFTER_S))
    async with rig.container(name := rig.name()) as container:
        await container.queued(first_one := event(first, "c-1", CRITICAL, [PUSH]))
        (refused,) = await phones.called(first, 1)
        await rig.tried(name, first_one)
        await container.queued(event(second, "c-2", CRITICAL, [PUSH]))
        await container.queued(other := event(second, "c-3", CRITICAL, [EMAIL]))
        assert await container.delivered(other) == EMAIL
        assert {ack.delivered_via for ack in [await container.ack(), await container.ack()]} == {PUSH}
    (again,), (held,) = phones.calls(first)[1:], phones.calls(second)
    assert min(again.at_s, held.at_s) - refused.at_s >= RETRY_AFTER_S
    assert again.reference == refused.reference, "the phone shows the repeat in the first one's place"


async def test_12_phones_that_are_gone_are_deleted(rig: Rig) -> None:
    user, provider_servers = rig.user(), rig.provider_servers
    gone, kept = provider_servers.phone(user), provider_servers.phone(user)
    provider_servers.uninstall(gone)
    await rig.reachable(user, mobile_tokens=[gone, kept], web_push=[])
    assert len((await rig.contacts(user)).mobile_tokens) == 2
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [PUSH]))
        assert await container.delivered(sent) == PUSH
        assert len(provider_servers.phones.calls(user)) == 2
        assert len((await rig.contacts(user)).mobile_tokens) == 1
        await container.queued(sent := event(user, "c-2", CRITICAL, [PUSH]))
        assert await container.delivered(sent) == PUSH
        assert len(provider_servers.phones.calls(user)) == 3, "the one that is gone is not called again"
        provider_servers.uninstall(kept)
        await container.queued(sent := event(user, "c-3", CRITICAL, [PUSH]))
        assert "the phone's registration is gone" in (error := await container.failed(sent))
        assert not [secret for secret in provider_servers.secrets(user) if secret in error]
    assert not (await rig.contacts(user)).mobile_tokens


async def test_12_permanently_refused_everywhere(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    provider_servers = rig.provider_servers
    provider_servers.telegram.plan(user, 403)
    provider_servers.email.plan(user, 550)
    provider_servers.push.plan(user, 410)
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [TELEGRAM, EMAIL, PUSH]))
        assert await container.failed(sent) == REFUSED, "channels and reasons, nothing of the user's"
        await container.hears_nothing()
        await asyncio.sleep(0.3)
        assert provider_servers.order(user) == ["telegram", "email", "push"]
    assert not (await rig.contacts(user)).web_push, "the subscription is gone"
