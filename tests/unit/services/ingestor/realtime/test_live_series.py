"""Trades and candles of one market while a job watches it, without sockets, clock and tasks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.page import Candle
from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.live_candles import ClosedCandles
from dexorder_ingestor.realtime.live_series import DueRecords, LiveSeries, MissingTrades, Resume
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap
from dexorder_ingestor.realtime.trade_batches import MAX_BATCH_NS, TradeBatch
from tests.examples import few

MINUTE_NS = 60 * SECOND_NS
BEGIN_NS = 28_333_333 * MINUTE_NS
NUMBERED, BY_TIME, NEWEST_ONLY = (
    TradeSeries(numbered=True, from_number="fromId"),
    TradeSeries(),
    TradeSeries(by_time=False),
)
NUMBERED_BY_TIME = TradeSeries(numbered=True)
NOTHING = DueRecords((), ())


def trade(number: int, second: float, *, amount: float = 0.25, numbered: bool = True) -> Trade:
    """Return a trade at a second after the start."""
    time_ns = BEGIN_NS + int(second * SECOND_NS)
    return Trade(time_ns, number if numbered else 0, str(number), float(number), amount, "buy", 1, time_ns + 1)


def series(trades: TradeSeries = NUMBERED, *, last_id: str = "99", periods: tuple[int, ...] = (60,)) -> LiveSeries:
    """Return a series that starts at `BEGIN_NS`, behind trade 99."""
    resume = Resume(BEGIN_NS, last_id, dict.fromkeys(periods, BEGIN_NS))
    return LiveSeries(trades, resume, include_trades=True, periods=periods, poll_ns=SECOND_NS, now_ns=0)


def shown(live: LiveSeries) -> LiveSeries:
    """Let REST show trade 99, which is the last recorded one."""
    assert live.take_query(now_ns=0) is not None
    live.answered(TradeAnswer([trade(99, -1)], False, BEGIN_NS), now_ns=0)
    return live


def after(second: float) -> int:
    """Return a time of the exchange."""
    return BEGIN_NS + int(second * SECOND_NS)


def test_trades_of_the_socket_are_a_record_at_the_next_tenth_of_a_second() -> None:
    live = shown(series())
    live.received([trade(100, 1)], now_ns=5)
    live.received([trade(101, 2)], now_ns=6)
    assert live.due_ns == MAX_BATCH_NS and live.backlog == 2
    assert live.take_records(now_ns=MAX_BATCH_NS - 1) == NOTHING
    assert not live.has_records_before(MAX_BATCH_NS) and live.has_records_before(1 + MAX_BATCH_NS)
    ((record,), closed) = live.take_records(now_ns=MAX_BATCH_NS)
    batch = TradeBatch(TimeRange(BEGIN_NS, after(2)), (trade(100, 1), trade(101, 2)))
    assert (record.batch, record.lowest_later) == (batch, None)
    assert closed == () and live.backlog == 0
    assert live.recorded(record) == "101"


def test_a_trade_behind_a_missing_number_waits_for_the_answer_that_has_it() -> None:
    live = series()
    assert live.take_query(now_ns=0) == TradeQuery(number=0)
    assert live.answered(TradeAnswer([trade(99, -1)], False, after(0)), now_ns=0) == MissingTrades((), ())
    live.received([trade(101, 2)], now_ns=10)
    assert live.backlog == 0 and not live.has_news
    due_ns = live.next_query_ns(now_ns=10, exchange_ns=after(2))
    assert live.take_query(now_ns=due_ns - 1) is None
    assert live.take_query(now_ns=due_ns) == TradeQuery(number=99)
    live.answered(TradeAnswer([trade(99, -1), trade(100, 1), trade(101, 2)], False, after(3)), now_ns=due_ns)
    ((record,), _) = live.take_records(now_ns=due_ns, flush=True)
    assert record.batch.trades == (trade(100, 1), trade(101, 2))
    news = live.take_live()
    assert news is not None and news[0].refilled == {trade(100, 1).trade_id, trade(101, 2).trade_id}
    assert news is not None and news[0].trades == record.batch.trades


def test_a_candle_closes_without_a_trade_once_answers_have_passed_its_end() -> None:
    live, known = series(), [trade(99, -1), trade(100, 10, amount=2.0)]
    live.take_query(now_ns=0)
    live.answered(TradeAnswer(known, False, after(11)), now_ns=0)
    live.received(known[1:], now_ns=1)
    silence_ns = live.next_query_ns(now_ns=SECOND_NS // 2, exchange_ns=after(61))
    assert silence_ns == SECOND_NS + 1, "REST may still lack trades of the minute"
    live.take_query(now_ns=silence_ns)
    live.answered(TradeAnswer(known, False, after(61)), now_ns=silence_ns)
    assert not live.has_records_before(0), "one answer could have been cut short"
    now_ns = 2 * SECOND_NS
    assert live.next_query_ns(now_ns=now_ns, exchange_ns=after(61.9)) == 3 * SECOND_NS + 1
    assert live.next_query_ns(now_ns=now_ns, exchange_ns=after(62)) == now_ns
    assert live.wants_life_after_ns == silence_ns
    live.socket_alive(now_ns)
    assert live.take_query(now_ns=now_ns) == TradeQuery(number=99)
    live.answered(TradeAnswer(known, False, after(62)), now_ns=now_ns)
    assert live.has_records_before(0)
    candle = Candle(BEGIN_NS, 100.0, 100.0, 100.0, 100.0, 2.0, 200.0, 1)
    closed = ClosedCandles(60, TimeRange(BEGIN_NS, after(60)), (candle,))
    assert live.take_records(now_ns=now_ns).closed == (closed,)


def test_trades_without_a_number_are_live_at_once_and_recorded_when_two_answers_agree() -> None:
    live = series(BY_TIME, last_id="")
    tape = [trade(n, second, numbered=False) for n, second in ((99, -1), (100, 1), (101, 2), (102, 4), (103, 5))]
    live.received(tape[1:], now_ns=0)
    news = live.take_live()
    assert news is not None and news[0].trades == tuple(tape[1:]) and news[1] == []
    for n in range(2):
        assert live.take_records(now_ns=SECOND_NS, flush=True).trades == ()
        assert live.take_query(now_ns=n * SECOND_NS) == TradeQuery()
        live.answered(TradeAnswer(tape[: 4 + n], False, after(5)), now_ns=n * SECOND_NS)
    ((record,), _) = live.take_records(now_ns=SECOND_NS, flush=True)
    assert record.batch == TradeBatch(TimeRange(BEGIN_NS, after(4)), tuple(tape[1:3]))
    assert live.recorded(record) == "", "the id is no position"


def test_a_trade_without_a_number_is_corrected_when_three_answers_have_other_values_under_its_id() -> None:
    live = series(BY_TIME, last_id="")
    tape = [trade(n, second, numbered=False) for n, second in ((99, -1), (100, 1), (101, 20), (102, 61), (103, 62))]
    tape += [trade(n, n, numbered=False) for n in range(104, 110)]
    records, corrected = [], tape[1]._replace(amount=9.0)
    for n in range(8):
        shown = tape[: n + 3] if n < 3 else [tape[0], corrected, *tape[2 : n + 3]]
        live.take_query(now_ns=n * SECOND_NS)
        live.answered(TradeAnswer(shown, False, after(110 + n)), now_ns=n * SECOND_NS)
        trades, _ = live.take_records(now_ns=n * SECOND_NS, flush=True)
        records += [each for due in trades for each in due.batch.trades if each.trade_id == "100"]
        assert live.corrected == (n >= 5)
    assert records == [tape[1], corrected._replace(revision=after(115))]
    assert live.take_doubtful() == [(60, BEGIN_NS)]


def test_a_late_trade_without_a_number_is_recorded_and_amends_its_candle_and_its_span_was_provisional() -> None:
    live = series(BY_TIME, last_id="")
    tape = [trade(n, second, numbered=False) for n, second in ((99, -1), (100, 1), (101, 20), (102, 61), (103, 62))]
    for n, shown in enumerate((tape[:4], tape[:2] + tape[3:])):
        kept = [each for each in shown if each.trade_id != "101"]  # REST lacks it
        live.answered(TradeAnswer(kept, False, after(65)), now_ns=n * SECOND_NS)
    ((record,), (closed,)) = live.take_records(now_ns=SECOND_NS, flush=True)
    assert record.batch.trades == (tape[1],) and closed.candles[0].trade_count == 1
    assert [(each.span, each.reason.name) for each in live.provisional] == [(record.batch.span, "ONE_SOURCE")]
    live.answered(TradeAnswer(tape, False, after(67)), now_ns=2 * SECOND_NS)
    ((record,), (amended,)) = live.take_records(now_ns=2 * SECOND_NS, flush=True)
    assert record.batch.trades == (tape[2],) and live.late == 1
    assert amended.amends and amended.candles[0].trade_count == 2


def test_lost_trades_are_a_hole_between_two_spans_and_their_candle_is_left_out() -> None:
    live = series(NEWEST_ONLY, last_id="")
    before, first, second, third, later, last, next_one = (
        trade(number, second, numbered=False)
        for number, second in ((99, -1), (100, 10), (101, 20), (102, 21), (200, 130), (201, 140), (202, 141))
    )
    for newest in (second, third):
        live.answered(TradeAnswer([before, first, second, newest], False, after(21)), now_ns=0)
    missing = live.answered(TradeAnswer([later, last], True, after(141)), now_ns=0)
    assert missing == MissingTrades((), (TimeRange(after(20), later.time_ns + 1),))
    assert live.has_records_before(0), "what is known before them is due at once"
    live.answered(TradeAnswer([later, last, next_one], True, after(141)), now_ns=0)
    (records, closed) = live.take_records(now_ns=0, flush=True)
    spans = [record.batch.span for record in records]
    assert spans == [TimeRange(BEGIN_NS, after(20)), TimeRange(later.time_ns + 1, after(140))]
    assert [record.batch.trades for record in records] == [(first,), (second, third, later)]
    assert closed == ()


def test_numbers_that_six_answers_lack_do_not_exist() -> None:
    live = series()
    answer = TradeAnswer([trade(99, -1), trade(102, 2)], False, after(3))
    found = []
    for n in range(6):
        live.take_query(now_ns=n * MINUTE_NS)
        found.append(live.answered(answer, now_ns=n * MINUTE_NS))
    assert found[:5] == [MissingTrades((), ())] * 5
    assert found[5] == MissingTrades((Gap(100, 101),), ())
    assert live.backlog == 1


def test_a_repair_amends_the_candle_and_records_its_trades_again_before_a_later_position() -> None:
    live = shown(series())
    live.received([trade(100, 1, amount=9.0), trade(101, 61)], now_ns=0)
    ((first,), (candle,)) = live.take_records(now_ns=MAX_BATCH_NS)
    assert candle.candles[0].volume == 9.0 and live.recorded(first) == "101"
    live.received([trade(102, 62)], now_ns=MAX_BATCH_NS)
    ((later,), _) = live.take_records(now_ns=2 * MAX_BATCH_NS)
    live.repair(60, BEGIN_NS, [trade(100, 1, amount=2.0)], now_ns=2 * MAX_BATCH_NS)
    assert live.recorded(later) == "", "trade 100 waits again"
    ((again,), (amended,)) = live.take_records(now_ns=3 * MAX_BATCH_NS)
    assert again.batch.trades == (trade(100, 1, amount=2.0)._replace(revision=after(1) + 1),)
    assert amended.amends and amended.candles[0].volume == 2.0
    assert live.recorded(again) == "102"


def test_trades_before_the_start_complete_a_candle_and_are_not_recorded() -> None:
    resume = Resume(after(30), "", {60: BEGIN_NS})
    live = LiveSeries(NUMBERED, resume, include_trades=True, periods=[60], poll_ns=SECOND_NS, now_ns=0)
    live.take_query(now_ns=0)
    tape = [trade(99, -1), trade(100, 10), trade(101, 40), trade(102, 61)]
    live.answered(TradeAnswer(tape, False, after(70)), now_ns=0)
    live.take_query(now_ns=0)
    live.answered(TradeAnswer(tape, False, after(70)), now_ns=0)
    ((record,), (closed,)) = live.take_records(now_ns=0, flush=True)
    assert record.batch.trades == tuple(tape[2:])
    assert closed.candles[0].trade_count == 2


def test_without_trades_only_candles_are_due() -> None:
    resume = Resume(BEGIN_NS, "99", {60: BEGIN_NS})
    live = shown(LiveSeries(NUMBERED, resume, include_trades=False, periods=[60], poll_ns=SECOND_NS, now_ns=0))
    live.received([trade(100, 1)], now_ns=0)
    assert live.take_records(now_ns=MINUTE_NS) == NOTHING and not live.has_records_before(MINUTE_NS)
    live.received([trade(101, 61)], now_ns=0)
    (trades, closed) = live.take_records(now_ns=0)
    assert trades == () and len(closed) == 1


PAGE = 5


class Market:
    """An exchange, the socket and REST that it offers, and a series with everything that it has recorded."""

    def __init__(self, kind: TradeSeries, steps_ms: list[int]) -> None:
        times = [sum(steps_ms[: n + 1]) / 1_000 for n in range(len(steps_ms))]
        self.expected = [trade(100 + n, second, numbered=kind.numbered) for n, second in enumerate(times)]
        self.coming = list(self.expected)
        self.tape = [trade(99, -1, numbered=kind.numbered)]
        self.unsent: list[Trade] = []
        self.now_ns = 0
        self.series = series(replace(kind, page=PAGE), last_id="")
        self.batches: list[TradeBatch] = []
        self.candles: dict[int, Candle] = {}

    @property
    def clock_ns(self) -> int:
        return BEGIN_NS + self.now_ns

    def wait(self, half_seconds: int) -> None:
        self.now_ns += half_seconds * SECOND_NS // 2
        while self.coming and self.coming[0].time_ns <= self.clock_ns:
            self.tape.append(self.coming.pop(0))
            self.unsent.append(self.tape[-1])

    def send(self, places: list[int]) -> None:
        """Send some of the trades that happened since the last message, in any order, some twice; others are lost."""
        if self.unsent and places:
            self.series.received([self.unsent[n % len(self.unsent)] for n in places], now_ns=self.now_ns)
        self.unsent.clear()

    def disconnect(self, _: int) -> None:
        self.unsent.clear()
        self.series.disconnected(now_ns=self.now_ns)

    def answer(self, _: int) -> None:
        """Answer the query that is due, completely."""
        self.series.socket_alive(self.now_ns)
        self.series.next_query_ns(now_ns=self.now_ns, exchange_ns=self.clock_ns)
        self.series.is_deaf(now_ns=self.now_ns)
        query = self.series.take_query(now_ns=self.now_ns)
        if query is None:
            return
        found = self.tape[-PAGE:]
        if query.number is not None:
            found = [each for each in self.tape if each.number >= query.number][:PAGE]
        elif query.since_ns is not None:
            found = [each for each in self.tape if each.time_ns >= query.since_ns][:PAGE]
        answer = TradeAnswer(found, len(found) == PAGE, self.clock_ns)
        assert self.series.answered(answer, now_ns=self.now_ns) == MissingTrades((), ())

    def record(self, flush: int) -> None:
        found = self.series.take_records(now_ns=self.now_ns, flush=flush == 0)
        self.batches += [record.batch for record in found.trades]
        self.candles |= {candle.open_ns: candle for closed in found.closed for candle in closed.candles}

    def trade_again(self) -> None:
        """Let two more trades happen while the socket is alive: what follows settles a market without numbers."""
        self.wait(300)
        self.series.socket_alive(self.now_ns)
        for number in (900, 901):
            self.wait(10)
            self.tape.append(trade(number, self.now_ns / SECOND_NS, numbered=False))
            self.expected.append(self.tape[-1])
            self.series.received(self.tape[-1:], now_ns=self.now_ns)
            self.answer(0)


def steps() -> st.SearchStrategy[list[tuple[str, int | list[int]]]]:
    """Return what happens, in any order; most time passes between trades."""
    numbers, places = st.integers(0, 5), st.lists(st.integers(0, 7), max_size=8)
    simple = st.tuples(st.sampled_from(["wait", "wait", "answer", "record", "disconnect"]), numbers)
    return st.lists(st.one_of(simple, st.tuples(st.just("send"), places)), max_size=40)


@given(
    st.sampled_from([NUMBERED, NUMBERED_BY_TIME, BY_TIME]),
    st.lists(st.integers(1, 9_000), max_size=15),
    steps(),
)
@settings(max_examples=few(60), deadline=None)
def test_any_order_of_messages_losses_and_answers_settles_exactly_the_exchanges_trades(
    kind: TradeSeries, gaps_ms: list[int], happens: list[tuple[str, int | list[int]]]
) -> None:
    market = Market(kind, gaps_ms)
    for name, value in happens:
        getattr(market, name)(value)
        assert [each for batch in market.batches for each in batch.trades] == market.expected[: _count(market)]
    if not kind.numbered:
        market.trade_again()
    for _ in range(600):  # and then only time, REST, and a socket that is alive
        market.wait(1)
        market.series.socket_alive(market.now_ns)
        market.answer(0)
        market.record(0)
    assert [each for batch in market.batches for each in batch.trades] == market.expected
    assert market.batches[0].span.start_ns == BEGIN_NS
    assert all(one.span.end_ns == other.span.start_ns for one, other in pairwise(market.batches))
    for place, batch in enumerate(market.batches):
        later = [each for other in market.batches[place + 1 :] for each in other.trades]
        assert all(each.time_ns >= batch.span.end_ns for each in later), "nothing before a settled time comes later"
    assert market.batches[-1].span.end_ns >= market.clock_ns - 160 * SECOND_NS
    opens = {each.time_ns // MINUTE_NS * MINUTE_NS for each in market.expected}
    assert market.candles.keys() == opens
    for open_ns, candle in market.candles.items():
        inside = [each for each in market.expected if 0 <= each.time_ns - open_ns < MINUTE_NS]
        prices = [each.price for each in inside]
        assert candle[1:5] == (prices[0], max(prices), min(prices), prices[-1])
        assert (candle.volume, candle.trade_count) == (0.25 * len(inside), len(inside))


def _count(market: Market) -> int:
    return sum(len(batch.trades) for batch in market.batches)


@pytest.mark.parametrize("lacking", [0, 3])
def test_a_trade_in_time_that_rest_alone_called_quiet_is_recorded_after_a_restart(lacking: int) -> None:
    """The dispatch before has seen no trade, so its number is not known; REST may lack the trade at first."""
    quiet = ProvisionalSpan(TimeRange(after(-90), after(5)), ProvisionalReason.ONE_SOURCE)
    resume = Resume(BEGIN_NS, "", {60: BEGIN_NS}, {60: after(-120)}, (quiet,))
    live = LiveSeries(NUMBERED, resume, include_trades=True, periods=(60,), poll_ns=SECOND_NS, now_ns=0)
    earlier, unseen, new = trade(99, -200), trade(100, -30), trade(101, 10)
    for n in range(12):
        if live.take_query(now_ns=n * SECOND_NS) is None:
            continue
        found = [earlier] if n < lacking else [earlier, unseen] if n < 8 else [earlier, unseen, new]
        live.answered(TradeAnswer(found, False, after(n)), now_ns=n * SECOND_NS)
    live.received([new], now_ns=12 * SECOND_NS)
    trades, _ = live.take_records(now_ns=60 * SECOND_NS, flush=True)
    assert [each for record in trades for each in record.batch.trades] == [unseen, new]
    assert live.take_doubtful() == [(60, after(-60))], "its candle is built again"


def test_trades_whose_numbers_begin_again_are_recorded_behind_the_old_ones_and_the_seam_is_named() -> None:
    live = series()
    live.take_query(now_ns=0)
    live.answered(TradeAnswer([trade(99, -1)], False, after(0)), now_ns=0)
    old, new = [trade(n, n - 99) for n in (99, 100, 101, 102)], [trade(1, 5), trade(2, 6), trade(3, 70), trade(4, 71)]
    live.received(old[1:3], now_ns=1)  # the socket does not send 102
    live.received(new[:1], now_ns=2)
    for n in range(40):
        if n == 10:
            live.received(new[3:], now_ns=n * SECOND_NS)
        live.next_query_ns(now_ns=n * SECOND_NS, exchange_ns=after(72))
        if (query := live.take_query(now_ns=n * SECOND_NS)) is None:
            continue
        known = [*old, *(new if n >= 10 else new[:3])]
        found = [t for t in known if query.since_ns is None or t.time_ns >= query.since_ns]
        live.answered(TradeAnswer(found, False, after(72)), now_ns=n * SECOND_NS)
    for span in live.provisional:
        assert span.reason is ProvisionalReason.IDS_BEGAN_AGAIN
        assert span.span.start_ns <= old[3].time_ns and span.span.end_ns == new[0].time_ns + 1
    assert [(span.first_id, span.last_id) for span in live.provisional] == [("0", "0"), ("103", str(2**62))]
    trades, closed = live.take_records(now_ns=60 * SECOND_NS, flush=True)
    recorded = [each for due in trades for each in due.batch.trades]
    assert [each.trade_id for each in recorded] == ["100", "101", "102", "1", "2", "3", "4"]
    assert not any(due.batch.span.start_ns < new[0].time_ns < due.batch.span.end_ns for due in trades), "apart"
    assert [live.recorded(due) for due in trades][-1] == "4", "the next dispatch goes on behind the new number"
    assert [candle.volume for page in closed for candle in page.candles] == [0.25 * 5]


def test_trades_of_new_numbers_that_rest_lacks_are_recorded_as_the_socket_has_sent_them() -> None:
    live = series()
    live.take_query(now_ns=0)
    live.answered(TradeAnswer([trade(99, -1)], False, after(0)), now_ns=0)
    old, new = [trade(99, -1), trade(100, 1)], [trade(n, n + 4) for n in (1, 2, 3)]
    live.received(old[1:], now_ns=1)
    for n, each in enumerate(new):
        live.received([each], now_ns=2 + n)
    for n in range(20):
        live.next_query_ns(now_ns=n * SECOND_NS, exchange_ns=after(8))
        if (query := live.take_query(now_ns=n * SECOND_NS)) is not None:
            found = [t for t in [*old, new[2]] if query.since_ns is None or t.time_ns >= query.since_ns]
            live.answered(TradeAnswer(found, False, after(8)), now_ns=n * SECOND_NS)
    trades, _ = live.take_records(now_ns=60 * SECOND_NS, flush=True)
    recorded = [each for due in trades for each in due.batch.trades]
    assert sorted(recorded) == [old[1], *new]
    news = live.take_live()
    assert news is not None and [candle.volume for _, candle in news[1]] == [0.25 * 4]


def test_a_dispatch_whose_last_number_may_be_of_either_sequence_starts_where_rest_has_shown_the_first_one() -> None:
    """Numbers have begun again, and no answer has shown that trade 4 follows trade 1."""
    reason = ProvisionalReason.IDS_BEGAN_AGAIN
    left = ProvisionalSpan(TimeRange(after(-30), after(1)), reason, since_ns=after(-20))
    resume = Resume(BEGIN_NS, "4", {60: BEGIN_NS}, {60: after(-120)}, (left,))
    live = LiveSeries(NUMBERED, resume, include_trades=True, periods=(60,), poll_ns=SECOND_NS, now_ns=0)
    assert live.provisional == (left,), "until REST has answered"
    tape = [trade(99, -40), trade(1, -30), trade(1, -20), *(trade(n, n - 20) for n in (2, 3, 4, 5))]
    for n in range(20):
        live.next_query_ns(now_ns=n * SECOND_NS, exchange_ns=after(n))
        if (query := live.take_query(now_ns=n * SECOND_NS)) is not None:
            found = [t for t in tape if query.since_ns is None or t.time_ns >= query.since_ns]
            live.answered(TradeAnswer(found, False, after(n)), now_ns=n * SECOND_NS)
    trades, _ = live.take_records(now_ns=60 * SECOND_NS, flush=True)
    recorded = {each._replace(revision=0) for record in trades for each in record.batch.trades}
    assert sorted(recorded) == tape[1:]


def test_a_record_says_up_to_when_values_are_compared_and_a_correction_counts_once_it_is_in_a_record() -> None:
    live = series()
    live.take_query(now_ns=0)
    live.answered(TradeAnswer([trade(99, -1)], False, after(0)), now_ns=0)
    live.received([trade(100, 11), trade(101, 12)], now_ns=0)
    ((record,), _) = live.take_records(now_ns=0, flush=True)
    assert after(5) < record.compared_ns <= after(11)
    live.received([trade(102, 90)], now_ns=85 * SECOND_NS)
    for second in (85, 86, 88):
        assert live.values.take_query(live.settled_ns, now_ns=second * SECOND_NS) == TradeQuery(number=100)
        found = [trade(100, 11)._replace(price=1.0), trade(101, 12), trade(102, 90)]
        live.compared(TradeAnswer(found, False, after(second)), now_ns=second * SECOND_NS)
    live.set_tick(1_000 * SECOND_NS)
    live.received([trade(103, 91)], now_ns=89 * SECOND_NS)
    assert live.take_records(now_ns=90 * SECOND_NS).trades == ()
    assert live._compared_ns() <= after(11), "the correction waits for its record"
    ((record,), _) = live.take_records(now_ns=90 * SECOND_NS, flush=True)
    assert after(80) < record.compared_ns <= after(90) and any(each.revision for each in record.batch.trades)


def test_the_next_series_records_again_what_was_not_compared() -> None:
    resume = Resume(after(20), "119", compared_ns=after(10), candles={})
    live = LiveSeries(NUMBERED, resume, include_trades=True, periods=(), poll_ns=SECOND_NS, now_ns=0)
    tape = [trade(100 + n, n) for n in range(23)]
    live.take_query(now_ns=0)
    live.answered(TradeAnswer(tape, False, after(23)), now_ns=0)
    ((first,), _) = live.take_records(now_ns=0, flush=True)
    assert [each.number for each in first.batch.trades] == [120, 121, 122] and first.compared_ns == after(10)
    for second in (0, 1):
        assert live.recalled.take_query(now_ns=second * SECOND_NS) is not None
        live.recall(TradeAnswer(tape, False, after(23)), now_ns=second * SECOND_NS)
    ((again,), _) = live.take_records(now_ns=SECOND_NS, flush=True)
    assert [each.number for each in again.batch.trades] == list(range(110, 120))
    assert all(each.revision == after(23) for each in again.batch.trades)
    assert again.compared_ns == after(22) + 1, "REST has shown all of them"


def test_wrong_prices_of_the_socket_are_corrected_though_trades_come_without_a_break() -> None:
    live = series()
    live.take_query(now_ns=0)
    live.answered(TradeAnswer([trade(99, -1)], False, after(0)), now_ns=0)
    tape = [trade(100 + n, n) for n in range(90)]
    sent = [each._replace(price=1.0) if 20 <= n < 30 else each for n, each in enumerate(tape)]
    for n, each in enumerate(sent):
        live.received([each], now_ns=n * SECOND_NS)
    live.take_records(now_ns=0, flush=True)
    answers = 0
    for second in range(90, 100):
        if live.values.take_query(live.settled_ns, now_ns=second * SECOND_NS) == TradeQuery(number=100):
            live.compared(TradeAnswer(tape, False, after(second)), now_ns=second * SECOND_NS)
            answers += 1
    trades, _ = live.take_records(now_ns=100 * SECOND_NS, flush=True)
    recorded = [each for due in trades for each in due.batch.trades]
    assert [each._replace(revision=0) for each in recorded] == tape[20:30] and all(each.revision for each in recorded)
    assert live.corrected == 10 and answers == 3 and live.take_doubtful() == [(60, BEGIN_NS)]
    assert len(live.values) == 19, "the newest ones are not asked about yet"
