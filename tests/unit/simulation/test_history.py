"""Fixed seeds of the history chain in virtual time; `make sim SEED=...` prints the story of one."""

from __future__ import annotations

import pytest

from tests.simulation.history import Plan, simulate

SEEDS = range(50)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_whatever_fails(seed: int) -> None:
    simulate(seed)


def test_equal_seeds_tell_equal_stories() -> None:
    first, second = simulate(3), simulate(3)
    assert len(first.story) > 30
    assert first.story == second.story


def test_a_refresh_that_is_cancelled_takes_nobodys_coverage() -> None:
    simulate(1, Plan(requests=3, refresh_cancelled=True))


def test_whoever_asks_again_for_a_provisional_hole_gets_a_new_look() -> None:
    simulate(0, Plan(requests=3, hides=True, asks_again=True))
