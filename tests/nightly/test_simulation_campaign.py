"""New seeds of the simulations in virtual time; a broken promise is told with the seed that repeats it.

DEXORDER_SIMULATED=0.1 runs a tenth of them.
"""

from __future__ import annotations

import os

import pytest

from tests.seeds import seeded
from tests.simulation.__main__ import PARTS, run_many, simulate_of
from tests.simulation.realtime import RealtimeProfile, RealtimeStory
from tests.simulation.realtime_found import OLDER, RECENT

RUNS = {
    "history": 5_000,
    "history-files": 1_000,
    "realtime": 4_000,
    "events": 6_000,
    "triggers": 1_500,
    "trigger-changes": 1_000,
    "suite": 400,
}
"""A hundred minutes of one core."""
KNOWN = ("seen to run",)
"""Faults that the gate expects in a seed of its own, see tests/unit/simulation."""
SHARE = float(os.environ.get("DEXORDER_SIMULATED", "1"))

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3_600)]


def test_each_part_has_its_runs() -> None:
    assert RUNS.keys() == PARTS.keys()


@pytest.mark.parametrize("part", PARTS)
def test_no_new_seed_breaks_a_promise(part: str) -> None:
    dice = seeded(f"simulation of {part}")
    seeds = [dice.randrange(10**9) for _ in range(round(RUNS[part] * SHARE))]
    found = run_many(simulate_of(part), seeds)
    broken = {seed: text for seed, text in found.items() if not any(known in text for known in KNOWN)}
    assert not broken, "\n".join(f"dexorder-sim {seed} --part {part}: {text}" for seed, text in broken.items())


@pytest.mark.parametrize(
    ("seed", "profile"), [pytest.param(*each, id=f"{each[1].name}, {each[0]}") for each in (*OLDER, *RECENT)]
)
def test_no_run_that_was_broken_once_is_broken_again(seed: int, profile: RealtimeProfile) -> None:
    story = RealtimeStory(seed, profile)
    assert not story.play(), "\n".join(story.run.story)
