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


def test_numbers_that_start_again_a_second_time_end_the_new_ones_there() -> None:
    again = [_trade(1, 20), _trade(2, 21), _trade(3, 22)]
    newest = [*NEW, *again]
    seam, _ = _search((newest, True), (newest, True), ([*OLD[1:], *newest], False))
    assert (seam.first, seam.fresh, seam.is_cut) == (NEW[0], NEW, True)


def test_a_higher_newest_number_does_not_hide_trades_whose_numbers_have_started_again() -> None:
    """The last known trade is the second one of its sequence, and the next sequence has three by now."""
    old, new = _trade(2, 10), [_trade(1, 13), _trade(2, 14), _trade(3, 15)]
    seam = Seam(2, old.time_ns)
    for _ in range(3):
        assert not seam.is_over
        seam.add([old, *new], full=False)
    assert (seam.is_over, seam.first, seam.fresh) == (True, new[0], new)


@pytest.mark.parametrize("numbers", [(2, 1, 2, 3), (1, 1, 2), (2, 2, 3)])
def test_numbers_that_start_again_within_a_second_are_seen_if_an_answer_has_one_of_them_twice(
    numbers: tuple[int, ...],
) -> None:
    old, *new = [_trade(number, 10)._replace(time_ns=BEGIN_NS + at) for at, number in enumerate(numbers)]
    seam = Seam(old.number, old.time_ns)
    for _ in range(3):
        assert not seam.is_over
        seam.add([old, *new], full=False)
    assert (seam.is_over, seam.first, seam.fresh, seam.tail) == (True, new[0], new, [])
    other = Seam(old.number, old.time_ns)
    other.add([trade for trade in new if trade.number >= old.number], full=False)
    assert other.is_over and other.first is None, "the first one may be a copy"


def test_they_start_again_a_second_time_within_a_second() -> None:
    again = [_trade(number, 13)._replace(time_ns=NEW[0].time_ns + number) for number in (1, 2)]
    seam, _ = _search((again, True), (again, True), ([*OLD[1:], NEW[0], *again], False))
    assert (seam.first, seam.fresh, seam.is_cut) == (NEW[0], NEW[:1], True)


def test_the_first_new_trade_may_have_the_time_from_which_a_dispatch_resumes() -> None:
    """The time before it was settled, then the ingestor died; of the last old trade only the number is known."""
    new = [_trade(1, 13), _trade(2, 14)]
    seam = Seam(100, new[0].time_ns)
    for _ in range(3):
        seam.add(new, full=False)
    assert (seam.is_over, seam.first, seam.fresh) == (True, new[0], new)


def test_an_answer_that_ends_before_the_suspected_trade_is_repeated_for_a_while() -> None:
    seam = Seam(100, OLD[1].time_ns, until_ns=NEW[0].time_ns)
    for answers in range(600):
        seam.add(OLD[:2], full=False, clock_ns=NEW[0].time_ns + answers * SECOND_NS)
        assert (seam.is_over, seam.behind) == (False, answers + 1)
    seam.add(OLD[:2], full=False, clock_ns=NEW[0].time_ns + 600 * SECOND_NS)
    assert seam.is_over and seam.first is None
    late = Seam(100, OLD[1].time_ns, until_ns=NEW[0].time_ns)
    for answer in (OLD[:2], NEW, NEW, [*OLD, *NEW]):
        late.add(answer, full=False)
    assert (late.first, late.fresh) == (NEW[0], NEW)


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
