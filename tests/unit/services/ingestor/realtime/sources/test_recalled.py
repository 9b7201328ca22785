"""Trades of an earlier dispatch whose values REST had not shown: which are recorded again, and when that ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeSeries
from dexorder_ingestor.realtime.sources.recalled import RecalledTrades

NUMBERED = TradeSeries(numbered=True, from_number="fromId", page=5)


def trade(number: int, price: float = 1.5) -> Trade:
    """Return the trade of a second."""
    return Trade(number * SECOND_NS, number, str(number), price, 1.0, "buy", 1, 0)


def recalled(first: int, last: int | None, *, end: int, series: TradeSeries = NUMBERED) -> RecalledTrades:
    """Return the trades from a second on that an earlier dispatch has recorded, the last one at second ``end``."""
    return RecalledTrades(series, TimeRange(first * SECOND_NS, end * SECOND_NS + 1), last, now_ns=0)


def ask(found: RecalledTrades, second: float, numbers: Iterable[int], *, full: bool = False) -> list[int] | None:
    """Answer the query that is due with some trades; return the numbers to be recorded, None if no query is due."""
    return answer(found, second, [trade(number) for number in numbers], full=full)


def answer(found: RecalledTrades, second: float, trades: Sequence[Trade], *, full: bool = False) -> list[int] | None:
    now_ns = int(second * SECOND_NS)
    if found.take_query(now_ns=now_ns) is None:
        return None
    return [each.number for each in found.answered(TradeAnswer(trades, full, 0), now_ns=now_ns)]


def test_two_equal_answers_have_the_values_of_all_trades_up_to_the_last_recorded_one() -> None:
    found = recalled(5, 9, end=9)
    query = found.take_query(now_ns=0)
    assert query is not None and query.number is None and query.since_ns is not None
    assert query.since_ns <= 5 * SECOND_NS
    assert ask(found, 0, range(3, 13)) == []
    assert ask(found, 0.9, range(3, 13)) is None
    assert ask(found, 1, range(3, 13)) == [5, 6, 7, 8, 9]
    assert found.due_ns() is None and not found.span and found.take_left_out() is None


def test_a_value_that_only_one_answer_has_is_not_recorded() -> None:
    found = recalled(5, 7, end=7)
    assert answer(found, 0, [trade(5), trade(6, price=9.9), trade(7)]) == []
    assert ask(found, 1, (5, 6, 7)) == []
    assert ask(found, 2, (5, 7)) == [], "nor is one left out that an answer lacks"
    assert ask(found, 3, (5, 6, 7)) == []
    assert ask(found, 4, (5, 6, 7)) == [5, 6, 7]


def test_a_rest_that_is_behind_is_asked_again_and_given_up_after_ten_minutes() -> None:
    found = recalled(5, 9, end=9)
    for second in range(0, 600, 20):
        assert ask(found, second, (5, 6, 7)) == []
        assert ask(found, second + 19, (5, 6, 7)) is None
    assert ask(found, 600, range(5, 10)) is None
    assert found.take_left_out() == TimeRange(5 * SECOND_NS, 9 * SECOND_NS + 1) and found.take_left_out() is None


def test_pages_are_compared_one_after_the_other() -> None:
    found = recalled(0, 9, end=9)
    assert ask(found, 0, range(5), full=True) == []
    assert ask(found, 1, range(5), full=True) == list(range(5))
    assert found.span.start_ns == 4 * SECOND_NS
    query = found.take_query(now_ns=SECOND_NS)
    assert query is not None and query.number == 4
    assert [ask(found, 2, range(4, 9), full=True), ask(found, 3, range(4, 9), full=True)] == [[], [4, 5, 6, 7, 8]]
    assert [ask(found, 3, range(8, 11)), ask(found, 4, range(8, 11))] == [[], [8, 9]]
    assert found.due_ns() is None


def test_a_query_that_fails_is_repeated_later() -> None:
    found = recalled(5, 9, end=9)
    assert found.take_query(now_ns=0) is not None
    found.failed(now_ns=0)
    assert found.take_query(now_ns=19 * SECOND_NS) is None and found.take_query(now_ns=20 * SECOND_NS) is not None


def test_what_is_too_long_ago_is_left_out() -> None:
    found = recalled(100, 1_000, end=1_000)
    assert found.span.start_ns == 400 * SECOND_NS + 1
    assert found.take_left_out() == TimeRange(100 * SECOND_NS, 400 * SECOND_NS + 1)


def test_without_numbers_or_a_recorded_trade_nothing_is_compared() -> None:
    for found in (recalled(5, None, end=9), recalled(5, 9, end=9, series=TradeSeries())):
        assert found.take_query(now_ns=0) is None and found.due_ns() is None
        assert found.take_left_out() is None


def test_trades_of_numbers_that_are_not_recorded_are_not_taken() -> None:
    """They may be of a time before ids have begun again, or another market's."""
    found = recalled(5, 7, end=7)
    strange = [trade(5)._replace(number=900, trade_id="900"), trade(6), trade(7)]
    assert [answer(found, second, strange) for second in (0, 1)] == [[], [6, 7]]


def test_without_the_number_of_the_last_one_time_tells_which_trades_are_recorded() -> None:
    """A place where trades are not joined follows: other trades may have the same numbers."""
    end_ns = 9 * SECOND_NS + 1
    found = RecalledTrades(NUMBERED, TimeRange(5 * SECOND_NS, end_ns), None, now_ns=0, by_time=True)
    assert ask(found, 0, range(5, 9)) == [], "it may be behind"
    full = range(5, 8)
    assert [ask(found, second, full, full=True) for second in (20, 21)] == [[], list(full)]
    query = found.take_query(now_ns=21 * SECOND_NS)
    assert query is not None and query.number is None and query.since_ns is not None
    assert query.since_ns <= 7 * SECOND_NS
    again = [trade(7), trade(8), Trade(9 * SECOND_NS, 1, "1", 1.5, 1.0, "buy", 1, 0), trade(12)]
    assert [answer(found, 22, again), answer(found, 23, again)] == [[], [7, 8, 1]]
    assert found.due_ns() is None
