"""Fixed seeds of the history chain in virtual time; `make sim SEED=...` prints the story of one."""

from __future__ import annotations

import pytest

from tests.simulation.history import simulate

SEEDS = range(50)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_whatever_fails(seed: int) -> None:
    simulate(seed)


def test_equal_seeds_tell_equal_stories() -> None:
    first, second = simulate(3), simulate(3)
    assert len(first.story) > 30
    assert first.story == second.story
