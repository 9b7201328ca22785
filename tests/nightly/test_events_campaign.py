"""User events: kill -9, a million events over many users, bad frames on both ports.

DEXORDER_SOAK_EVENT_KILLS=200 DEXORDER_SOAK_CRITICAL_EVENTS=1000
DEXORDER_SOAK_MIXED_EVENTS=1000000 DEXORDER_SOAK_EVENT_USERS=200 DEXORDER_SOAK_EVENT_PROCESSES=2
DEXORDER_SOAK_FRAMES=100000 DEXORDER_SOAK_FRAME_RATE=1000   # a port; frames a second
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.integration.events import flooded, frozen
from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import make_rig
from tests.nightly import event_fuzz_campaign, event_leaks
from tests.nightly.event_kills import Campaign
from tests.nightly.test_broker_campaign import FRAMES, RATE, ROUNDS, percentiles
from tests.rig.report import print_campaign

KILLS = int(os.environ.get("DEXORDER_SOAK_EVENT_KILLS", "200"))
EVENTS = int(os.environ.get("DEXORDER_SOAK_CRITICAL_EVENTS", "1000"))
MIXED = int(os.environ.get("DEXORDER_SOAK_MIXED_EVENTS", "1000000"))
USERS = int(os.environ.get("DEXORDER_SOAK_EVENT_USERS", "200"))
PROCESSES = int(os.environ.get("DEXORDER_SOAK_EVENT_PROCESSES", "2"))
FLOODS = 5
FREEZES = ((0.3, 16), (1.0, 16), (3.0, 6), (20.0, 2))
"""Seconds, and how often in each row of the campaign."""
FEW_FREEZES = ((0.3, 6), (1.0, 3), (5.0, 1))
MOST_GROWTH_BYTES, KEPT_BYTES = 20 << 20, 128
"""Once, and per frame: 5 MiB were measured with 80,000 frames, some hundred of them events that wait for an ack."""
UNREAD_BYTES = 600 << 10
"""Connection under a routing id in use: up to `MAX_UNREAD` messages are kept until the gateway ends.
Up to 400 KB were measured when that was 1,000."""
SOAK_SECONDS = KILLS * 10 + MIXED // 200 + int(FRAMES / RATE * 8) + 900


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
async def test_no_critical_event_is_lost_by_a_kill(tmp_path: Path, provider_servers: ProviderServers) -> None:
    started_s = time.monotonic()
    campaign = Campaign(
        make_rig(tmp_path, provider_servers, forked=True, session_ack_seconds=1, retry_base_seconds=0.2)
    )
    try:
        await campaign.run(EVENTS, KILLS)
    finally:
        campaign.rig.gateway.kill()
    campaign.fail_if_wrong()
    repeats, exposed = sum(campaign.repeats().values()), sum(campaign.in_flight)
    print_campaign(
        "kill -9 of the gateway while CRITICAL events are under way",
        ["kills", "CRITICAL events", "lost", "calls of providers", "of these repeats", "in flight at the kills"],
        [
            len(campaign.in_flight),
            f"{len(campaign.sent):,}",
            0,
            f"{campaign.provider_calls().total():,}",
            repeats,
            f"{exposed:,} in all, most {max(campaign.in_flight)}",
        ],
        since_s=started_s,
    )
    assert campaign.rig.leaked() == []


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
async def test_nobody_gets_another_user_s_event(tmp_path: Path, provider_servers: ProviderServers) -> None:
    started_s, load = time.monotonic(), os.getloadavg()
    seen = await event_leaks.run(tmp_path, provider_servers, events=MIXED, users=USERS, processes=PROCESSES)
    print_campaign(
        f"{seen.sent.total():,} mixed events over {USERS} users, load average {load[0]:.1f} at the start",
        ["seen by sessions", "seen by providers", "for users not owned", "reached another user"],
        [
            f"{seen.heard['by sessions']:,}",
            f"{seen.provider_calls:,}",
            f"{seen.sent['for users not owned']:,}",
            len(seen.leaks),
        ],
        since_s=started_s,
    )
    print(f"\nSent: {', '.join(f'{kind} {number:,}' for kind, number in seen.sent.most_common())}.")
    print(f"Heard: {', '.join(f'{kind} {number:,}' for kind, number in seen.heard.most_common())}.", flush=True)
    assert not seen.leaks, seen.leaks[:5]
    assert not seen.wrong, seen.wrong[:5]
    assert seen.heard["by sessions"] and seen.provider_calls and seen.heard["user not owned"]


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@pytest.mark.parametrize("port", ["router", "sub"])
async def test_bad_frames_crash_hang_and_slow_nothing(tmp_path: Path, port: str) -> None:
    started_s, load = time.monotonic(), os.getloadavg()
    seen = await event_fuzz_campaign.run(tmp_path, port, frames=FRAMES, rate=RATE, rounds=ROUNDS, burst=FRAMES // 5)
    phases = {"quiet": seen.quiet, "fuzzed": seen.fuzzed, f"{FRAMES // 5:,} as fast as it goes": seen.burst}
    number = {"router": 5571, "sub": 5570}[port]
    rows = []
    for what in ("acks", "shows"):
        for name, phase in phases.items():
            took = getattr(phase, what)
            rows.append([f"{what[:-1]}, {name}", f"{len(took):,}", *percentiles(took)])
    print_campaign(
        f"{seen.frames.total():,} bad frames on {number}, {RATE:g} a second, load average {load[0]:.1f} at the start",
        ["honest peers", "events", "p50 ms", "p95 ms", "p99 ms", "worst ms"],
        *rows,
        since_s=started_s,
    )
    print(f"\nResident memory grew by {seen.grown_bytes / (1 << 20):.1f} MiB; {seen.dropped:,} counted as dropped.")
    print(f"Sent: {', '.join(f'{kind} {count:,}' for kind, count in seen.frames.most_common())}.", flush=True)
    unread = seen.frames["peers under a used identity"]
    assert seen.grown_bytes < MOST_GROWTH_BYTES + seen.frames.total() * KEPT_BYTES + unread * UNREAD_BYTES
    for what in ("acks", "shows"):
        quiet, fuzzed = (float(percentiles(getattr(phase, what))[2]) for phase in (seen.quiet, seen.fuzzed))
        assert fuzzed <= 2 * quiet, f"{what}: {quiet} ms, fuzzed {fuzzed} ms"


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
async def test_a_flood_of_one_container_does_not_slow_another(
    tmp_path: Path, provider_servers: ProviderServers
) -> None:
    started_s, load = time.monotonic(), os.getloadavg()
    rig = make_rig(tmp_path, provider_servers, log_level="info")
    try:
        seen = await flooded.run(rig, rounds=FLOODS, seconds=5.0)
    finally:
        rig.gateway.kill()
    quiet, meanwhile = (percentiles([round(each * 1e9) for each in took]) for took in (seen.quiet, seen.flooded))
    print_campaign(
        f"A container sends up to {flooded.RATE:,} events a second, load average {load[0]:.1f} at the start",
        ["acks of another one", "events", "p50 ms", "p95 ms", "p99 ms", "worst ms"],
        ["quiet", f"{len(seen.quiet):,}", *quiet],
        ["flooded", f"{len(seen.flooded):,}", *meanwhile],
        since_s=started_s,
    )
    print(
        f"\nThe flooder was told: {', '.join(f'{what} {count:,}' for what, count in seen.told.most_common())}.",
        flush=True,
    )
    assert float(meanwhile[2]) <= 2 * float(quiet[2])


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@pytest.mark.parametrize("in_flight", [400, 2_000, 8_000])
def test_no_answer_is_lost_by_freezes(tmp_path: Path, in_flight: int) -> None:
    assert unanswered(tmp_path, 100_000, in_flight, FREEZES) == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("in_flight", [400, 2_000, 8_000])
def test_no_answer_is_lost_by_a_few_freezes(tmp_path: Path, in_flight: int) -> None:
    assert unanswered(tmp_path, 20_000, in_flight, FEW_FREEZES) == 0


def unanswered(folder: Path, count: int, in_flight: int, freezes: Iterable[tuple[float, int]]) -> int:
    """Freeze a gateway on busy cores while events are in flight; print and return how many are never answered."""
    started_s, load = time.monotonic(), os.getloadavg()
    freezes_s = [seconds for seconds, times in freezes for _ in range(times)]
    with frozen.busy_cores(2), frozen.gateway_without_quotas(folder) as gateway:
        missing, sent = frozen.unanswered(gateway, count=count, in_flight=in_flight, freezes_s=freezes_s)
    print_campaign(
        f"SIGSTOP of the gateway with {in_flight:,} events in flight on busy cores, load average {load[0]:.1f}",
        ["freezes", "frozen s", "events", "never answered"],
        [len(freezes_s), f"{sum(freezes_s):.0f}", f"{sent:,}", missing],
        since_s=started_s,
    )
    return missing


@pytest.mark.nightly
@pytest.mark.timeout(300)
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


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_no_user_receives_another_users_event(tmp_path: Path, provider_servers: ProviderServers) -> None:
    seen = await event_leaks.run(tmp_path, provider_servers, events=4_000, users=40, processes=2)
    assert not seen.leaks and not seen.wrong, (seen.leaks[:5], seen.wrong[:5])
    assert seen.heard["by sessions"] and seen.provider_calls and seen.heard["user not owned"]


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("port", ["router", "sub"])
async def test_invalid_frames_neither_crash_nor_block_the_gateway(tmp_path: Path, port: str) -> None:
    seen = await event_fuzz_campaign.run(tmp_path, port, frames=2_000, rate=1_000, rounds=1)
    assert seen.quiet.acks and seen.fuzzed.acks and seen.fuzzed.shows and seen.dropped
    assert seen.frames.keys() >= {"mutated", "wrong version", "unknown type", "many parts", "garbage", "raw TCP"}
