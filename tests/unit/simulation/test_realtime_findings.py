"""Promises of realtime that are broken today, each with the seed of a run that breaks it, found by drawing faults.

A mend takes the mark away: the test then says that the seed no longer breaks its promise. A finding is judged by new
seeds of the same profile, too.
"""

from __future__ import annotations

import pytest

from tests.simulation.realtime import RealtimeProfile, RealtimeStory
from tests.simulation.realtime_checks import Rule
from tests.simulation.realtime_profiles import (
    BEHIND,
    CORRECTED,
    DEAF_AND_BEHIND,
    LACKING,
    LATE,
    RESTARTED,
)
from tests.simulation.run import Broken


def _finding(rule: Rule, profile: RealtimeProfile, seed: int, reason: str) -> object:
    mark = pytest.mark.xfail(strict=True, raises=Broken, reason=reason)
    return pytest.param(rule, profile, seed, marks=mark, id=f"{rule.name}, {profile.name}")


FINDINGS = [
    _finding(
        Rule.MISSED,
        DEAF_AND_BEHIND,
        1,
        "trades that no source had shown count as settled; the dispatch that takes over begins behind them",
    ),
    _finding(Rule.EARLY, DEAF_AND_BEHIND, 1, "a REST that is behind settles the time up to the exchange's clock"),
    _finding(Rule.GIVEN_UP, LACKING, 4, "eight answers of one replica within a minute count as proof of no trade"),
    _finding(Rule.GIVEN_UP, LATE, 7, "a number that was once taken for unused is dropped when it comes"),
    _finding(Rule.SPOILED, BEHIND, 1, "a candle is repaired from an answer that does not reach its end"),
    _finding(Rule.STUCK_BY_VALUE, CORRECTED, 1, "each answer that has another value of the last trade is refused"),
    _finding(Rule.STUCK_BY_IDS, RESTARTED, 1, "numbers below the last one are dropped for ever"),
    _finding(Rule.WRONG_VALUE, CORRECTED, 1, "of a trade the first copy is kept, whatever the exchange says later"),
]


@pytest.mark.parametrize(("rule", "profile", "seed"), FINDINGS)
def test_a_promise_is_broken_today(rule: Rule, profile: RealtimeProfile, seed: int) -> None:
    found = [breach for breach in RealtimeStory(seed, profile).play() if breach.rule is rule]
    if found:
        raise Broken(str(found[0]))
