"""Triggers in virtual time: fixed seeds, and a replay bit for bit."""

from __future__ import annotations

import pytest

from tests.simulation import triggers

RETURNED = 910_007
"""Seed in which a series loses its last trigger and gets another before the process has read on."""
ONE_MILLISECOND = 28
"""Seed in which a trade of the millisecond in which a record ends waits for its watermark at a registration."""
SEEDS = (*range(16), RETURNED, ONE_MILLISECOND)
BEHIND_A_PAUSE = 2, 4
"""Seeds in which rows of a pause are evaluated after its end."""
NOT_HEARD_OF = 5, 8
"""Seeds in which a pause ends before the process hears of the trigger, and then rows of it are evaluated."""
TORN = 52
"""Seed in which a kill within a write of the journal leaves a part of a record."""
LOST_WITH_AN_EDIT = 25
"""Seed in which a batch that has taken an edit would be lost in a kill, were it not synced."""
CHANGED_SEEDS = (*range(2), *BEHIND_A_PAUSE, *NOT_HEARD_OF, LOST_WITH_AN_EDIT, TORN)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_of_triggers_breaks(seed: int) -> None:
    assert any("relay: has t-" in line for line in triggers.simulate(seed).story)


@pytest.mark.parametrize("seed", CHANGED_SEEDS)
def test_no_promise_of_edits_and_pauses_breaks(seed: int) -> None:
    story = triggers.simulate_changes(seed).story
    assert any(word in line for line in story for word in ("fires above", "is paused", "is resumed"))


def test_a_seed_gives_the_same_story_again() -> None:
    assert triggers.simulate(7).story == triggers.simulate(7).story
