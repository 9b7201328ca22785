"""Shortened campaigns of user events, without their latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import make_rig
from tests.nightly import event_fuzz_campaign, event_leaks
from tests.nightly.event_kills import Campaign

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


async def test_kills_lose_no_critical_event(tmp_path: Path, provider_servers: ProviderServers) -> None:
    campaign = Campaign(
        make_rig(tmp_path, provider_servers, forked=True, session_ack_seconds=1, retry_base_seconds=0.2)
    )
    try:
        await campaign.run(events=50, kills=5)
    finally:
        campaign.rig.gateway.kill()
    campaign.fail_if_wrong()
    assert len(campaign.in_flight) == 5 and sum(campaign.in_flight) > 0
    assert campaign.rig.leaked() == []


async def test_no_user_receives_another_users_event(tmp_path: Path, provider_servers: ProviderServers) -> None:
    seen = await event_leaks.run(tmp_path, provider_servers, events=4_000, users=40, processes=2)
    assert not seen.leaks and not seen.wrong, (seen.leaks[:5], seen.wrong[:5])
    assert seen.heard["by sessions"] and seen.provider_calls and seen.heard["user not owned"]


@pytest.mark.parametrize("port", ["router", "sub"])
async def test_invalid_frames_neither_crash_nor_block_the_gateway(tmp_path: Path, port: str) -> None:
    seen = await event_fuzz_campaign.run(tmp_path, port, frames=2_000, rate=1_000, rounds=1)
    assert seen.quiet.acks and seen.fuzzed.acks and seen.fuzzed.shows and seen.dropped
    assert seen.frames.keys() >= {"mutated", "wrong version", "unknown type", "many parts", "garbage", "raw TCP"}
