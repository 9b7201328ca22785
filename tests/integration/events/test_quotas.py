"""Check 23: a container that sends too much."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events import flooded
from tests.integration.events.container import CRITICAL, NORMAL, event
from tests.integration.events.rig import Rig

TELEGRAM, WEB = given.TELEGRAM, given.WEB
MIN_ACKS = 3
"""Acks of the honest container, one after the other, in a flood of two seconds."""
KILLS, FLOOD_S = 4, 1.5


async def test_23_above_the_soft_quota_normal_ones_share_a_message(rig: Rig) -> None:
    count = 30
    await rig.reachable(user := rig.user())
    sent = [event(user, f"n-{number}", NORMAL, [TELEGRAM]) for number in range(count)]
    async with rig.container("soft") as container:
        await container.send(*sent)
        acks = Counter((ack.status, ack.event_id) for ack in [await container.ack() for _ in range(2 * count)])
        await container.hears_nothing()
    assert set(acks.values()) == {1}
    assert {status for status, _ in acks} == {given.QUEUED, given.DELIVERED}
    calls = rig.provider_servers.telegram.calls(user)
    assert 1 < len(calls) <= count // 2, len(calls)


async def test_23_above_the_hard_quota_only_critical_ones_are_taken(rig: Rig) -> None:
    count = 60
    user = rig.user()
    async with rig.container("hard") as container:
        normal = [event(user, f"n-{number}", NORMAL, [WEB]) for number in range(count)]
        critical = [event(user, f"c-{number}", CRITICAL, [WEB]) for number in range(count)]
        await container.send(*normal, *critical)
        acks = {ack.event_id: ack for ack in [await container.ack() for _ in range(2 * count)]}
    refused = [each for each in normal if acks[each.event_id].status == given.ACK_ERROR]
    assert {acks[each.event_id].error_message for each in refused} == {"quota exceeded"}
    assert count // 2 < len(refused) < count
    assert {acks[each.event_id].status for each in critical} == {given.QUEUED}
    assert await rig.record("hard", refused[0].event_id) is None


async def test_23_no_more_normal_ones_are_queued_than_the_quota_has(rig: Rig) -> None:
    user = rig.user()
    async with rig.container("few") as container:
        for number in range(3):
            await container.queued(event(user, f"n-{number}", NORMAL, [WEB]))
        await container.send(one_more := event(user, "n-3", NORMAL, [WEB]))
        assert await container.failed(one_more) == "quota exceeded"
        await container.queued(event(user, "c-1", CRITICAL, [WEB]))
        async with rig.session(user) as session:
            assert [(await session.take()).event.event_id for _ in range(4)] == ["n-0", "n-1", "n-2", "c-1"]
            assert {(await container.ack()).status for _ in range(4)} == {given.DELIVERED}
        await container.queued(event(user, "n-4", NORMAL, [WEB]))


@pytest.mark.smoke
async def test_23_a_flood_does_not_stop_another_container(own: Rig) -> None:
    """The soak campaign measures the slow-down; behind the flood's own events the acks would take seconds."""
    own.gateway.environment["DEXORDER_EVENTS_HARD_EVENTS_PER_SECOND"] = "500"  # a slow machine floods, too
    seen = await flooded.run(own, rounds=1, seconds=2.0)
    assert seen.told["quota exceeded"] and seen.told["QUEUED"] and not seen.told["CRITICAL refused"], seen.told
    assert seen.told["quota exceeded"] + seen.told["QUEUED"] == seen.told["sent"], "each was answered"
    assert len(seen.flooded) >= MIN_ACKS, seen.flooded


@pytest.mark.smoke
async def test_a_container_that_is_killed_in_its_flood_takes_nobody_with_it(own: Rig) -> None:
    """Its pipe is full when its connection breaks: see docs/decisions/0017."""
    flooded.start(own)
    async with own.container() as honest:
        for _ in range(KILLS):
            with flooded.flood(own, 60.0, None):
                await asyncio.sleep(FLOOD_S)
            assert await flooded.acks(honest, FLOOD_S), own.gateway.tail()
    assert own.gateway.running.lives, own.gateway.tail()
