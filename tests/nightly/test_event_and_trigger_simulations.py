"""Thousands of new seeds of user events and of triggers in virtual time; a broken promise names its seed.

DEXORDER_SIMULATED_EVENTS=2000 DEXORDER_SIMULATED_TRIGGERS=1000   # runs
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.seeds import seeded
from tests.simulation import events, triggers
from tests.simulation.run import Broken, Run

EVENTS = int(os.environ.get("DEXORDER_SIMULATED_EVENTS", "2000"))
TRIGGERS = int(os.environ.get("DEXORDER_SIMULATED_TRIGGERS", "1000"))
KNOWN = ("seen to run",)
"""Faults that the gate expects in a seed of its own, see tests/unit/simulation."""


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("simulate", "runs"), [(events.simulate, EVENTS), (triggers.simulate, TRIGGERS)])
def test_new_seeds_break_no_promise(simulate: Callable[[int], Run], runs: int) -> None:
    random, broken = seeded(simulate.__module__), []
    for _ in range(runs):
        seed = random.randrange(1 << 32)
        try:
            simulate(seed)
        except Broken as error:
            if not any(text in str(error) for text in KNOWN):
                broken.append((seed, str(error)))
    assert not broken, broken[:5]
