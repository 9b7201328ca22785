"""Whole dispatches against a simulated exchange, with any history, limits, lies, failures and deaths of the ingestor.

An exchange may lie about a candle as often as it likes, and for as long: then its row is right, or it is missing, or
its absence is provisional. How many jobs end that way is counted. Examples and seeds are the same in every run, and a
failing example is shown as it was drawn, with its seed and the exchange's log. The nightly campaign runs others and
shrinks them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dexorder_ingestor.exchange.dialect import CallLimits
from tests.unit.services.ingestor.history.simulated import campaign
from tests.unit.services.ingestor.history.simulated.jobs import check_whole, fetch
from tests.unit.services.ingestor.history.simulated.properties import PROPERTIES
from tests.unit.services.ingestor.history.simulated.world import History, World
from tests.unit.services.ingestor.history.simulated.worlds import seeded

EXAMPLES = 6
SEEDS = range(200)
PROFILE = settings(
    max_examples=EXAMPLES, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name: str) -> None:
    holds, worlds = PROPERTIES[name]
    PROFILE(given(worlds)(holds))()


@pytest.mark.parametrize(
    "world",
    [
        World(1815, History(outages=((0, 8),), listed=0), 2, 60, CallLimits(5, wide=True), page=1, lies=0.2),
        World(8842020, History(density=0.03), 31, 60, CallLimits(5, wide=False), page=1, lies=0.05),
    ],
)
def test_answer_of_another_market_that_alone_reaches_the_page_is_outvoted(world: World) -> None:
    outcome = fetch(world)
    check_whole(outcome)
    assert any("other symbol" in line for line in outcome.exchange.log)


@pytest.mark.parametrize("seed", [0, 597, 807, 1076])
def test_answers_that_no_candle_links_to_the_others_still_prove_a_hole(seed: int) -> None:
    # The only answers that end before a hole, or begin behind it, hold candles of a series that nothing connects.
    check_whole(fetch(seeded(seed, lies=0.05)))


@pytest.mark.parametrize("seed", [1379, 1461])
def test_candle_that_no_answer_links_to_the_others_is_not_called_empty(seed: int) -> None:
    # More answers have it than lack it, yet as many lack it as prove a hole: each lie about its only window does.
    check_whole(fetch(seeded(seed, lies=0.2)))


def test_jobs_at_an_exchange_that_lies_at_times_are_whole() -> None:
    tally = campaign.run(range(40), lies=0.05)
    assert (tally.cold, tally.later, tally.missing) == ([], [], [])


@pytest.mark.nightly
@pytest.mark.parametrize("lies", campaign.COLD_ODDS)
def test_no_more_jobs_end_wrong_than_the_odds_allow(lies: float) -> None:
    campaign.run(SEEDS, lies=lies).check(doubt=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("lies", campaign.FOREIGN_ODDS)
def test_fresh_ingestors_confuse_markets_no_more_than_the_odds_allow(lies: float) -> None:
    campaign.run_foreign(range(100), lies=lies).check(doubt=0.01)


@pytest.mark.parametrize(("expected", "most"), [(0.0, 0), (0.003, 0), (0.4, 2), (4.0, 9)])
def test_counts_explained_by_chance(expected: float, most: int) -> None:
    assert campaign.most_by_chance(expected, 0.01) == most
