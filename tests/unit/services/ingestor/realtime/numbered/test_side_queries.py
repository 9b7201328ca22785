"""Queries about joints and open gaps: which comes first, and how long one waits that brings nothing."""

from __future__ import annotations

from dexorder_common.model.realtime import ProvisionalReason
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeSeries
from dexorder_ingestor.realtime.numbered.joint import Joints
from dexorder_ingestor.realtime.numbered.open_gaps import OpenGap, OpenGaps
from dexorder_ingestor.realtime.numbered.side_queries import LONGEST_RETRY_NS, RETRY_NS, SideQueries

SERIES = TradeSeries(numbered=True, from_number="fromId")
LATER_NS = 3_600 * SECOND_NS


def _trade(number: int) -> Trade:
    return Trade(number * SECOND_NS, number, str(number), 1.5, 0.25, "buy", 1, 0)


def _joints() -> Joints:
    joints = Joints()
    joints.reconnected(_trade(1), [])
    joints.released([_trade(2)])
    return joints


def _gaps() -> OpenGaps:
    gaps = OpenGaps()
    gaps.open(OpenGap(7, 8, TimeRange(6 * SECOND_NS, 9 * SECOND_NS), ProvisionalReason.MISSING_IDS, 0))
    return gaps


def test_a_joint_that_no_answer_ends_takes_turns_with_an_open_gap() -> None:
    side, chosen, now_ns = SideQueries(now_ns=0), list[str](), 0
    for _ in range(6):
        assert side.choose(_joints(), _gaps(), LATER_NS, now_ns=now_ns) and side.query(SERIES) is not None
        asked = side.take()
        chosen.append(type(asked).__name__)
        side.failed(now_ns=now_ns)
        now_ns += LONGEST_RETRY_NS
    assert chosen == ["Joint", "OpenGap"] * 3
    assert not side.is_chosen and side.query(SERIES) is None and side.take() is None


def test_a_query_that_brings_nothing_is_followed_by_ever_longer_waits_until_one_succeeds() -> None:
    side, waits, now_ns = SideQueries(now_ns=0), list[int](), 0
    for _ in range(8):
        assert side.choose(_joints(), OpenGaps(), 0, now_ns=now_ns)
        side.failed(now_ns=now_ns)
        wait_ns = next(ns for ns in range(0, 2 * LONGEST_RETRY_NS, RETRY_NS) if _is_due(side, now_ns + ns))
        waits.append(wait_ns // RETRY_NS)
        now_ns += wait_ns
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    side.succeeded()
    assert side.choose(_joints(), OpenGaps(), 0, now_ns=now_ns)
    side.failed(now_ns=now_ns)
    assert not _is_due(side, now_ns + 2 * RETRY_NS - 1) and _is_due(side, now_ns + 2 * RETRY_NS)


def test_without_anything_due_none_is_chosen() -> None:
    side = SideQueries(now_ns=0)
    assert not side.choose(Joints(), OpenGaps(), LATER_NS, now_ns=0)
    assert not side.choose(Joints(), _gaps(), SECOND_NS, now_ns=0), "the gap is due in half a minute"
    assert side.choose(Joints(), _gaps(), 30 * SECOND_NS, now_ns=0)


def _is_due(side: SideQueries, now_ns: int) -> bool:
    is_due = side.choose(_joints(), OpenGaps(), 0, now_ns=now_ns)
    side.take()
    return is_due
