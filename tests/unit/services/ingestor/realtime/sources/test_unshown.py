"""Trades of the socket that REST has not shown: when it is asked about them, what it may say, and what is left out."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.sources import unshown as unshown_module
from dexorder_ingestor.realtime.sources.comparison_limits import ComparisonLimits, Room
from dexorder_ingestor.realtime.sources.unshown import LeftOut, UnshownTrades

NUMBERED = TradeSeries(numbered=True, from_number="fromId", page=5)
DAY = 86_400


def trade(number: int, price: float = 1.5) -> Trade:
    """Return the trade of a second."""
    return Trade(number * SECOND_NS, number, str(number), price, 1.0, "buy", 1, 0)


def waiting(*numbers: int, series: TradeSeries = NUMBERED, room: Room | None = None) -> UnshownTrades:
    """Return trades that have come at second 0."""
    found = UnshownTrades(series, room or Room())
    found.add(map(trade, numbers), now_ns=0)
    return found


def query(unshown: UnshownTrades, second: float, settled: int = DAY) -> TradeQuery | None:
    """Return the query that is due at a second."""
    return unshown.take_query(settled * SECOND_NS, now_ns=int(second * SECOND_NS))


def answer(unshown: UnshownTrades, second: float, trades: Sequence[Trade], *, full: bool = False) -> list[Trade]:
    """Answer the query that is due."""
    return unshown.answered(TradeAnswer(trades, full, 0), now_ns=int(second * SECOND_NS))


def test_rest_is_asked_once_about_all_trades_of_a_minute() -> None:
    unshown = waiting(1, 2, 3)
    assert query(unshown, 79) is None and query(unshown, 80) == TradeQuery(number=1)
    assert answer(unshown, 80, [trade(1), trade(2), trade(3), trade(4)]) == [] and len(unshown) == 0
    assert query(unshown, 500) is None and unshown.take_left_out() is None


def test_a_busy_market_needs_a_call_for_each_page_and_none_for_what_other_answers_have_shown() -> None:
    unshown = waiting(*range(1, 12))
    unshown.shown([trade(1), trade(2, 9.0)])
    assert query(unshown, 19) is None and query(unshown, 20) == TradeQuery(number=2)
    assert answer(unshown, 20, [trade(n) for n in range(2, 7)], full=True) == []
    assert query(unshown, 20) == TradeQuery(number=7)
    assert answer(unshown, 20, [trade(n) for n in range(7, 12)], full=True) == [] and len(unshown) == 0


def test_other_values_are_asked_about_again_beside_those_that_are_equal_and_count_in_the_third_answer() -> None:
    unshown, shown = waiting(1, 2, 3, 4, 5), [trade(1), trade(2, 9.0), trade(3, 9.0), trade(4), trade(5)]
    for second, corrected in ((80, []), (81, []), (83, [trade(2, 9.0), trade(3, 9.0)])):
        assert query(unshown, second - 0.1) is None or second == 80
        assert query(unshown, second) == TradeQuery(number=1)
        assert answer(unshown, second, shown) == corrected
    assert len(unshown) == 0


def test_one_bad_answer_corrects_nothing() -> None:
    unshown = waiting(1, 2, 3)
    assert query(unshown, 80) and answer(unshown, 80, [trade(1), trade(2), trade(3, 9.0)]) == []
    assert query(unshown, 81) and answer(unshown, 81, [trade(1), trade(2), trade(3)]) == []
    assert len(unshown) == 0


def test_values_of_another_market_have_to_last_for_a_minute() -> None:
    unshown, second, corrected = waiting(1, 2), 80.0, list[Trade]()
    while not corrected:
        assert query(unshown, second) is not None
        corrected = answer(unshown, second, [trade(1, 9.0), trade(2, 9.0)])
        second = (unshown.due_ns() or 0) / SECOND_NS
    assert corrected == [trade(1, 9.0), trade(2, 9.0)] and 140 <= unshown._not_before_ns / SECOND_NS < 200


def test_trades_that_are_not_settled_wait_and_those_of_which_ids_are_made_need_no_query() -> None:
    unshown = waiting(7, 8)
    unshown.add([trade(9)._replace(trade_id="~9-1.5-1.0-0"), trade(9)._replace(trade_id="")], now_ns=0)
    assert len(unshown) == 2 and query(unshown, 80, settled=7) is None
    assert query(unshown, 101, settled=8) == TradeQuery(number=7)
    assert answer(unshown, 101, [trade(7), trade(8)]) == [] and len(unshown) == 1


def test_exchanges_are_asked_by_time_or_for_the_newest_trades() -> None:
    assert query(waiting(7, series=TradeSeries(numbered=True)), 80) == TradeQuery(since_ns=7 * SECOND_NS - 1_000_000)
    assert query(waiting(7, series=TradeSeries(by_time=False)), 80) == TradeQuery()


def test_what_rest_leaves_out_or_does_not_answer_is_left_out_and_named() -> None:
    unshown = waiting(1, 2, 3)
    for second in range(80, 760):
        if query(unshown, second) is not None:
            assert answer(unshown, second, [trade(1), trade(3)]) == []
        left_out = unshown.take_left_out()
        assert (len(unshown) == 0) == (left_out is not None)
        if left_out is not None:
            break
    assert left_out == LeftOut(1, TimeRange(2 * SECOND_NS, 2 * SECOND_NS + 1)) and second >= 600
    unshown = waiting(1, 2)
    for second in range(80, 600, 20):
        assert query(unshown, second) is not None
        unshown.failed(now_ns=second * SECOND_NS)
        assert query(unshown, second + 19) is None and len(unshown) == 2
    assert query(unshown, 600) is None and unshown.take_left_out() == LeftOut(
        2, TimeRange(SECOND_NS, 2 * SECOND_NS + 1)
    )


def test_a_trade_that_answers_lack_is_asked_about_again_for_ten_minutes_after_the_others() -> None:
    """A replica may have lost its feed for some minutes."""
    unshown, room_left, asked = waiting(1, 2), Room().left, list[int]()
    for second in range(80, 400):
        if query(unshown, second) is not None:
            asked.append(second)
            answer(unshown, second, [trade(3)])
        if second == 130:
            unshown.add([trade(4)], now_ns=130 * SECOND_NS)
    assert asked[:3] == [80, 100, 120] and asked[3] >= 200 and len(asked) < 16
    assert unshown.take_left_out() is None and len(unshown) == 3
    shown = [trade(1), trade(2, 9.0), trade(4), trade(5)]
    corrected = [
        each for second in range(400, 500) if query(unshown, second) for each in answer(unshown, second, shown)
    ]
    assert corrected == [trade(2, 9.0)] and len(unshown) == 0
    unshown.add([trade(6)], now_ns=500 * SECOND_NS)
    unshown.clear()
    assert room_left == Room().left


def test_markets_share_the_room_and_leave_out_new_trades_while_it_is_full() -> None:
    room = Room(left=5)
    one, other = waiting(1, 2, 3, 4, room=room), waiting(1, 2, 3, room=room)
    assert (len(one), len(other), room.left) == (4, 1, 0)
    assert other.take_left_out() == LeftOut(2, TimeRange(2 * SECOND_NS, 3 * SECOND_NS + 1))
    one.clear()
    assert room.left == 4 and one.take_left_out() == LeftOut(4, TimeRange(SECOND_NS, 4 * SECOND_NS + 1))


def test_a_market_keeps_its_limit_and_leaves_the_rest_of_the_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unshown_module, "MAX_KEPT", 3)
    room = Room(left=5)
    one, other = waiting(1, 2, 3, 4, 5, room=room), waiting(1, 2, room=room)
    assert (len(one), len(other), room.left) == (3, 2, 0)
    assert one.take_left_out() == LeftOut(2, TimeRange(4 * SECOND_NS, 5 * SECOND_NS + 1))
    assert other.take_left_out() is None


def test_the_oldest_trade_that_waits_is_known_to_five_seconds() -> None:
    unshown = waiting(13, 7, 12, 21)
    seen = [unshown.oldest_ns]
    for number in (12, 7, 21, 13):
        unshown.forget([trade(number)])
        seen.append(unshown.oldest_ns)
    assert seen == [5 * SECOND_NS, 5 * SECOND_NS, 10 * SECOND_NS, 10 * SECOND_NS, None]


def test_500_markets_use_a_fifth_of_the_calls_and_markets_without_candles_come_first() -> None:
    limits, made = ComparisonLimits(10.0, now_ns=0), {False: 0, True: 0}
    for second in range(600):
        for market in range(500):
            can_wait = market % 2 == 0
            made[can_wait] += limits.take(now_ns=second * SECOND_NS, can_wait=can_wait)
    assert 1_150 < made[False] <= 1_200 and made[True] == 0
    limits = ComparisonLimits(10.0, now_ns=0)
    assert not limits.take(now_ns=5 * SECOND_NS, can_wait=True) and limits.take(now_ns=6 * SECOND_NS, can_wait=True)


def test_trades_that_wait_are_no_work_for_the_garbage_collector() -> None:
    """It stops the process for a time that grows with the objects that it has to look at."""
    unshown = UnshownTrades(NUMBERED, Room())
    gc.collect()
    before = len(gc.get_objects())
    unshown.add(map(trade, range(1, 2_001)), now_ns=0)
    gc.collect()
    assert len(unshown) == 2_000 and len(gc.get_objects()) - before < 100
