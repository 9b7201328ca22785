"""Checks 13 and 16-18: kill -9 around the commit."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, event, until
from tests.integration.events.provider_servers import HANG
from tests.integration.events.rig import Rig

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(120)]
TELEGRAM, EMAIL, PUSH, WEB = given.TELEGRAM, given.EMAIL, given.PUSH, given.WEB
NO_ACK_S = 0.5


async def test_13_a_repeat_after_a_restart_is_told_the_state(own: Rig) -> None:
    own.gateway.start()
    await own.reachable(user := own.user())
    async with own.container(own.name()) as container:
        await container.queued(done := event(user, "c-1", CRITICAL, [TELEGRAM]))
        assert await container.delivered(done) == TELEGRAM
        await container.queued(waiting := event(user, "c-2", CRITICAL, [WEB]))
        own.gateway.kill()
        own.gateway.start()
        await container.queued(waiting)
        await container.send(done)
        assert await container.delivered(done) == TELEGRAM
        await container.hears_nothing()
    assert len(own.provider_servers.telegram.calls(user)) == 1
    assert len(await own.records(user)) == 2


async def test_16_killed_before_the_commit(own: Rig) -> None:
    """Another process holds the file's lock, so the commit waits."""
    own.gateway.start()
    user = own.user()
    async with own.container(name := own.name()) as container:
        await container.queued(event(user, "c-0", CRITICAL, [WEB]))
        with locked(own):
            await container.send(sent := event(user, "c-1", CRITICAL, [WEB]))
            await container.hears_nothing(NO_ACK_S)
            own.gateway.kill()
        own.gateway.start()
        await container.hears_nothing(NO_ACK_S)
        assert await own.record(name, "c-0") is not None
        assert await own.record(name, "c-1") is None
        await container.queued(sent)
        assert [record.event.event_id for record in await own.records(user)] == ["c-1", "c-0"]


async def test_17_killed_after_the_commit_and_nobody_heard_the_ack(own: Rig) -> None:
    own.gateway.start()
    user = own.user()
    async with own.container(name := own.name()) as container:
        for each in (event(user, "c-1", CRITICAL, [WEB]), sent := event(user, "c-2", CRITICAL, [WEB])):
            await container.send(each)
            await own.until_status(name, each.event_id, given.QUEUED)
        own.gateway.kill()
    own.gateway.start()
    async with own.session(user) as session:
        assert [(await session.take()).event.event_id for _ in range(2)] == ["c-1", "c-2"], "without being sent again"
        record = await own.until_status(name, "c-2", given.DELIVERED)
        assert record.delivered_via == WEB
    async with own.container(name) as container:
        await container.send(sent)
        assert await container.delivered(sent) == WEB
    assert len(await own.records(user)) == 2


async def test_18_killed_between_the_provider_and_the_commit(own: Rig) -> None:
    own.gateway.start()
    await own.reachable(user := own.user())
    ways = {"telegram": TELEGRAM, "email": EMAIL, "push": PUSH}
    providers = [provider for provider in own.provider_servers.all if provider.name in ways]
    async with own.container(own.name()) as container, own.session(user, "native") as session:
        sent = {name: event(user, f"c-{name}", CRITICAL, [way]) for name, way in ways.items()}
        shown = event(user, "c-shown", CRITICAL, [WEB])
        for provider in providers:
            provider.plan(user, HANG)
        for each in [shown, *sent.values()]:
            await container.queued(each)
        for provider in providers:
            (call,) = await provider.called(user, 1)
            await until(lambda call=call: bool(call.text))  # type: ignore[misc]
        heard = await session.next()
        own.gateway.kill()
        own.gateway.start()
        for each in [*sent.values(), shown]:  # a new gateway knows no earlier connection
            await container.send(each)
        told: dict[str, given.EventAck] = {}
        while sum(ack.status == given.DELIVERED for ack in told.values()) < len(sent):
            ack = await container.ack()
            told[ack.event_id] = ack
        assert {told[each.event_id].delivered_via for each in sent.values()} == set(ways.values())
        assert told[shown.event_id].status == given.QUEUED
        await seen_again(own, user, heard)
        assert await container.delivered(shown) == WEB
        await container.hears_nothing()
    for provider in providers:
        first, repeat = provider.calls(user)
        assert repeat.reference == first.reference and repeat.text == first.text
    assert own.provider_servers.email.calls(user)[0].reference and own.provider_servers.push.calls(user)[0].reference


async def seen_again(rig: Rig, user: str, heard: pb.SessionEvent) -> None:
    """A client that had not acked gets the same event again, at the same place."""
    async with rig.session(user) as session:
        again = await session.take()
        assert (again.event.event_id, again.sequence) == (heard.event.event_id, heard.sequence)
        await asyncio.sleep(0.1)


class locked:  # noqa: N801 - a context manager
    """Hold the file's write lock."""

    def __init__(self, rig: Rig) -> None:
        self._file = sqlite3.connect(rig.gateway.folder / "events.db", isolation_level=None)

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._file.execute("ROLLBACK")
        self._file.close()
