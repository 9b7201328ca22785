"""The triggers' process, killed again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.trigger_kills import Outcome, campaign


def check(outcome: Outcome) -> None:
    print(outcome)
    assert (outcome.lost, outcome.new, outcome.changed) == (0, 0, 0)
    assert outcome.deliveries > outcome.events, "nothing was published again: the kills hit nothing"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_eight_kills_over_100_triggers_lose_and_double_nothing(tmp_path: Path) -> None:
    check(campaign(tmp_path, triggers=100, kills=8, minutes=60, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_fifty_kills_over_1000_triggers_lose_and_double_nothing(tmp_path: Path) -> None:
    check(campaign(tmp_path, triggers=1_000, kills=50, minutes=200, seed=2))
