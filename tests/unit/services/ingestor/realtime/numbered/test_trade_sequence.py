from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap, NumberedTrades

_FIRST = 1_000


def _trade(number: int, time_ns: int) -> Trade:
    return Trade(time_ns, number, str(number), 1.5, 0.25, "buy", 1, 0)


@st.composite
def tapes(draw: st.DrawFn) -> list[Trade]:
    """Return trades with consecutive numbers, several of one time among them."""
    steps = draw(st.lists(st.integers(0, 2), min_size=1, max_size=30))
    return [_trade(_FIRST + i, 10_000 + sum(steps[: i + 1])) for i in range(len(steps))]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Trade], list[list[Trade]]]:
    """Return a tape, and all of it in messages: shuffled, doubled, and each trade at least once."""
    tape = draw(tapes())
    order = draw(st.permutations(tape + draw(st.lists(st.sampled_from(tape), max_size=10))))
    sizes = draw(st.lists(st.integers(1, 7), min_size=len(order), max_size=len(order)))
    messages, at = [], 0
    for size in sizes:
        messages.append(list(order[at : at + size]))
        at += size
    return tape, messages


@given(deliveries(), st.integers(1, 40))
def test_each_trade_is_released_once_in_order_and_none_is_missing_before_the_settled_time(
    delivery: tuple[list[Trade], list[list[Trade]]], max_waiting: int
) -> None:
    tape, messages = delivery
    sequence = NumberedTrades(_FIRST, 10_000, max_waiting=max_waiting)
    released: list[Trade] = []
    for message in messages:
        released += sequence.add(message)
        assert released == tape[: len(released)]
        assert {t for t in tape if t.time_ns < sequence.settled_ns} <= set(released)
    while gap := sequence.gap:  # forgotten ones are missing too, so that REST brings them
        released += sequence.add([tape[gap.first - _FIRST]])
    assert released == tape


@given(deliveries(), st.sets(st.integers(0, 29)))
def test_a_gap_is_named_and_stops_the_settled_time_until_it_is_filled_or_skipped(
    delivery: tuple[list[Trade], list[list[Trade]]], lost: set[int]
) -> None:
    tape, messages = delivery
    sequence = NumberedTrades(_FIRST, 10_000)
    numbers = {t.number for i, t in enumerate(tape) if i not in lost}
    released = [r for m in messages for r in sequence.add(t for t in m if t.number in numbers)]
    while gap := sequence.gap:
        assert not numbers & set(range(gap.first, gap.last + 1))
        settled_ns = sequence.settled_ns
        sequence.advance(settled_ns + 1_000)
        assert sequence.settled_ns == settled_ns
        released += sequence.skip(gap)
    assert released == [t for t in tape if t.number in numbers]
    sequence.advance(1_000_000)
    assert sequence.settled_ns == 1_000_000


@given(deliveries())
def test_the_gap_ends_before_the_first_trade_that_waits(delivery: tuple[list[Trade], list[list[Trade]]]) -> None:
    _, messages = delivery
    sequence, seen = NumberedTrades(_FIRST, 10_000), set[int]()
    for message in messages:
        sequence.add(message)
        seen |= {trade.number for trade in message}
        first = next(number for number in range(_FIRST, _FIRST + 40) if number not in seen)
        above = [number for number in seen if number > first]
        assert sequence.gap == (Gap(first, min(above) - 1) if above else None)


def test_a_market_without_a_trade_so_far_begins_with_the_first_one() -> None:
    sequence = NumberedTrades(None, 5)
    assert [t.number for t in sequence.add([_trade(7, 9)])] == [7]
    assert sequence.gap is None
    assert sequence.add([_trade(9, 9)]) == []
    assert str(sequence.gap) == str(Gap(8, 8))
    assert sequence.skip(Gap(3, 8)) == []
    assert [t.number for t in sequence.skip(Gap(8, 8))] == [9]
