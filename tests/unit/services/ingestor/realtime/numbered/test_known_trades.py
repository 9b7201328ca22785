"""Other values of a trade in REST's answers: a correction, one bad answer, or another market."""

from __future__ import annotations

import gc

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.numbered.known_trades import KnownTrades


def _trade(number: int, price: float = 1.5) -> Trade:
    return Trade(number * SECOND_NS, number, str(number), price, 1.0, "buy", 1, 0)


def _known(*numbers: int) -> KnownTrades:
    known = KnownTrades(page=1_000)
    known.add(map(_trade, numbers))
    return known


def test_three_answers_in_a_row_correct_a_trade() -> None:
    known, answer = _known(1, 2, 3), [_trade(1), _trade(2), _trade(3, 9.0)]
    assert [known.judge(answer, now_ns=n) for n in range(4)] == [[], [], [_trade(3, 9.0)], []]
    assert known.get(3) == _trade(3, 9.0)


def test_one_bad_answer_among_good_ones_corrects_nothing() -> None:
    known, good = _known(1, 2, 3), [_trade(1), _trade(2), _trade(3)]
    for n in range(9):
        assert known.judge([*good[:2], _trade(3, 9.0)] if n % 3 else good, now_ns=n) == []
    assert not known.judge(good, now_ns=9) and not known.has_doubts


def test_other_values_of_most_trades_are_another_markets_unless_they_last() -> None:
    known, answer = _known(1, 2, 3), [_trade(1), _trade(2, 9.0), _trade(3, 9.0)]
    for second in range(60):
        with pytest.raises(BadAnswer, match="other values of trade 2"):
            known.judge(answer, now_ns=second * SECOND_NS)
    assert known.judge(answer, now_ns=60 * SECOND_NS) == answer[1:]


def test_an_answer_begins_with_the_last_hundred_trades_and_those_of_a_minute() -> None:
    known = _known(*range(1, 901))
    first = known.oldest_to_show(900)
    assert first is not None and first.number == 801
    assert KnownTrades(page=10).oldest_to_show(900) is None


def test_known_trades_are_no_work_for_the_garbage_collector() -> None:
    gc.collect()
    before = len(gc.get_objects())
    known = _known(*range(1, 1_501))
    gc.collect()
    assert known.get(1_500) == _trade(1_500) and len(gc.get_objects()) - before < 100
