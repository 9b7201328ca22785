"""Triggers in virtual time: fixed seeds, a replay bit for bit, and a fault that is known."""

from __future__ import annotations

import pytest

from tests.simulation import triggers
from tests.simulation.run import Broken

UNREAD_SEED = 2
SEEDS = [seed for seed in range(21) if seed != UNREAD_SEED]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_of_triggers_breaks(seed: int) -> None:
    assert any("relay: has t-" in line for line in triggers.simulate(seed).story)


def test_a_seed_gives_the_same_story_again() -> None:
    assert triggers.simulate(7).story == triggers.simulate(7).story


@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="a trigger is shown as RUNNING though its place in the topic is not known, as the source does not answer",
)
def test_a_trigger_that_is_seen_to_run_fires_for_the_next_trade() -> None:
    triggers.simulate(UNREAD_SEED)
