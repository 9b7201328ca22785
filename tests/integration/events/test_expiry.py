"""Checks 5, 10 and 20: NORMAL events expire, at a gateway where they do soon."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.conftest import SHORT
from tests.integration.events.container import CRITICAL, NORMAL, event
from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import Rig, make_rig

ACTIVE_SESSION, TELEGRAM, WEB = given.ACTIVE_SESSION, given.TELEGRAM, given.WEB
TTL_S = 1.0


@pytest.fixture(scope="module")
def rig(provider_servers: ProviderServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a gateway where a NORMAL event expires soon."""
    made = make_rig(tmp_path_factory.mktemp("expiry"), provider_servers, **SHORT | {"normal_ttl_seconds": TTL_S})
    with made.gateway:
        yield made
    assert made.leaked() == []


async def test_05_normal_expires_once(rig: Rig) -> None:
    user, started_s = rig.user(), time.monotonic()
    async with rig.container() as container:
        await container.queued(sent := event(user, "n-1", NORMAL, [WEB]))
        assert await container.failed(sent) == "expired"
        assert time.monotonic() - started_s >= TTL_S
        async with rig.session(user) as session:
            await session.hears_nothing()
        await container.hears_nothing()


async def test_10_nobody_active_normal_expires_and_critical_waits(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    ways = [(ACTIVE_SESSION, True), (TELEGRAM, True)]
    async with rig.container() as container:
        await container.queued(normal := event(user, "n-1", NORMAL, ways))
        await container.queued(critical := event(user, "c-1", CRITICAL, ways))
        assert await container.failed(normal) == "expired"
        await container.hears_nothing()
        assert rig.provider_servers.order(user) == []
        async with rig.session(user) as session:
            assert (await session.take()).event.event_id == "c-1"
            assert await container.delivered(critical) == WEB


async def test_20_an_unknown_priority_is_critical(rig: Rig) -> None:
    user = rig.user()
    async with rig.container() as container:
        await container.queued(sent := event(user, "p-7", 7, [WEB]))
        await container.queued(normal := event(user, "n-1", NORMAL, [WEB]))
        assert await container.failed(normal) == "expired"
        async with rig.session(user) as session:
            assert (await session.take()).event.event_id == "p-7", "it has outlived a NORMAL one"
            assert await container.delivered(sent) == WEB
