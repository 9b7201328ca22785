"""Channels that fail for ten minutes: the next one takes over in time, and what has no other one is delivered later.

DEXORDER_SOAK_CHANNEL_SECONDS=600; the gateway has its default settings.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, event
from tests.integration.events.provider_servers import HANG, Answer, ProviderServers
from tests.integration.events.rig import Rig, make_rig
from tests.rig.report import print_campaign, quantile

SECONDS = float(os.environ.get("DEXORDER_SOAK_CHANNEL_SECONDS", "600"))
FAULTS = {
    given.TELEGRAM: ("telegram", Answer(503)),
    given.SLACK: ("slack", Answer(429, retry_after=20)),
    given.DISCORD: ("discord", HANG),
}
PATIENT = 10
"""Events that have only the failing channel, for each."""
PAUSE_SECONDS, PATIENCE_SECONDS = 1.0, 900.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ProviderServers() as providers:
        made = make_rig(tmp_path, providers)
        with made.gateway:
            yield made
        assert made.leaked() == []


async def outage(rig: Rig, seconds: float) -> None:
    """Let the channels fail, send events all the time, end it, and print what was seen."""
    began_s, providers = time.monotonic(), {each.name: each for each in rig.provider_servers.all}
    names = {channel: given.ChannelType.Name(channel) for channel in FAULTS}
    users = {channel: rig.user() for channel in FAULTS}
    for user in users.values():
        await rig.reachable(user)
    for name, fault in FAULTS.values():
        providers[name].usual = fault
    container, patient = rig.name(), []
    took: dict[int, list[float]] = {channel: [] for channel in FAULTS}
    async with rig.container(container) as sender:
        for channel, user in users.items():
            patient += [event(user, f"patient-{channel}-{number}", CRITICAL, [channel]) for number in range(PATIENT)]
        for each in patient:
            await sender.queued(each)
        until_s, number = time.monotonic() + seconds, 0
        while time.monotonic() < until_s:
            for channel, user in users.items():
                sent_s, number = time.monotonic(), number + 1
                await sender.queued(sent := event(user, f"e-{number}", CRITICAL, [channel, given.EMAIL]))
                assert (await sender.told(sent, PATIENCE_SECONDS)).delivered_via == given.EMAIL, names[channel]
                took[channel].append(time.monotonic() - sent_s)
            await asyncio.sleep(PAUSE_SECONDS)
        calls = {channel: len(providers[name].everything()) for channel, (name, _) in FAULTS.items()}
        for name, _ in FAULTS.values():
            providers[name].usual = Answer()
        ended_s, told = time.monotonic(), dict[str, int]()
        while len(told) < len(patient):
            ack = await sender.ack(PATIENCE_SECONDS)
            assert ack.status == given.DELIVERED, ack
            told[ack.event_id] = ack.delivered_via
        later_s = time.monotonic() - ended_s
    assert told == {each.event_id: each.delivery.channels[0].channel for each in patient}
    print_campaign(
        f"Three channels out for {seconds:.0f} s: {number} events went by the next one, {len(patient)} waited, 0 lost",
        ["channel", "answers", "events", "by the next channel after p50, worst (s)", "calls meanwhile"],
        *(
            [
                names[channel],
                "never" if fault.hang else fault.status,
                len(took[channel]),
                f"{quantile(took[channel], 0.5):.2f}, {max(took[channel]):.2f}",
                calls[channel],
            ]
            for channel, (_, fault) in FAULTS.items()
        ),
        ["all again", "", "", f"{later_s:.1f} after the end", ""],
        since_s=began_s,
    )


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1_200)
async def test_channels_that_fail_for_ten_minutes_delay_nothing_that_has_another_one(rig: Rig) -> None:
    await outage(rig, SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
async def test_channels_that_fail_delay_nothing_that_has_another_one(rig: Rig) -> None:
    await outage(rig, 20)
