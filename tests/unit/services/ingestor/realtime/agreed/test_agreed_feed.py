"""The feed of a market without numbers: what REST and the socket prove together, and what neither does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.realtime.agreed.feed import ALONE_NS, AgreedFeed
from dexorder_ingestor.realtime.agreed.witness import LONGEST_DELAY_NS
from tests.examples import few
from tests.unit.services.ingestor.realtime.agreed.agreed_world import BEGIN_NS, Market, settled_seconds, tape, trade

PAGE = 5
View = Callable[[float], float]


def _behind(delay: float, start: float = 0.0, end: float = 1e9) -> View:
    return lambda second: second - delay if start <= second < end else second


def _cached(start: float, length: float) -> View:
    return lambda second: start if start <= second < start + length else second


REST = [
    ("in time", _behind(0), 0),
    ("2 s behind", _behind(2), 2),
    ("5 s behind", _behind(5), 5),
    ("10 s behind", _behind(10), 10),
    ("30 s behind", _behind(30), 30),
    ("30 s behind for 2 min", _behind(30, 300, 420), 0),
    ("one cached answer for 60 s", _cached(400, 60), 0),
    ("one cached answer for 20 s", _cached(400, 20), 0),
    ("one cached answer for 10 min", _cached(200, 600), 0),
]


@pytest.mark.parametrize("per_second", [0.1, 1.0, 5.0], ids=["1 trade/10 s", "1 trade/s", "5 trades/s"])
@pytest.mark.parametrize(("view", "behind"), [row[1:] for row in REST], ids=[row[0] for row in REST])
def test_a_rest_that_is_behind_costs_time_and_no_trade(view: View, behind: float, per_second: float) -> None:
    market = Market(tape(per_second, 900, Random(f"{per_second}")), view=view)
    feed = market.play()
    assert market.untrue == [] and feed.lost == []
    assert len({each.trade_id for each in market.released}) == len(market.released)
    assert settled_seconds(feed) > 900 - behind - 40


@pytest.mark.parametrize("per_second", [0.1, 1.0])
@pytest.mark.parametrize("length", [20, 120, 400])
@pytest.mark.parametrize("view", [_behind(40), _cached(300, 500)], ids=["behind", "cached"])
def test_a_deaf_socket_beside_it_costs_no_trade_either(view: View, length: float, per_second: float) -> None:
    market = Market(tape(per_second, 900, Random(7)), view=view, deaf=lambda second: 320 <= second < 320 + length)
    feed = market.play()
    assert market.untrue == [] and feed.lost == []
    assert settled_seconds(feed) > 800


def test_what_rest_never_shows_is_taken_from_the_socket() -> None:
    """REST lacks a tenth of the trades for ever, here and there."""
    trades = tape(1.0, 300, Random(3))
    lacking = set(Random(4).sample([each.trade_id for each in trades if each.time_ns >= BEGIN_NS], 30))
    market = Market(trades, 300, lacks=lambda each, second: each.trade_id in lacking)
    feed = market.play()
    assert market.untrue == [] and settled_seconds(feed) > 270
    assert lacking & {each.trade_id for each in market.released}


def test_without_any_socket_rest_is_believed_where_its_answers_change() -> None:
    market = Market(tape(1.0, 300, Random(3)), 300, has_socket=False, view=_cached(100, 60))
    feed = market.play()
    assert market.untrue == [] and settled_seconds(feed) > 280


def test_a_quiet_market_is_settled_while_the_socket_is_alive() -> None:
    market = Market([trade("a", -5), *(trade(f"b{second}", second) for second in (3, 9, 15))], 300)
    assert settled_seconds(market.play()) > 280
    assert [each.trade_id for each in market.released] == ["b3", "b9", "b15"]


@pytest.mark.parametrize(("has_socket", "expected"), [(True, 3.0), (False, 900 - ALONE_NS / SECOND_NS)])
def test_a_quiet_market_behind_a_dead_socket_is_not(has_socket: bool, expected: float) -> None:
    """It is settled up to its last trade. Where the exchange has no socket at all, REST is believed after a while."""
    feed = Market([trade("a", -5), trade("b", 3)], 900, deaf=lambda second: True, has_socket=has_socket).play()
    assert expected - 10 < settled_seconds(feed) <= expected + 1e-6
    assert settled_seconds(feed) > 3


class Step:
    """A feed that is driven by hand, second by second."""

    def __init__(self, *, by_time: bool = True) -> None:
        self.feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=5 * SECOND_NS, by_time=by_time)

    def alive(self, *seconds: int) -> None:
        for second in seconds:
            self.feed.socket_alive(second * SECOND_NS)

    def hear(self, second: int, *trades: Trade) -> None:
        assert self.feed.received(trades, now_ns=second * SECOND_NS) == []

    def show(self, second: int, *trades: Trade) -> list[Trade]:
        """Answer a query with trades."""
        answer = TradeAnswer(trades, False, BEGIN_NS + second * SECOND_NS)
        released = self.feed.answered(answer, now_ns=second * SECOND_NS)
        late, self.feed.late = self.feed.late, []
        return late + released


A, B, C, D, E, F = (trade(name, second) for name, second in zip("abcdef", (-5, 10, 20, 30, 40, 50), strict=True))


def _settled(step: Step) -> float:
    return settled_seconds(step.feed)


@pytest.mark.parametrize(
    ("heard", "alive", "expected"),
    [(20, 23, 22), (23, 23, 20), (40, 40, 39)],
    ids=["in time", "3 s late", "of before the connection"],
)
def test_a_sign_of_life_proves_nothing_about_trades_that_may_be_on_their_way(
    heard: int, alive: int, expected: float
) -> None:
    """The socket is dead after it, and REST repeats an answer."""
    step = Step()
    step.feed._sequence.settled_ns = B.time_ns
    step.alive(*range(1, heard))
    step.hear(10, B)
    step.show(11, A, B)
    step.hear(heard, C)
    step.alive(*range(heard, alive + 1))
    for second in (1, 6, 11):
        step.show(alive + second, A, B, C)
    assert _settled(step) == expected


def test_two_equal_answers_may_be_one_of_a_cache() -> None:
    step = Step()
    for second in range(30, 60, 5):
        assert step.show(second, A, B, C) == []
    assert _settled(step) == 0
    assert step.show(59, A, B, C, D) == [B]  # another answer: what both show before the first one's newest trade
    assert _settled(step) == 20


def test_what_rest_has_shown_for_half_a_minute_is_recorded_and_its_time_provisional() -> None:
    """The market may be quiet; the socket was not alive when its last trades were made."""
    step = Step()
    for second in (30, 45, 55):
        assert step.show(second, A, B, *([C] if second == 55 else [])) == []
    assert step.show(60, A, B, C) == [B], "half a minute since an answer has shown it first"
    assert step.show(84, A, B, C) == []
    assert step.show(85, A, B, C) == [C]
    end_ns = C.time_ns + 1
    assert step.feed.settled_ns == end_ns
    assert merge(each.span for each in step.feed.provisional) == [TimeRange(BEGIN_NS, end_ns)]
    missed = trade("m", 15)
    assert step.show(90, A, B, missed, C) == [missed], "a trade that all answers lacked is recorded when it comes"
    assert step.show(300, A, B, missed, C) == [] and step.feed.settled_ns == end_ns, "nothing after the last trade"
    step.show(690, A, B, missed, C)
    assert not step.feed.provisional


def test_a_socket_that_lives_and_has_sent_less_is_no_second_source() -> None:
    step = Step()
    step.feed._sequence.settled_ns = B.time_ns
    for second in range(1, 100):
        step.alive(second)
        if second == 20:
            step.hear(second, C)
        if second >= 30 and second % 5 == 0:
            step.show(second, A, B, C)
    assert [each.span for each in step.feed.provisional] == [TimeRange(B.time_ns, C.time_ns + 1)]
    assert step.feed.settled_ns > D.time_ns, "the socket counts again from then on"


def test_a_rest_that_lacks_the_sockets_trades_is_not_quiet() -> None:
    step = Step()
    step.hear(25, D)
    for second in range(30, 300, 5):
        assert step.show(second, A, B, C) == []
    assert _settled(step) == 0


def test_a_socket_that_was_alive_and_heard_the_same_needs_one_answer() -> None:
    step = Step()
    step.feed._sequence.settled_ns = B.time_ns
    step.alive(*range(1, 41))
    step.hear(10, B)
    step.hear(20, C)
    assert step.show(40, A, B, C) == [B, C]
    assert _settled(step) == 39


@pytest.mark.parametrize(("heard", "shown"), [((B,), (A, B, C)), ((B, C), (A, B, C, D))], ids=["lacks one", "another"])
def test_a_socket_that_has_not_sent_what_rest_shows_is_no_witness(
    heard: tuple[Trade, ...], shown: tuple[Trade, ...]
) -> None:
    step = Step()
    step.feed._sequence.settled_ns = B.time_ns
    step.alive(*range(1, 40))
    step.hear(20, *heard)
    assert step.show(40, *shown) == []


def test_a_trade_that_rest_has_not_shown_stops_the_settled_time() -> None:
    step = Step()
    step.alive(*range(40))
    step.hear(20, B, C)
    assert step.show(25, A, B) == [] and step.show(30, A, B) == []
    assert _settled(step) <= 10
    step.hear(31, D)
    assert step.show(35, A, B, D) == []
    assert step.show(50, A, B, D, E) == [B, C, D]
    assert _settled(step) == 40


def test_values_are_those_of_rest() -> None:
    step = Step()
    step.alive(*range(40))
    step.hear(20, B._replace(price=9.0), C)
    step.show(25, A, B, C)
    assert step.show(41, A, B, C, D) == [B, C]


def test_a_trade_that_comes_after_its_time_was_settled_is_released_late() -> None:
    step = Step()
    step.show(25, A, C)
    assert step.show(35, A, C, D) == [] and _settled(step) == 20
    assert step.show(40, A, B, C, D) == [B]
    assert step.show(45, A, B, C, D) == []


def test_a_trade_that_only_one_of_four_answers_has_is_dropped_and_comes_again() -> None:
    step = Step()
    step.show(31, A, B, C)
    assert step.show(35, A, C, D) == [] and step.show(45, A, C, D, E) == [] and _settled(step) == 10
    assert step.show(55, A, C, D, E, F) == [C, D] and _settled(step) == 40
    assert step.show(60, A, B, C, D, E, F) == [B]


def test_ids_of_another_kind_are_neither_taken_nor_doubled() -> None:
    trades = tape(1.0, 200, Random(5))
    feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=5 * SECOND_NS)
    released = []
    for second in range(200):
        now = [t for t in trades if second <= (t.time_ns - BEGIN_NS) / SECOND_NS < second + 1]
        feed.received([t._replace(trade_id=f"socket {t.trade_id}") for t in now], now_ns=(second + 1) * SECOND_NS)
        if second % 5 == 4:
            shown = [t for t in trades if t.time_ns < BEGIN_NS + second * SECOND_NS]
            answer = TradeAnswer(shown, False, BEGIN_NS + second * SECOND_NS)
            released += feed.answered(answer, now_ns=(second + 1) * SECOND_NS)
    assert released == [t for t in trades if BEGIN_NS <= t.time_ns < feed.settled_ns]
    assert settled_seconds(feed) > 180


def test_a_trade_of_the_future_stops_nothing() -> None:
    step = Step()
    step.hear(1, trade("x", 1e9))
    step.feed._sequence.settled_ns = B.time_ns
    step.alive(*range(1, 120))
    assert step.show(120, A) == []
    assert _settled(step) == 118


def test_trades_that_an_answer_has_no_room_for_come_from_a_socket_that_was_alive() -> None:
    market = Market(tape(5.0, 120, Random(6)), 120, page=20, by_time=False)
    feed = market.play()
    assert market.untrue == [] and settled_seconds(feed) > 100
    assert all(each.end_ns < BEGIN_NS + 10 * SECOND_NS for each in feed.lost)  # before it was known to be alive


def test_they_are_lost_if_it_was_not_and_those_that_came_are_kept() -> None:
    market = Market(tape(5.0, 120, Random(6)), 120, page=20, by_time=False, deaf=lambda second: 60 < second < 90)
    feed = market.play()
    lost = [each for each in feed.lost if each.start_ns > BEGIN_NS + 50 * SECOND_NS]
    assert lost and all(each.end_ns < BEGIN_NS + 95 * SECOND_NS for each in lost)


def test_a_span_without_a_socket_is_provisional_until_rest_was_asked_ten_minutes_later() -> None:
    """Socket and REST lose the same trades, and REST has them again four minutes later."""
    trades = tape(1.0, 1_200, Random(8))
    cut = {each.trade_id for each in trades if 300 <= (each.time_ns - BEGIN_NS) / SECOND_NS < 320}
    seen: list[str] = []

    class Told(Market):
        def _check(self, feed: AgreedFeed, second: float) -> None:
            spans = [each.span for each in feed.provisional]
            claimed = [
                t for t in self.trades if BEGIN_NS <= t.time_ns < feed.settled_ns and t.trade_id not in self.names
            ]
            seen.extend(t.trade_id for t in claimed)
            assert all(any(s.start_ns <= t.time_ns < s.end_ns for s in spans) for t in claimed), second

    market = Told(
        trades,
        1_200,
        lacks=lambda each, second: each.trade_id in cut and second < 560,
        deaf=lambda second: 300 <= second < 320,
        page=1_500,
    )
    feed = market.play()
    assert set(seen) == cut, "they were claimed, by name, before they were there"
    assert {each.trade_id for each in trades if BEGIN_NS <= each.time_ns < feed.settled_ns} <= market.names
    assert feed.provisional == ()


def test_a_span_that_the_socket_was_alive_in_is_never_provisional() -> None:
    market = Market(tape(1.0, 300, Random(9)), 300, view=_behind(30, 100, 200))
    feed = market.play()
    spans = [each.span for each in feed.provisional]
    assert len(spans) == 1 and spans[0].start_ns == BEGIN_NS and spans[0].end_ns < BEGIN_NS + 15 * SECOND_NS


def test_provisional_trades_of_the_dispatch_before_are_released_again() -> None:
    before = ProvisionalSpan(TimeRange(A.time_ns, BEGIN_NS), ProvisionalReason.ONE_SOURCE, since_ns=BEGIN_NS)
    feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=SECOND_NS, provisional=[before])
    older = trade("older", -9)
    for second, expected in ((5, [A]), (10, [])):
        answer = TradeAnswer([older, A, B], False, BEGIN_NS + second * SECOND_NS)
        assert feed.answered(answer, now_ns=second * SECOND_NS) == []
        assert feed.late == expected
        feed.late.clear()
    assert feed.provisional == (before,)


def test_an_empty_answer_is_refused_once_trades_are_known() -> None:
    step = Step()
    assert step.show(5) == []
    step.show(10, A)
    with pytest.raises(BadAnswer, match="without trades"):
        step.show(15)


def test_candles_that_are_late_ask_ever_more_seldom() -> None:
    step, asked = Step(), []
    for second in range(30):
        step.feed.ask(second * SECOND_NS)
        if second * SECOND_NS >= step.feed.due_ns:
            asked.append(second)
            step.show(second, A, B)
    assert asked == [0, 1, 2, 4, 8, 13, 18, 23, 28]


def test_where_rest_can_t_be_asked_nothing_is_asked_and_nothing_settled() -> None:
    feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=SECOND_NS, has_rest=False)
    for second in range(100):
        feed.received([trade(f"{second}", second)], now_ns=second * SECOND_NS)
        feed.ask(second * SECOND_NS)
    assert feed.wake_ns > 10**6 * SECOND_NS and feed.settled_ns == BEGIN_NS


def test_trades_without_an_id_are_told_apart_by_their_place() -> None:
    step = Step()
    twins = [trade("", 1), trade("", 1)]
    assert step.show(5, A, *twins, B) == []
    assert [each.trade_id[-2:] for each in step.show(25, A, *twins, B, C)] == ["-0", "-1"]


class Feeds(RuleBasedStateMachine):
    """Each trade is released once; what is neither released nor to come is in a lost span."""

    feed: AgreedFeed

    @initialize(steps=st.lists(st.integers(1, 3), max_size=14), honours_since=st.booleans(), by_time=st.booleans())
    def begin(self, steps: list[int], honours_since: bool, by_time: bool) -> None:
        self.now_ns = 0
        self.clock_ns = BEGIN_NS
        self.honours_since = honours_since and by_time
        self.by_time = by_time
        self.tape = [trade("id0", -1)]
        self.coming = [trade(f"id{i}", sum(steps[:i])) for i in range(1, len(steps) + 1)]
        self.expected = list(self.coming)
        self.released: list[Trade] = []
        self.feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=SECOND_NS, by_time=by_time)
        self.was_faulty = False

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS
        self.clock_ns += seconds * SECOND_NS
        while self.coming and self.coming[0].time_ns <= self.clock_ns:
            self.tape.append(self.coming.pop(0))

    @rule(count=st.integers(1, 3))
    def socket_sends(self, count: int) -> None:
        assert self.feed.received(self.tape[-count:], now_ns=self.now_ns) == []

    @rule(drop=st.integers(0, 5))
    def rest_answers(self, drop: int) -> None:
        """Answer a query; sometimes without one of the trades, but never twice in a row."""
        query = self.feed.query()
        assert self.by_time or query == TradeQuery()
        if query == TradeQuery() or not self.honours_since:
            found = self.tape[-PAGE:]
        else:
            found = [t for t in self.tape if query.since_ns is None or t.time_ns >= query.since_ns][:PAGE]
        is_faulty = 0 < drop < len(found) and not self.was_faulty
        if is_faulty:
            found = found[:drop] + found[drop + 1 :]
        with suppress(BadAnswer):
            released = self.feed.answered(TradeAnswer(found, len(found) >= PAGE, self.clock_ns), now_ns=self.now_ns)
            self.released += [*released, *self.feed.late]
            self.feed.late.clear()
            self.was_faulty = is_faulty

    @invariant()
    def nothing_is_doubled_or_lost_without_a_word(self) -> None:
        if not hasattr(self, "feed"):
            return
        ids = [each.trade_id for each in self.released]
        assert len(set(ids)) == len(ids)
        lost = {t for t in self.expected if any(s.start_ns <= t.time_ns < s.end_ns for s in self.feed.lost)}
        missing = {t for t in self.expected if t.time_ns < self.feed.settled_ns} - set(self.released)
        assert missing <= lost
        if self.honours_since:
            assert not self.feed.lost

    def teardown(self) -> None:
        """Once REST is right and the socket alive, everything is released, or told to be lost, after REST's delay.

        REST has been late by as long as a trade of the socket was not in its answers, also if it was not asked.
        """
        if not hasattr(self, "feed"):
            return
        self.time_passes(100)
        for _ in range(150):
            self.time_passes(5)
            self.feed.socket_alive(self.now_ns)
            self.rest_answers(0)
            self.nothing_is_doubled_or_lost_without_a_word()
        assert self.feed.settled_ns >= self.clock_ns - LONGEST_DELAY_NS


Feeds.TestCase.settings = settings(max_examples=few(50), stateful_step_count=25, deadline=None)
TestFeeds = Feeds.TestCase
