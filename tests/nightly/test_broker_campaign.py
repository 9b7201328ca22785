"""Campaign of the broker: 100,000 random steps of its rules, and 100,000 bad frames beside honest ingestors.

DEXORDER_SOAK_STEPS=100000 DEXORDER_SOAK_FRAMES=100000 DEXORDER_SOAK_FRAME_RATE=1000   # frames a second
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.nightly import broker_campaign
from tests.nightly.honest_workers import JOBS
from tests.rig.report import print_campaign
from tests.unit.services.relay.state.state_machine import StateMachine

STEPS = int(os.environ.get("DEXORDER_SOAK_STEPS", "100000"))
FRAMES = int(os.environ.get("DEXORDER_SOAK_FRAMES", "100000"))
RATE = float(os.environ.get("DEXORDER_SOAK_FRAME_RATE", "1000"))
ROUNDS = 10
MOST_GROWTH_BYTES = 50 << 20
LIMIT_SECONDS = STEPS // 20 + int(FRAMES / RATE * 4) + 900


@pytest.mark.soak
@pytest.mark.timeout(LIMIT_SECONDS)
def test_the_rules_hold_through_every_step() -> None:
    started_s, lives = time.monotonic(), 0
    StateMachine.steps = 0
    part = settings(
        max_examples=100,
        stateful_step_count=100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    while StateMachine.steps < STEPS:
        run_state_machine_as_test(StateMachine, settings=part)
        lives += part.max_examples
    print_campaign(
        "The broker's rules", ["steps", "lives", "broken"], [f"{StateMachine.steps:,}", lives, 0], since_s=started_s
    )


@pytest.mark.soak
@pytest.mark.timeout(LIMIT_SECONDS)
def test_bad_frames_crash_hang_and_slow_nothing(tmp_path: Path) -> None:
    started_s, load = time.monotonic(), os.getloadavg()
    seen = broker_campaign.run(tmp_path, frames=FRAMES, rate=RATE, rounds=ROUNDS, burst=FRAMES // 5)
    quiet, fuzzed, burst = (percentiles(phase) for phase in (seen.quiet, seen.fuzzed, seen.burst))
    print_campaign(
        f"{sum(seen.frames.values()):,} bad frames, {RATE:g} a second, load average {load[0]:.1f} at the start",
        ["honest ingestors", "dispatches", "p50 ms", "p95 ms", "p99 ms", "worst ms"],
        ["quiet", f"{len(seen.quiet):,}", *quiet],
        ["fuzzed", f"{len(seen.fuzzed):,}", *fuzzed],
        [f"{FRAMES // 5:,} as fast as it goes", f"{len(seen.burst):,}", *burst],
        since_s=started_s,
    )
    print(f"\n{seen.requests} honest requests of {JOBS} jobs, not ended well: {len(seen.bad)}.")
    print(f"Resident memory grew by {seen.grown_bytes / (1 << 20):.1f} MiB.")
    print(f"Sent: {', '.join(f'{kind} {number:,}' for kind, number in seen.frames.most_common())}.")
    print(f"Dropped: {', '.join(f'{reason} {number:,}' for reason, number in seen.dropped.items())}.", flush=True)
    assert not seen.bad
    assert seen.grown_bytes < MOST_GROWTH_BYTES
    assert float(fuzzed[2]) <= 2 * float(quiet[2])


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_invalid_frames_disturb_no_valid_job(tmp_path: Path) -> None:
    seen = broker_campaign.run(tmp_path, frames=2_000, rate=2_000, rounds=1)
    assert seen.requests and seen.quiet and seen.fuzzed and not seen.bad
    assert seen.dropped.keys() >= {"version", "type", "undecodable", "frame_count", "not_current", "exchange"}


def percentiles(took_ns: Sequence[int]) -> list[str]:
    """Return p50, p95, p99 and worst in milliseconds; dashes without values."""
    ordered = sorted(took_ns)
    if not ordered:
        return ["-"] * 4
    return [f"{ordered[min(int(len(ordered) * q), len(ordered) - 1)] / 1e6:.1f}" for q in (0.5, 0.95, 0.99, 1.0)]
