"""Campaigns with UDFs: a million mutated frames in each direction, and kills in a stream of numbered points.

DEXORDER_SOAK_UDF_FRAMES=1000000 DEXORDER_SOAK_UDF_KILLS=100 DEXORDER_SOAK_SEED=1
"""

from __future__ import annotations

import os
import time

import pytest

from tests.nightly.udf_fuzz import fuzz
from tests.nightly.udf_kills import run
from tests.rig.report import print_campaign

FRAMES = int(os.environ.get("DEXORDER_SOAK_UDF_FRAMES", "1000000"))
KILLS = int(os.environ.get("DEXORDER_SOAK_UDF_KILLS", "100"))
SEED = int(os.environ.get("DEXORDER_SOAK_SEED", "1"))


@pytest.mark.soak
@pytest.mark.timeout(FRAMES // 1000 + KILLS * 10 + 600)
@pytest.mark.parametrize("host", [True, False], ids=["host", "agent"])
def test_mutated_frames_crash_nothing(host: bool) -> None:
    started_s = time.monotonic()
    result = fuzz(FRAMES, SEED, host=host)
    print_campaign(
        f"Mutated frames of the UDF protocol to the {'host' if host else 'agent'}, seed {SEED}",
        ["frames", "streams", "streams refused", "other failures", "memory grown by"],
        [f"{result.frames:,}", f"{result.streams:,}", f"{result.refused:,}", 0, f"{result.grown_kib / 1024:.1f} MiB"],
        since_s=started_s,
    )
    assert result.grown_kib < 100 * 1024


@pytest.mark.soak
@pytest.mark.timeout(FRAMES // 1000 + KILLS * 10 + 600)
def test_kills_lose_and_double_nothing() -> None:
    started_s = time.monotonic()
    result = run(KILLS, SEED)
    print_campaign(
        f"`kill -9` of a UDF in a stream of numbered points, seed {SEED}",
        ["kills", "points", "checkpoints", "lost", "doubled", "wrong"],
        [result.kills, f"{result.points:,}", f"{result.snapshots:,}", result.lost, result.doubled, result.wrong],
        since_s=started_s,
    )
    assert result.kills >= KILLS
    assert (result.lost, result.doubled, result.wrong) == (0, 0, 0)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_hundred_kills_lose_and_double_nothing() -> None:
    result = run(kills=100, seed=2)
    assert (result.lost, result.doubled, result.wrong) == (0, 0, 0)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", [True, False], ids=["host", "agent"])
def test_200_000_mutated_frames_crash_nothing(host: bool) -> None:
    assert fuzz(200_000, seed=2, host=host).grown_kib < 100 * 1024
