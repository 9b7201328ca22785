"""The realtime chain in simulated time: profiles of faults under which every promise holds, and the replay of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.realtime import RealtimeProfile, RealtimeStory
from tests.simulation.realtime_found import RECENT
from tests.simulation.realtime_profiles import HOLD, HONEST, MENDED

SEEDS = range(1, 3)


def test_an_hour_of_an_honest_exchange_is_recorded_as_it_was() -> None:
    story = RealtimeStory(1, replace(HONEST, seconds=3_600.0, periods=((60, 300),)))
    assert story.play() == []
    assert len(story.storage.tables.trades["BTC/USDT.SIM"]) > 100
    assert len(story.storage.tables.candles) > 50


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        pytest.param(profile, seed, id=f"{profile.name}, {seed}")
        for profile in HOLD
        for seed in (SEEDS if profile not in MENDED else SEEDS[:1])
    ]
    + [pytest.param(profile, seed, id=f"{profile.name}, {seed}") for seed, profile in RECENT],
)
def test_every_promise_holds(profile: RealtimeProfile, seed: int) -> None:
    story = RealtimeStory(seed, profile)
    assert not story.play(), "\n".join(story.run.story)


def test_one_seed_has_one_story() -> None:
    profile = replace(HOLD[4], name="replay")
    first, second = (RealtimeStory(7, profile) for _ in range(2))
    assert first.play() == second.play()
    assert first.run.story == second.run.story
    assert first.run.loop.steps == second.run.loop.steps
    records = ([(each.time_ns, each.headers.span) for each in story.storage.records] for story in (first, second))
    assert next(records) == next(records)
