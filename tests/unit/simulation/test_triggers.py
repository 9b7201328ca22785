"""Triggers in virtual time: fixed seeds, a replay bit for bit, and a fault that is known."""

from __future__ import annotations

import pytest

from tests.simulation import triggers
from tests.simulation.run import Broken

PASSED_BY_SEED = 13
SEEDS = [seed for seed in range(21) if seed != PASSED_BY_SEED]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_of_triggers_breaks(seed: int) -> None:
    assert any("relay: has t-" in line for line in triggers.simulate(seed).story)


def test_a_seed_gives_the_same_story_again() -> None:
    assert triggers.simulate(7).story == triggers.simulate(7).story


@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="registered while triggers and relay are cut off, for a series without a watcher: rows go by unread",
)
def test_a_trigger_sees_the_rows_that_went_by_before_its_process_knew_it() -> None:
    triggers.simulate(PASSED_BY_SEED)
