from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_ingestor.exchange.agreement import HALF_LIFE_NS, ODDS, Agreement, UntrueShare, agreeing, lead


@pytest.mark.parametrize(("rate", "answers", "ahead"), [(0.0005, 2, 2), (0.01, 3, 4), (0.05, 5, 5), (0.2, 9, 10)])
def test_answers_that_must_agree(rate: float, answers: int, ahead: int) -> None:
    assert (agreeing(rate), lead(rate)) == (answers, ahead)


@given(st.floats(1e-4, 0.45))
def test_number_of_answers_is_the_least_that_keeps_the_odds(rate: float) -> None:
    for count, share in ((agreeing(rate), rate), (lead(rate), rate / (1 - rate))):
        assert share**count <= ODDS * (1 + 1e-6)
        assert count == 2 or share ** (count - 1) > ODDS * (1 - 1e-6)


def test_half_untrue_is_not_a_majority() -> None:
    assert agreeing(0.5) == 20
    assert lead(0.5) > 300


def test_share_starts_at_one_in_twenty_and_follows_the_answers() -> None:
    rate = UntrueShare(20, kept=40)
    assert rate.value() == 0.05
    assert Agreement().foreign.value() == 0.1
    rate.note(true=980)
    assert rate.value() == pytest.approx(0.001)
    rate.note(true=800, untrue=200)
    assert rate.value() == pytest.approx(0.2, rel=0.1)
    for _ in range(10):
        rate.note(true=1_000)
    assert rate.value() < 0.01, "old answers count less and less"


def test_answers_of_yesterday_vouch_for_nothing_today() -> None:
    rates = Agreement()
    rates.advance(10 * HALF_LIFE_NS)
    rates.incomplete.note(true=2_000)
    rates.foreign.note(true=2_000)
    assert (rates.agreeing(), rates.lead()) == (2, 2)
    rates.advance(34 * HALF_LIFE_NS)
    assert (rates.agreeing(), rates.lead()) == (Agreement().agreeing(), Agreement().lead())
    rates.advance(9 * HALF_LIFE_NS)
    rates.incomplete.note(true=2_000)
    rates.advance(34 * HALF_LIFE_NS)
    assert rates.agreeing() == 2, "a clock that goes back lets nothing age"


@given(st.integers(0, 2_000), st.integers(1, 5))
def test_one_untrue_answer_ends_the_credit_of_all_before(true: int, untrue: int) -> None:
    rate = UntrueShare(20, kept=40)
    rate.note(true=true)
    rate.note(untrue=untrue)
    assert rate.value() > 1 / 40


@given(st.integers(0, 30), st.integers(1, 30))
def test_answers_that_disagree_about_the_same_candles_count_alone(true: int, untrue: int) -> None:
    """Whatever the exchange answered earlier, as many must agree as their own share demands."""
    rates = Agreement()
    rates.incomplete.note(true=2_000)
    rates.foreign.note(true=2_000)
    seen = (untrue + 1) / (true + untrue + 2)
    assert rates.agreeing(true=true, untrue=untrue) >= agreeing(seen)
    assert rates.lead(true=true, untrue=untrue) >= lead(seen)


def test_kinds_are_counted_separately() -> None:
    rates = Agreement()
    rates.incomplete.note(true=500, untrue=500)
    assert (rates.agreeing(), rates.lead()) == (20, 7)


def test_answers_against_a_series_raise_the_lead_it_needs() -> None:
    rates = Agreement()
    rates.foreign.note(true=1_000)
    assert rates.lead(true=10) == 2
    assert rates.lead(true=10, untrue=2) == 11
    assert rates.lead(true=10, untrue=10) > 300


@pytest.mark.parametrize(("true", "untrue"), [(10, 0), (13, 1), (15, 2), (32, 11)])
def test_counts_that_a_rate_of_one_half_rarely_gives_show_a_minority(true: int, untrue: int) -> None:
    rate = UntrueShare(10, kept=4)
    assert rate.is_minority(true=true, untrue=untrue)
    assert not rate.is_minority(true=true - 1, untrue=untrue)
    assert not rate.is_minority(true=untrue, untrue=true)
    rate.note(true=50, untrue=50)
    assert not rate.is_minority(true=true, untrue=untrue), "the exchange is known"


def test_two_markets_with_half_of_the_answers_each_are_not_told_apart() -> None:
    """Once two answers disagree. All are counted after each one, so the odds of a decision are those of all counts."""
    source, decided = random.Random(7), 0
    for _ in range(1_000):
        agreement = Agreement()
        agreement.foreign.note(true=200)  # the exchange was good before
        votes = [1, 1]
        for _ in range(350):
            votes[source.random() < 0.5] += 1
            if agreement.is_lead(max(votes), min(votes)):
                decided += 1
                break
    assert decided <= 10  # half of them wrong
