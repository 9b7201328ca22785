"""Answers that agree that numbers are missing: how many, one after the other, and how long to wait between them."""

from __future__ import annotations

from dexorder_ingestor.realtime.numbered.gap_agreement import GapAgreement
from dexorder_ingestor.realtime.numbered.side_queries import RETRY_NS
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap


def test_answers_about_the_same_numbers_have_to_agree_one_after_the_other() -> None:
    agreement, gap, shorter = GapAgreement(3), Gap(7, 9), Gap(8, 9)
    found = [agreement.is_reached(each) for each in (gap, gap, shorter, gap, gap, gap)]
    assert found == [False, False, False, False, False, True], "a part of it has come: the others are counted anew"
    assert not agreement.is_reached(gap), "it is over with the last one"


def test_the_wait_grows_with_the_answers_that_agree() -> None:
    agreement, gap = GapAgreement(8), Gap(7, 9)
    assert agreement.retry_ns(None) == 0 and agreement.retry_ns(gap) == RETRY_NS
    for times in range(1, 4):
        agreement.is_reached(gap)
        assert agreement.retry_ns(gap) == RETRY_NS << times
    assert agreement.retry_ns(Gap(8, 9)) == RETRY_NS
