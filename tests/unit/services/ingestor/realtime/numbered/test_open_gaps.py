"""Numbers that an exchange has left out: asked about again, closed by whatever comes."""

from __future__ import annotations

from dexorder_common.model.realtime import ProvisionalReason
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.numbered.open_gaps import DELAYS_NS, OpenGap, OpenGaps, seam

SERIES = TradeSeries(numbered=True, from_number="fromId")
SPAN = TimeRange(100 * SECOND_NS, 110 * SECOND_NS)


def _trade(number: int, second: int = 105) -> Trade:
    return Trade(second * SECOND_NS, number, str(number), 1.5, 1.0, "buy", 1, 0)


def _gaps(first: int = 5, last: int = 9) -> OpenGaps:
    gaps = OpenGaps()
    gaps.open(OpenGap(first, last, SPAN, ProvisionalReason.MISSING_IDS, SPAN.end_ns))
    return gaps


def test_a_gap_is_asked_about_after_each_delay_and_is_final_after_the_last() -> None:
    gaps, asked = _gaps(), []
    for _ in DELAYS_NS:
        due_ns = next(t for t in (SPAN.end_ns + delay for delay in DELAYS_NS) if gaps.due(t))
        gap = gaps.due(due_ns)
        assert gap is not None and gaps.due(due_ns - 1) is None
        assert gap.query(SERIES) == TradeQuery(number=5)
        asked.append(due_ns - SPAN.end_ns)
        gaps.answered(gap, TradeAnswer([_trade(10, 111)], False, due_ns))
    assert tuple(asked) == DELAYS_NS and len(gaps) == 0


def test_an_empty_answer_counts_for_nothing() -> None:
    gaps = _gaps()
    gap = gaps.due(SPAN.end_ns + DELAYS_NS[0])
    assert gap is not None
    gaps.answered(gap, TradeAnswer([], False, SPAN.end_ns + DELAYS_NS[0]))
    assert gaps.spans()[0].queries == 0


def test_a_trade_closes_its_part_of_a_gap_whenever_it_comes_and_once() -> None:
    gaps = _gaps()
    assert gaps.close([_trade(4), _trade(7, second=500), _trade(10)]) == [_trade(7, second=500)]
    assert gaps.close([_trade(7)]) == []
    assert [(each.first_id, each.last_id) for each in gaps.spans()] == [("5", "6"), ("8", "9")]
    assert len(gaps.close([_trade(n) for n in (5, 6, 8, 9)])) == 4 and gaps.spans() == ()


def test_a_trade_of_two_gaps_closes_both_and_is_returned_once() -> None:
    """A dispatch that starts before the gap of an earlier one finds it again."""
    gaps = _gaps()
    gaps.open(OpenGap(7, 8, SPAN, ProvisionalReason.MISSING_IDS, SPAN.end_ns + 1))
    assert gaps.close([_trade(7), _trade(8)]) == [_trade(7), _trade(8)]
    assert gaps.close([_trade(7), _trade(8)]) == []
    assert [(each.first_id, each.last_id) for each in gaps.spans()] == [("5", "6"), ("9", "9")]


def test_the_next_dispatch_goes_on_with_the_gaps() -> None:
    assert OpenGaps(_gaps().spans()).spans() == _gaps().spans()


def test_where_numbers_begin_again_only_the_time_tells_whose_trade_it_is() -> None:
    gaps = OpenGaps()
    for gap in seam(700, SPAN.start_ns, _trade(3, second=110), SPAN.end_ns):
        gaps.open(gap)
    assert gaps.close([_trade(701, second=300), _trade(2, second=99)]) == [_trade(2, second=99)]
    assert gaps.close([_trade(701)]) == [_trade(701)]


def test_a_copy_of_a_trade_that_closed_a_gap_has_another_time_unless_an_answer_shows_both() -> None:
    gaps, copy = _gaps(), _trade(7)._replace(time_ns=105 * SECOND_NS + 1)
    gaps.close([_trade(7)])
    assert gaps.were_closed_by(_trade(7)) and gaps.were_closed_by(copy)
    assert gaps.were_closed_by(_trade(7), [_trade(7), copy]), "the same trade"
    assert gaps.were_closed_by(copy, [_trade(7)]), "the socket has sent the copy"
    assert not gaps.were_closed_by(copy, [_trade(7), copy])
    assert not gaps.were_closed_by(_trade(8)) and not gaps.were_closed_by(_trade(7, second=107))
