from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.trade_batches import (
    HEARTBEAT_NS,
    MAX_BATCH_NS,
    MAX_BATCH_TRADES,
    TradeBatch,
    TradeBatches,
    lowest_after,
    tick_of,
)


def _trade(number: int, time_ns: int) -> Trade:
    return Trade(time_ns, number, str(number), 1.0, 1.0, "", 1, 0)


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3), st.integers(0, 2 * MAX_BATCH_NS)), max_size=6))
def test_spans_join_hold_every_trade_before_their_end_and_records_are_bounded(
    bursts: list[tuple[int, int, int]],
) -> None:
    batches = TradeBatches(0, now_ns=0)
    tape: list[Trade] = []
    found: list[TradeBatch] = []
    now_ns = 0
    for count, step_ns, pause_ns in bursts:
        time_ns = tape[-1].time_ns if tape else 0
        new = [_trade(len(tape) + i, time_ns + i * step_ns) for i in range(count)]
        tape += new
        batches.add(new, now_ns=now_ns)
        now_ns += pause_ns
        settled_ns = tape[-1].time_ns if tape else 0
        found += batches.take(settled_ns, now_ns=now_ns)
        assert len(batches) == 0 or (len(batches) < MAX_BATCH_TRADES and now_ns < batches.due_ns(settled_ns))
    found += batches.take(tape[-1].time_ns if tape else 0, now_ns=now_ns, flush=True)
    assert [t for batch in found for t in batch.trades] == tape
    end_ns, written = 0, set[Trade]()
    for batch in found:
        assert len(batch.trades) <= MAX_BATCH_TRADES
        assert batch.span.start_ns == end_ns
        end_ns = batch.span.end_ns
        written |= set(batch.trades)
        assert {t for t in tape if t.time_ns < end_ns} <= written
    assert end_ns == (tape[-1].time_ns if tape else 0)


def test_record_ends_before_a_late_trade_in_any_record_behind_it() -> None:
    """A backlog of three records; a trade of the last one is earlier than all before it."""
    for late_place, ends in ((1, [50, 900, 900]), (2, [50, 50, 900])):
        batches = TradeBatches(0, now_ns=0)
        backlog = [_trade(number, 100 + number // MAX_BATCH_TRADES) for number in range(3 * MAX_BATCH_TRADES)]
        backlog[late_place * MAX_BATCH_TRADES + 7] = _trade(late_place * MAX_BATCH_TRADES + 7, 50)
        batches.add(backlog, now_ns=0)
        found = batches.take(900, now_ns=0, flush=True)
        if late_place == 1:
            ends[1] = 102  # the first time of the last record
        assert [batch.span.end_ns for batch in found] == ends
        assert [batch.span.start_ns for batch in found] == [0, *ends[:-1]]


def test_a_quiet_market_is_settled_once_a_minute() -> None:
    batches = TradeBatches(5, now_ns=0)
    assert batches.take(100, now_ns=HEARTBEAT_NS - 1) == []
    assert batches.take(200, now_ns=HEARTBEAT_NS) == [TradeBatch(TimeRange(5, 200), ())]
    assert batches.take(300, now_ns=HEARTBEAT_NS + 1) == []
    assert batches.take(300, now_ns=HEARTBEAT_NS + 1, flush=True) == [TradeBatch(TimeRange(200, 300), ())]


def test_a_market_of_which_nothing_is_settled_has_no_record_due() -> None:
    batches = TradeBatches(5, now_ns=0)
    assert batches.due_ns(5) > 10 * HEARTBEAT_NS
    assert batches.due_ns(6) == HEARTBEAT_NS


def test_a_late_trade_is_recorded_and_its_span_stays() -> None:
    batches = TradeBatches(1_000, now_ns=0)
    batches.add([_trade(1, 10)], now_ns=0)
    assert batches.take(1_000, now_ns=MAX_BATCH_NS) == [TradeBatch(TimeRange(1_000, 1_000), (_trade(1, 10),))]


class CountedTrade(Trade):
    """Trade that counts how often its time and its number are read."""

    reads = 0

    @property
    def time_ns(self) -> int:
        CountedTrade.reads += 1
        return self[0]

    @property
    def number(self) -> int:
        CountedTrade.reads += 1
        return self[1]


def test_work_grows_with_a_backlog_and_not_with_its_square() -> None:
    count = 100 * MAX_BATCH_TRADES
    CountedTrade.reads = 0
    batches = TradeBatches(0, now_ns=0)
    batches.add([CountedTrade(*_trade(number, number)) for number in range(count)], now_ns=0)
    found = batches.take(count, now_ns=MAX_BATCH_NS)
    assert len(found) == 100 and len(lowest_after(found)) == 100
    assert CountedTrade.reads <= 4 * count


def test_the_lowest_number_behind_each_record_and_of_those_in_none_is_known() -> None:
    batches = TradeBatches(0, now_ns=0)
    numbers = [*range(10, 10 + 2 * MAX_BATCH_TRADES), 3]
    batches.add([_trade(number, place) for place, number in enumerate(numbers)], now_ns=0)
    assert batches.lowest == 3
    first, second = batches.take(0, now_ns=0)
    assert lowest_after([first, second]) == [10 + MAX_BATCH_TRADES, None] and batches.lowest == 3
    batches.add([_trade(2, 9_999)], now_ns=1)
    assert batches.lowest == 2
    (rest,) = batches.take(0, now_ns=0, flush=True)
    assert lowest_after([first, rest]) == [2, None] and batches.lowest is None


def test_a_quiet_market_is_settled_once_a_minute_across_dispatches_and_late_trades() -> None:
    batches = TradeBatches(100, silent_ns=HEARTBEAT_NS - 5, now_ns=0)
    assert batches.take(200, now_ns=4) == []
    batches.add([_trade(1, 50)], now_ns=4)
    assert batches.take(100, now_ns=MAX_BATCH_NS) == [TradeBatch(TimeRange(100, 100), (_trade(1, 50),))]
    assert batches.take(200, now_ns=MAX_BATCH_NS + 1) == [TradeBatch(TimeRange(100, 200), ())]
    assert batches.take(300, now_ns=MAX_BATCH_NS + HEARTBEAT_NS) == []
    assert batches.take(300, now_ns=MAX_BATCH_NS + HEARTBEAT_NS + 1) == [TradeBatch(TimeRange(200, 300), ())]


def test_with_more_markets_records_are_as_many_a_second_and_hold_more_trades() -> None:
    assert [tick_of(markets) // MAX_BATCH_NS for markets in (0, 1, 100, 101, 500, 10_000)] == [1, 1, 1, 2, 5, 10]
    batches = TradeBatches(0, now_ns=0)
    batches.tick_ns = tick_of(500)
    batches.add([_trade(1, 10)], now_ns=2 * MAX_BATCH_NS)
    assert batches.take(20, now_ns=5 * MAX_BATCH_NS - 1) == [] and batches.due_ns(20) == 5 * MAX_BATCH_NS
    assert batches.take(20, now_ns=5 * MAX_BATCH_NS) == [TradeBatch(TimeRange(0, 20), (_trade(1, 10),))]
