"""Exchanges that give few candles a call: fewer than the dialect says, or one."""

from __future__ import annotations

import pytest

from dexorder_common.model.page import Candle
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.paging import AnswerSizes
from tests.examples import first_in_gate
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.simulated.jobs import check_account, check_no_wrong_row, check_whole, fetch
from tests.unit.services.ingestor.history.simulated.world import History, World
from tests.unit.services.ingestor.history.test_evidence import opens

FEW = "SIM gives fewer than 3 candles a call, so that answers overlap too little to be checked"


def world(call: int, returned: int = 0, *, wide: bool = False, density: float = 1.0) -> World:
    return World(1, History(density), 300, 60, CallLimits(call, wide=wide), page=100, returned=returned)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("returned", [3, 5, 7, -3, -5])
def test_a_limit_that_the_answers_show_is_used(returned: int, wide: bool) -> None:
    outcome = fetch(world(100, returned, wide=wide))
    check_whole(outcome)
    assert outcome.exchange.calls <= 1_500 / abs(returned)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(("call", "returned"), [(1, 0), (2, 0), (100, 1), (100, 2), (100, -1)])
@pytest.mark.parametrize("density", [1.0, 0.3])
def test_one_or_two_candles_a_call_are_refused_with_words_after_a_few_calls(
    call: int, returned: int, density: float, wide: bool
) -> None:
    outcome = fetch(world(call, returned, wide=wide, density=density))
    assert [(each.span, each.reason) for each in outcome.missing] == [(outcome.world.span, FEW)]
    assert outcome.exchange.calls <= 40 and not outcome.pages


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("returned", [-2, -1, 1, 2])
@pytest.mark.parametrize("density", first_in_gate([0.3, 1.0, 0.03], 1))
def test_answers_with_one_end_of_a_range_within_a_call_do_not_prove_it_empty(
    returned: int, density: float, wide: bool
) -> None:
    """Whether the candles of an answer are in the range or beside it, it says nothing of what it may have left out."""
    outcome = fetch(world(1_000, returned, wide=wide, density=density))
    check_account(outcome)
    check_no_wrong_row(outcome)
    assert outcome.missing and outcome.exchange.calls <= 300


@pytest.mark.parametrize("density", [0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("wide", [True, False])
def test_a_thin_market_is_not_taken_for_a_small_limit(density: float, wide: bool) -> None:
    check_whole(fetch(world(100, wide=wide, density=density)))


def test_only_answers_that_lack_candles_and_are_alike_show_a_limit() -> None:
    candles = [Candle(t, 1.0, 1.0, 1.0, 1.0, 1.0) for t in opens(*range(40))]
    cut, whole, other = AnswerSizes(), AnswerSizes(), AnswerSizes()
    for first in reversed(range(20)):
        window = minutes(first, 20)
        cut.add(window, candles[first : first + 3])
        whole.add(window, candles[first : first + 20])
        other.add(window, candles[first : first + 3 + first % 2])
    cut.add(minutes(0, 20), [])  # an answer without candles was not cut by a limit
    assert (cut.limit, whole.limit, other.limit) == (3, 0, 0)
    other_market = AnswerSizes()
    for _ in range(30):
        other_market.add(minutes(0, 40), candles[:3])
    other_market.add(minutes(30, 10), candles[30:33])
    for _ in range(30):
        other_market.add(minutes(0, 40), candles[:3])
    assert other_market.limit == 0, "one answer alone brought what the others lack"
    cut.add(minutes(0, 20), candles[:4])
    assert cut.limit == 0, "a call gives more"
