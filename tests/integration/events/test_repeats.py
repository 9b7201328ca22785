"""Checks 13-15 and 19: duplicates, and the receiver of the final ack."""

from __future__ import annotations

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, event
from tests.integration.events.provider_servers import Answer
from tests.integration.events.rig import Rig

TELEGRAM, WEB = given.TELEGRAM, given.WEB
HELD_S = 0.5
"""Duration of a provider call; the duplicates arrive meanwhile."""


async def test_13_a_repeat_is_told_the_state_and_changes_nothing(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    rig.provider_servers.telegram.plan(user, Answer(delay_seconds=HELD_S))
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [TELEGRAM]))
        for _ in range(3):
            await container.queued(sent)
        assert await container.delivered(sent) == TELEGRAM
        for _ in range(3):
            await container.send(sent)
            assert await container.delivered(sent) == TELEGRAM
        await container.hears_nothing()
    assert len(rig.provider_servers.telegram.calls(user)) == 1
    assert len(await rig.records(user)) == 1


async def test_14_an_id_with_other_bytes_is_refused(rig: Rig) -> None:
    user = rig.user()
    async with rig.container() as container:
        await container.queued(first := event(user, "c-1", CRITICAL, [WEB]))
        await container.send(other := event(user, "c-1", CRITICAL, [WEB], payload=b'{"order_id":"8"}'))
        assert await container.failed(other) == "event_id reused"
        async with rig.session(user) as session:
            assert (await session.take()).event.payload == first.payload
            assert await container.delivered(first) == WEB
        await container.send(other)
        assert await container.failed(other) == "event_id reused"


async def test_15_another_container_s_event_id_is_another_event(rig: Rig) -> None:
    user = rig.user()
    async with rig.container(one := rig.name()) as first, rig.container(two := rig.name()) as second:
        mine = event(user, "c-1", CRITICAL, [WEB])
        theirs = event(user, "c-1", CRITICAL, [WEB], payload=b'{"order_id":"8"}')
        await first.queued(mine)
        await second.queued(theirs)
        async with rig.session(user) as session:
            heard = {each.container: each.event.payload for each in [await session.take(), await session.take()]}
            assert heard == {one: mine.payload, two: theirs.payload}
        assert await first.delivered(mine) == await second.delivered(theirs) == WEB
        await first.hears_nothing()


async def test_19_what_is_final_while_the_container_is_away_is_kept_for_it(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    rig.provider_servers.telegram.plan(user, Answer(delay_seconds=HELD_S))
    async with rig.container(name := rig.name()) as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [TELEGRAM]))
    async with rig.container() as stranger:
        await stranger.queued(event(user, "x-1", CRITICAL, [WEB]))
        async with rig.container(name) as back:
            assert (await rig.until_status(name, "c-1", given.DELIVERED)).delivered_via == TELEGRAM
            await back.hears_nothing()
            await stranger.hears_nothing()
            await back.send(sent)
            assert await back.delivered(sent) == TELEGRAM
            await back.hears_nothing()
    assert len(rig.provider_servers.telegram.calls(user)) == 1
