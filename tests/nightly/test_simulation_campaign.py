"""New seeds of the simulations in virtual time; a broken promise is told with the seed that repeats it."""

from __future__ import annotations

import pytest

from tests.seeds import seeded
from tests.simulation.__main__ import PARTS, run_many, simulate_of

RUNS = 2_000

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3_600)]


@pytest.mark.parametrize("part", PARTS)
def test_no_new_seed_breaks_a_promise(part: str) -> None:
    dice = seeded(f"simulation of {part}")
    seeds = [dice.randrange(10**9) for _ in range(RUNS)]
    broken = run_many(simulate_of(part), seeds)
    assert not broken, "\n".join(f"dexorder-sim {seed} --part {part}: {text}" for seed, text in broken.items())
