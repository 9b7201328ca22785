"""The joint of trades of REST and of the socket after numbers have begun again: what ends it, what was missing."""

from __future__ import annotations

import pytest

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeSeries
from dexorder_ingestor.realtime.numbered.joint import Joint, unjoined


def _trade(number: int, second: float) -> Trade:
    return Trade(int(second * SECOND_NS), number, str(number), 1.5, 0.25, "buy", 1, 0)


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
    joint = Joint(SHOWN, 0)
    joint.released([NEXT, _trade(3, 41)])
    joint.released([_trade(4, 42)])
    assert joint.add(answer) == missing
    assert joint.is_over and joint.restarts == restarts


@pytest.mark.parametrize(
    "answer",
    [[], [SHOWN], [OLD, SHOWN, MISSING[0]], [NEXT, _trade(3, 41)], [MISSING[0], NEXT]],
    ids=["nothing", "a cached answer", "behind", "after it", "without the last known one"],
)
def test_any_other_answer_leaves_it_open(answer: list[Trade]) -> None:
    joint = Joint(SHOWN, 0)
    joint.released([NEXT])
    assert joint.add(answer) == [] and not joint.is_over


def test_it_is_due_once_a_later_trade_is_known_and_asks_by_time() -> None:
    joint = Joint(SHOWN, 7)
    assert not joint.is_due
    assert joint.add([SHOWN, MISSING[0]]) == []
    joint.released([SHOWN, NEXT], [SHOWN])
    assert (joint.is_due, joint.is_over) == (True, False)
    query = joint.query(TradeSeries(numbered=True, from_number="fromId"))
    assert query.number is None and query.since_ns is not None and query.since_ns <= SHOWN.time_ns
    span = ProvisionalSpan(
        TimeRange(SHOWN.time_ns, NEXT.time_ns + 1), ProvisionalReason.IDS_BEGAN_AGAIN, "", "", since_ns=7
    )
    assert joint.span(NEXT.time_ns) == span
    seam = span._replace(first_id="3", last_id="99")
    assert unjoined([seam, span, span._replace(reason=ProvisionalReason.ONE_SOURCE)]) == span
    assert unjoined([seam]) is None
