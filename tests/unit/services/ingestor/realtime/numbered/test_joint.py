"""The joint of trades of REST and of the socket after numbers have begun again: what ends it, what was missing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeSeries
from dexorder_ingestor.realtime.numbered.joint import Joint, Joints, doubtful, unjoined


def _trade(number: int, second: float) -> Trade:
    return Trade(int(second * SECOND_NS), number, str(number), 1.5, 0.25, "buy", 1, 0)


def _answer(trades: list[Trade], *, full: bool = False) -> TradeAnswer:
    return TradeAnswer(trades, full, 0)


SERIES = TradeSeries(numbered=True, from_number="fromId")
SHOWN, NEXT = _trade(1, 4), _trade(2, 40)
OLD = _trade(850_502, 1)
MISSING = _trade(1, 17), _trade(2, 6)


@pytest.mark.parametrize(
    ("answer", "missing", "restarts"),
    [
        ([SHOWN, NEXT], [], []),
        ([OLD, SHOWN, NEXT, _trade(3, 41)], [], []),
        ([SHOWN, MISSING[0], NEXT], [MISSING[0]], [(SHOWN, MISSING[0])]),
        ([SHOWN, MISSING[1], MISSING[0], NEXT], [MISSING[1], MISSING[0]], [(MISSING[1], MISSING[0])]),
        ([SHOWN, _trade(3, 41)], [], []),
        ([SHOWN, MISSING[0], _trade(2, 40.5), _trade(3, 41)], [MISSING[0]], [(SHOWN, MISSING[0])]),
    ],
    ids=["nothing between", "others around", "a second restart", "two trades", "REST lacks the next", "another time"],
)
def test_an_answer_with_both_ends_it(
    answer: list[Trade], missing: list[Trade], restarts: list[tuple[Trade, Trade]]
) -> None:
    joint = Joint(SHOWN)
    joint.released([NEXT, _trade(3, 41)])
    joint.released([_trade(4, 42)])
    assert joint.add(_answer(answer)) == (missing, restarts)
    assert joint.is_over


@pytest.mark.parametrize(
    "answer",
    [[], [SHOWN], [OLD, SHOWN, MISSING[0]], [NEXT, _trade(3, 41)], [MISSING[0], NEXT]],
    ids=["nothing", "a cached answer", "behind", "after it", "without the last known one"],
)
def test_any_other_answer_leaves_it_open(answer: list[Trade]) -> None:
    joint = Joint(SHOWN)
    joint.released([NEXT])
    assert joint.add(_answer(answer)) == ([], []) and not joint.is_over


def test_a_full_answer_is_continued_until_the_later_trade_is_shown() -> None:
    """So many trades were missing that one answer can't have all of them."""
    joint = Joint(SHOWN)
    joint.released([NEXT])
    assert joint.add(_answer([SHOWN, MISSING[1]], full=True)) == ([MISSING[1]], [])
    assert not joint.is_over and joint.query(SERIES).since_ns == SERIES.query(None, MISSING[1].time_ns).since_ns
    assert joint.add(_answer([SHOWN, NEXT])) == ([], []), "an answer that does not have the end of the one before"
    assert joint.add(_answer([MISSING[1], MISSING[0], NEXT])) == ([MISSING[0]], [(MISSING[1], MISSING[0])])
    assert joint.is_over


def test_it_is_due_once_a_later_trade_is_known_and_asks_by_time() -> None:
    joint = Joint(SHOWN, held=doubtful(SHOWN, SHOWN.time_ns, 7))
    assert not joint.is_due
    assert joint.add(_answer([SHOWN, MISSING[0]])) == ([], [])
    joint.released([SHOWN, NEXT], [SHOWN])
    assert (joint.is_due, joint.is_over) == (True, False)
    query = joint.query(SERIES)
    assert query.number is None and query.since_ns is not None and query.since_ns <= SHOWN.time_ns
    span = ProvisionalSpan(
        TimeRange(SHOWN.time_ns, NEXT.time_ns + 1), ProvisionalReason.IDS_BEGAN_AGAIN, "", "", since_ns=7
    )
    assert joint.span(NEXT.time_ns + 5) == span, "a trade after the later one is proven by the connection"
    seam = span._replace(first_id="3", last_id="99")
    assert unjoined([seam, span, span._replace(reason=ProvisionalReason.ONE_SOURCE)]) == span
    later = span._replace(reason=ProvisionalReason.NOT_JOINED, span=TimeRange(NEXT.time_ns, NEXT.time_ns + 9))
    assert unjoined([later, span]) == span._replace(span=TimeRange(SHOWN.time_ns, NEXT.time_ns + 9))
    assert unjoined([seam]) is None


def test_a_new_connection_makes_time_provisional_once_its_first_trade_is_known() -> None:
    """Before, that time is not settled, or REST and the socket agree that it is quiet."""
    joint = Joint(SHOWN)
    assert joint.span(NEXT.time_ns) is None
    joint.released([NEXT])
    between = TimeRange(SHOWN.time_ns, NEXT.time_ns + 1)
    assert joint.span(NEXT.time_ns) == ProvisionalSpan(between, ProvisionalReason.NOT_JOINED, since_ns=NEXT.time_ns)


def test_time_that_an_earlier_dispatch_has_settled_stays_provisional() -> None:
    left = ProvisionalSpan(TimeRange(SHOWN.time_ns, NEXT.time_ns), ProvisionalReason.NOT_JOINED, since_ns=7)
    joint = Joint(MISSING[1], held=left)
    assert joint.span(SHOWN.time_ns) == left._replace(span=TimeRange(MISSING[1].time_ns, NEXT.time_ns))


def test_each_connection_has_its_joint_and_one_answer_may_end_several() -> None:
    joints = Joints()
    tape = [_trade(number, number) for number in range(1, 9)]
    joints.reconnected(tape[0], [tape[1]])
    joints.released(tape[1:3])  # the first of them came on the connection before
    joints.reconnected(tape[2], [])
    joints.reconnected(tape[2], [])
    joints.released(tape[3:4])
    spans = [each.span for each in joints.spans(tape[7].time_ns)]
    assert spans == [TimeRange(one.time_ns, other.time_ns + 1) for one, other in pairwise(tape[1:4])]
    missing = _trade(3, 3.5)
    assert joints.add(_answer([*tape[:3], missing, tape[3]])) == [([], []), ([missing], [(tape[2], missing)])]
    assert not joints.spans(tape[7].time_ns)


def test_a_market_whose_connections_end_at_once_keeps_few_joints_and_forgets_no_time() -> None:
    joints = Joints()
    tape = [_trade(number, number) for number in range(1, 500)]
    for last, trade in pairwise(tape):
        joints.reconnected(last, [])
        joints.released([trade])
    before = joints.spans(tape[-1].time_ns)
    joints.reconnected(tape[-1], [])
    assert joints.spans(tape[-1].time_ns) == before, "also until the next trade"
    spans = [each.span for each in before]
    assert len(spans) == 100
    assert (spans[0].start_ns, spans[-1].end_ns) == (tape[0].time_ns, tape[-1].time_ns + 1)
    assert all(one.end_ns > other.start_ns for one, other in pairwise(spans))
