"""Candidate series: which one an unproven range is asked of, and what stays of a candle that is dropped."""

from __future__ import annotations

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.candidate_series import CandidateAnswer, Candidates
from dexorder_ingestor.history.paging import QueryWindows
from tests.unit.services.ingestor.conftest import minutes

NOTHING = TimeRange(0, 0)


class Answers:
    """Answers of an exchange to one job, by minute of an hour."""

    def __init__(self) -> None:
        windows = QueryWindows(60, CallLimits(10), closed_end_ns=minutes(60, 0).start_ns)
        self.agreement = Agreement()
        self.candidates = Candidates(windows, self.agreement)

    def add(self, first: int, end: int, *opens: int) -> None:
        """Take an answer about the minutes before ``end`` that has candles at these ones."""
        candles = [Candle(minutes(each, 0).start_ns, 1.0, 2.0, 0.5, 1.5, 10.0) for each in opens]
        inner = minutes(opens[0], opens[-1] + 1 - opens[0]) if opens else None
        answer = CandidateAnswer(minutes(first, end - first), frozenset(c.open_ns for c in candles), inner, 0)
        self.candidates.add(answer, candles, final=NOTHING)


def test_a_hole_is_asked_of_a_series_with_candles_in_it_though_no_answer_of_it_covers_the_hole() -> None:
    answers = Answers()
    answers.add(0, 10, *range(5))
    answers.add(7, 12, 7)
    lead = answers.candidates.lead(minutes(0, 5))
    hole = minutes(5, 5)
    stray = answers.candidates.stray([hole], lead)
    assert stray is not None and stray is not lead
    assert list(stray.known) == [minutes(7, 0).start_ns]
    assert not any(each.window.contains(hole) for each in stray.answers)


def test_a_series_whose_last_candle_is_dropped_is_gone() -> None:
    """Its answers would lead a page of which nobody knows a candle."""
    answers = Answers()
    answers.add(0, 10, 3)
    answers.candidates.drop(minutes(3, 0).start_ns)
    assert answers.candidates.lead(minutes(0, 10)) is None


def test_a_series_that_answers_deny_is_dropped_and_counted_as_another_markets() -> None:
    answers = Answers()
    answers.add(0, 10, 3)
    for number in range(1, 60):  # noqa: B007
        answers.add(0, 10)
        if answers.candidates.lead(minutes(0, 10)) is None:
            break
    assert number > 3 and answers.candidates.lead(minutes(0, 10)) is None
    assert answers.agreement.foreign.counted.untrue == 1
