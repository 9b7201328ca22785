"""The searches for the trade before a time, and for the place where numbers begin again."""

from __future__ import annotations

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.dialects import DIALECTS
from dexorder_ingestor.exchange.trades import Trade, TradeQuery
from dexorder_ingestor.realtime.numbered.trade_search import Anchor, Seam

BEGIN_NS = 1_700_000_000 * SECOND_NS
SERIES = DIALECTS["binance"].trades


def _trade(number: int, second: int) -> Trade:
    return Trade(BEGIN_NS + second * SECOND_NS, number, str(number), 1.5, 0.25, "buy", 1, 0)


def _search(*answers: tuple[list[Trade], bool]) -> tuple[Seam, list[TradeQuery]]:
    """Return the search behind trade 100 of second 10 after some answers, and its queries."""
    seam, queries = Seam(100, BEGIN_NS + 10 * SECOND_NS), []
    for trades, full in answers:
        assert not seam.is_over
        queries.append(seam.next_query(SERIES))
        seam.add(trades, full=full)
    return seam, queries


OLD = [_trade(99, 9), _trade(100, 10), _trade(101, 11), _trade(102, 12)]
NEW = [_trade(1, 13), _trade(2, 14)]


def test_the_last_trade_before_a_time_is_the_last_one_by_time_where_numbers_have_begun_again_before_it() -> None:
    anchor = Anchor(BEGIN_NS + 14 * SECOND_NS, by_number=True)
    anchor.add([*OLD, *NEW, _trade(3, 15)])
    assert (anchor.is_found, anchor.trade, anchor.first_number) == (True, NEW[0], 2)


def test_two_answers_of_the_newest_trades_and_one_from_the_last_known_show_the_place() -> None:
    seam, queries = _search((NEW, True), (NEW, True), ([*OLD[1:], *NEW], False))
    assert queries == [TradeQuery(), TradeQuery(), SERIES.query(None, BEGIN_NS + 10 * SECOND_NS)]
    assert (seam.is_over, seam.first, seam.tail, seam.fresh) == (True, NEW[0], OLD[2:], NEW)


def test_a_full_answer_without_the_place_is_followed_by_one_from_its_last_trade_on() -> None:
    seam, queries = _search((NEW, True), (NEW, True), (OLD[1:3], True), ([*OLD[2:], *NEW], False))
    assert queries[-1] == SERIES.query(None, OLD[2].time_ns)
    assert (seam.first, seam.tail, seam.fresh) == (NEW[0], OLD[2:], NEW)


@pytest.mark.parametrize(
    "answers",
    [
        [([], False)],
        [(OLD[2:], True)],  # numbers go on
        [([_trade(90, 2)], True)],  # a replica that is behind: lower numbers of earlier times
        [(NEW, True), (OLD[2:], True)],  # one answer alone, perhaps another market's
        [(NEW, True), (NEW, True), (OLD[1:], False)],  # REST has no such trade in order
        [(NEW, True), (NEW, True), (OLD[1:2], True)],  # no further, although the answer is full
    ],
)
def test_numbers_have_not_begun_again(answers: list[tuple[list[Trade], bool]]) -> None:
    seam, _ = _search(*answers)
    assert seam.is_over and seam.first is None and not seam.fresh
