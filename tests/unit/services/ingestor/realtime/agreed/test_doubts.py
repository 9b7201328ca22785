"""Spans that REST alone calls complete: how long they are provisional."""

from __future__ import annotations

import pytest

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.realtime.agreed.doubts import MAX_SPANS, Doubts


def _span(start: int, end: int) -> TimeRange:
    return TimeRange(start * SECOND_NS, end * SECOND_NS)


@pytest.mark.parametrize(
    ("answers", "is_provisional"),
    [
        ([], True),
        ([(90, 130), (90, 719)], True),
        ([(90, 720)], False),
        ([(100, 720)], True),
        ([(90, 180), (101, 185)], False),
        ([(90, 179), (101, 185)], True),
        ([(90, 179), (101, 185), (500, 9_000)], True),
    ],
    ids=["new", "young", "old", "from within it", "beyond reach", "too soon beyond it", "for good"],
)
def test_a_span_is_final_once_rest_was_asked_much_later(answers: list[tuple[int, int]], is_provisional: bool) -> None:
    """Answers have all trades after a second, and come at another; the span was settled at second 120."""
    doubts = Doubts()
    doubts.add(_span(100, 110), 120 * SECOND_NS)
    for first, clock in answers:
        doubts.answered(first * SECOND_NS, clock * SECOND_NS)
    expected = ProvisionalSpan(_span(100, 110), ProvisionalReason.ONE_SOURCE, since_ns=120 * SECOND_NS)
    assert doubts.spans == ((expected,) if is_provisional else ())


def test_adjacent_spans_are_one_while_they_are_young() -> None:
    doubts = Doubts()
    for start, clock in ((0, 20), (10, 30), (20, 81), (40, 90)):
        doubts.add(_span(start, start + 10), clock * SECOND_NS)
    assert [each.span for each in doubts.spans] == [_span(0, 20), _span(20, 30), _span(40, 50)]


def test_a_socket_that_is_never_there_fills_no_memory_and_hides_no_span() -> None:
    doubts = Doubts()
    for n in range(10 * MAX_SPANS):
        doubts.add(_span(100 * n, 100 * n + 1), 100 * n * SECOND_NS)
    assert len(doubts.spans) == MAX_SPANS
    spans = [each.span for each in doubts.spans]
    assert all(any(s.start_ns <= 100 * n * SECOND_NS < s.end_ns for s in spans) for n in range(10 * MAX_SPANS))


def test_the_next_dispatch_goes_on_with_them() -> None:
    doubts = Doubts()
    doubts.add(_span(100, 110), 120 * SECOND_NS)
    again = Doubts(doubts.spans)
    assert again.spans == doubts.spans
    assert again.inherits(100 * SECOND_NS) and not again.inherits(110 * SECOND_NS)
    assert not doubts.inherits(100 * SECOND_NS), "its own trades it knows"
    again.answered(90 * SECOND_NS, 720 * SECOND_NS)
    assert again.spans == ()
