"""Time that REST alone calls quiet: it grows, loses the parts that candles confirm, and ends with the next trade."""

from __future__ import annotations

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.realtime.numbered.alone_time import AloneTime


def _span(start_ns: int, end_ns: int, since_ns: int = 7) -> ProvisionalSpan:
    return ProvisionalSpan(TimeRange(start_ns, end_ns), ProvisionalReason.ONE_SOURCE, since_ns=since_ns)


def test_it_grows_from_its_first_start_and_keeps_the_time_since_which_it_is_provisional() -> None:
    alone = AloneTime([])
    assert alone.spans() == []
    alone.add(100, 200, clock_ns=7)
    alone.add(200, 300, clock_ns=9)
    assert alone.spans() == [_span(100, 300)]


def test_candles_confirm_parts_of_it_and_a_trade_all_of_it() -> None:
    alone = AloneTime([])
    alone.witnessed(TimeRange(100, 160))
    alone.add(100, 300, clock_ns=7)
    assert alone.spans() == [_span(100, 300)], "a confirmation from before it began says nothing"
    alone.witnessed(TimeRange(160, 220))
    alone.witnessed(TimeRange(220, 240))
    assert alone.spans() == [_span(100, 160), _span(240, 300)]
    alone.witnessed(TimeRange(60, 420))
    assert alone.spans() == []
    alone.proven()
    alone.add(500, 600, clock_ns=8)
    assert alone.spans() == [_span(500, 600, 8)]


def test_parts_that_an_earlier_dispatch_has_left_are_one_again_and_spans_of_ids_are_not_meant() -> None:
    ids = _span(5, 9)._replace(first_id="7", last_id="8")
    other = _span(5, 9)._replace(reason=ProvisionalReason.NOT_JOINED)
    assert AloneTime([_span(240, 300), ids, other, _span(100, 160)]).spans() == [_span(100, 300)]
