"""Campaign: a thousand times `kill -9` of the relay within 50 ms of an answer QUEUED."""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from pathlib import Path

import pytest

from tests.nightly.queued import Campaign
from tests.rig.report import print_campaign

KILLS = int(os.environ.get("DEXORDER_SOAK_QUEUED_KILLS", "1000"))
KILLS_A_DATABASE = 25
"""Every restart asks for all that was acknowledged before, so that has to stay few enough."""
LANES = 2
"""Relays at the same time, each with a database of its own."""
pytestmark = [pytest.mark.soak, pytest.mark.timeout(KILLS * 5 + 300)]


async def test_what_was_acknowledged_is_never_forgotten(tmp_path: Path) -> None:
    started_s = time.monotonic()
    left = itertools.count(KILLS, -KILLS_A_DATABASE)
    campaigns: list[Campaign] = []

    async def lane() -> None:
        while (kills := min(next(left), KILLS_A_DATABASE)) > 0:
            campaigns.append(campaign := Campaign(tmp_path / str(len(campaigns))))
            await campaign.run(kills)

    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())
    in_flight = [number for campaign in campaigns for number in campaign.in_flight]
    assert len(in_flight) == KILLS
    print_campaign(
        "QUEUED, then kill -9 of the relay within 50 ms",
        ["kills", "acknowledged", "forgotten", "without an answer at a kill"],
        [KILLS, f"{sum(len(c.acknowledged) for c in campaigns):,}", 0, f"mean {statistics.mean(in_flight):.1f}"],
        since_s=started_s,
    )
