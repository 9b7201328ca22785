"""Check 23: a container that sends too much."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from services.gen.dexorder.events.v1 import user_events_pb2 as given
from tests.events.container import CRITICAL, NORMAL, Container, event
from tests.events.rig import Rig
from tests.service_process import ROOT

TELEGRAM, WEB = given.TELEGRAM, given.WEB
FLOOD_RATE = 10_000
ROUNDS, ROUND_S = 3, 2.0
STALL_S = 0.1
"""What the machine itself may add to the worst of some hundred acks."""


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
    calls = rig.outside.telegram.calls(user)
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
async def test_23_a_flood_does_not_slow_another_container(own: Rig) -> None:
    own.keys.container("flooder")
    own.keys.write()
    own.gateway.start()
    quiet: list[float] = []
    flooded: list[float] = []
    told: Counter[str] = Counter()
    async with own.container() as honest:
        await honest_acks(own, honest, 0.5)
        for _ in range(ROUNDS):
            quiet += await honest_acks(own, honest, ROUND_S)
            with flood(own, told):
                await asyncio.sleep(0.5)
                flooded += await honest_acks(own, honest, ROUND_S)
    assert told["quota exceeded"] and told["QUEUED"] and not told["CRITICAL refused"], told
    before, meanwhile = (sorted(each)[int(len(each) * 0.99)] for each in (quiet, flooded))
    assert meanwhile <= max(2 * before, before + STALL_S), f"{before:.4f} s, with the flood {meanwhile:.4f} s"


async def honest_acks(rig: Rig, container: Container, seconds: float) -> list[float]:
    """Seconds to the ack of each CRITICAL event, one after the other."""
    took: list[float] = []
    until_s = time.monotonic() + seconds
    while (begun_s := time.monotonic()) < until_s:
        await container.queued(event("honest", f"c-{time.monotonic_ns()}", CRITICAL, [WEB]))
        took.append(time.monotonic() - begun_s)
        await asyncio.sleep(0.002)
    return took


@contextmanager
def flood(rig: Rig, told: Counter[str]) -> Iterator[None]:
    """Another process sends as the container "flooder"; what it was told is added up."""
    public, secret = (key.decode() for key in rig.keys.pairs["flooder"])
    order = {
        "router": rig.gateway.router, "public": public, "secret": secret, "server": rig.keys.gateway_key.decode(),
        "rate": FLOOD_RATE, "seconds": ROUND_S + 0.5,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.events.flood"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        yield
        output, _ = process.communicate(timeout=60)
        told.update(json.loads(output))
    finally:
        process.kill()
        process.wait()
