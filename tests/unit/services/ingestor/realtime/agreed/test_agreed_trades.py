"""Two sources that agree: what is released once, what waits, what is dropped, and what comes late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.agreed.trades import MAX_KNOWN, AgreedTrades, ordinal_ids

A, B, C, D = (Trade(time_ns, 0, f"t{time_ns}", 1.5, 0.25, "buy", 1, 0) for time_ns in (10, 20, 30, 40))


def _confirm(
    sequence: AgreedTrades, *trades: Trade, until_ns: int = 0, is_witnessed: bool = False, alone_ns: int = 0
) -> list[Trade]:
    """Add an answer that is whole up to its newest trade, unless another time is given."""
    newest_ns = max((trade.time_ns for trade in trades), default=0)
    return sequence.confirm(
        trades, until_ns or newest_ns, newest_ns=newest_ns, is_witnessed=is_witnessed, alone_ns=alone_ns
    )


@pytest.mark.parametrize(
    ("answers", "released", "settled_ns"),
    [
        ([(A, B, C)], [], 0),
        ([(A, B, C), (A, B, C)], [], 0),
        ([(A, B, C), (A, B, C, D)], [A, B], 30),
        ([(A, C), (A, B, C, D)], [A], 20),
        ([(A, B, C), (A, C, D)], [A], 20),
        ([(A, B), (A, B, C), (A, B, C, D)], [A, B], 30),
        ([(A, B, C), (A, B)], [], 0),
        ([(B,), ()], [], 0),
    ],
    ids=["one", "equal ones", "another", "one more", "one less", "in turn", "an older one", "an empty one"],
)
def test_two_answers_settle_the_time_before_the_first_trade_that_only_one_has(
    answers: list[tuple[Trade, ...]], released: list[Trade], settled_ns: int
) -> None:
    sequence = AgreedTrades(0)
    assert [trade for answer in answers for trade in _confirm(sequence, *answer)] == released
    assert sequence.settled_ns == settled_ns


def test_a_witness_takes_the_place_of_the_second_answer() -> None:
    sequence = AgreedTrades(0)
    assert _confirm(sequence, A, B, until_ns=25, is_witnessed=True) == [A, B]
    assert sequence.settled_ns == 25


def test_equal_answers_settle_what_needs_no_second_source() -> None:
    sequence = AgreedTrades(0)
    assert _confirm(sequence, A, B, until_ns=45, alone_ns=15) == []
    assert _confirm(sequence, A, B, until_ns=45, alone_ns=15) == [A]
    assert sequence.settled_ns == 15


def test_a_trade_taken_from_the_socket_needs_no_answer_that_has_it() -> None:
    sequence = AgreedTrades(0)
    sequence.take([B])
    _confirm(sequence, A, C)
    assert _confirm(sequence, A, C, D) == [A, B]


def test_a_late_trade_is_released_once() -> None:
    sequence = AgreedTrades(5)
    _confirm(sequence, A, C)
    assert _confirm(sequence, A, C, D) == [A]
    before = A._replace(time_ns=4, trade_id="before the start")
    assert sequence.late([before, A, B, D]) == [B]
    assert sequence.late([A, B]) == []


def test_what_is_remembered_of_released_trades_is_bounded() -> None:
    sequence = AgreedTrades(0)
    tape = [A._replace(time_ns=i, trade_id=f"n{i}") for i in range(1, MAX_KNOWN + 3)]
    _confirm(sequence, *tape, is_witnessed=True, until_ns=2**62)
    assert sequence.late(tape) == []  # what is forgotten does not count as late
    assert sequence.late([A._replace(time_ns=1)]) == []
    assert sequence.late([A._replace(time_ns=100, trade_id="late")]) != []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.lists(st.tuples(st.sets(st.integers(0, 29), max_size=2), st.integers(1, 40)), max_size=8),
)
def test_each_trade_is_released_once_and_never_before_two_answers_or_a_trade_behind_it(
    steps: list[int], answers: list[tuple[set[int], int]]
) -> None:
    tape = [A._replace(time_ns=100 + sum(steps[: i + 1]), trade_id=f"n{i}") for i in range(len(steps))]
    sequence = AgreedTrades(100)
    released: list[Trade] = []
    shown = 0
    for lost, more in answers:
        before_ns, shown = sequence.settled_ns, min(len(tape), shown + more)
        new = _confirm(sequence, *(t for i, t in enumerate(tape[:shown]) if i not in lost))
        assert new == sorted(new)
        assert all(before_ns <= t.time_ns < sequence.settled_ns for t in new)
        assert sequence.settled_ns <= max(100, tape[shown - 1].time_ns)
        released += new
    assert len(released) == len(set(released))
    released += [
        t for k in range(1, 4) for t in _confirm(sequence, *tape, A._replace(time_ns=10_000 + k, trade_id=f"x{k}"))
    ]
    released += sequence.late(tape)
    assert sorted(t for t in released if t.time_ns < 10_000) == sorted(tape)


def test_equal_trades_without_an_id_get_an_ordinal() -> None:
    nameless = A._replace(time_ns=5, trade_id="")
    named = ordinal_ids([nameless, nameless, A._replace(time_ns=6, trade_id="x")])
    assert [t.trade_id for t in named] == ["~5-1.5-0.25-0", "~5-1.5-0.25-1", "x"]


@pytest.mark.parametrize("is_vouched", [False, True])
def test_a_trade_of_one_answer_that_the_socket_has_sent_too_is_not_dropped(*, is_vouched: bool) -> None:
    sequence = AgreedTrades(0)
    _confirm(sequence, A, B, C)
    if is_vouched:
        sequence.vouch([B])
    released = [each for _ in range(3) for each in _confirm(sequence, A, C, D, until_ns=40)]
    assert (B in released) == is_vouched and released[0] == A
