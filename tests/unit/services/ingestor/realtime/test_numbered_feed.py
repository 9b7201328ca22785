"""The feed of a market that numbers its trades, in a world where sockets and REST do whatever they like."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialects import DIALECTS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.numbered_feed import NumberedFeed
from dexorder_ingestor.realtime.waiting import WaitReason
from tests.examples import few

BEGIN_NS = 1_700_000_000 * SECOND_NS
FIRST = 100
PAGE = 4
BY_NUMBER, BY_TIME = (replace(DIALECTS[name].trades, page=PAGE) for name in ("binance", "kraken"))


def _trade(number: int, time_ns: int, price: float = 1.5) -> Trade:
    return Trade(time_ns, number, str(number), price, 0.25, "buy", 1, 0)


def _page(tape: list[Trade], query: TradeQuery) -> tuple[list[Trade], bool]:
    """Return what an exchange answers of the trades that exist, and whether there may be more."""
    if query.number is not None:
        found = [trade for trade in tape if trade.number >= query.number]
    elif query.since_ns is not None:
        since_ns = query.since_ns
        found = [trade for trade in tape if trade.time_ns >= since_ns]
    else:
        return tape[-PAGE:], len(tape) >= PAGE
    return found[:PAGE], len(found) >= PAGE


class Feeds(RuleBasedStateMachine):
    """Whatever happens, each trade is released once, in order, and none before the settled time is missing."""

    feed: NumberedFeed

    @initialize(data=st.data(), by_number=st.booleans(), resumed=st.booleans())
    def begin(self, data: st.DataObject, by_number: bool, resumed: bool) -> None:
        self.now_ns = 0
        self.clock_ns = BEGIN_NS
        # two trades of one time: fewer than a page of Kraken, which can't be queried by number
        steps = data.draw(st.lists(st.sampled_from([0, 10_000, SECOND_NS, 3 * SECOND_NS]), max_size=12))
        before = data.draw(st.integers(0, 3)) if not resumed else 1
        self.tape = [_trade(FIRST + i, BEGIN_NS - (before - i) * SECOND_NS) for i in range(before)]
        self.coming: list[Trade] = []
        time_ns = BEGIN_NS
        for i, step_ns in enumerate(steps):
            time_ns += step_ns or i % 2 * 10_000
            self.coming.append(_trade(FIRST + before + i, time_ns))
        self.expected = list(self.coming)
        series: TradeSeries = BY_NUMBER if by_number else BY_TIME
        last = FIRST + before - 1 if resumed else None
        self.feed = NumberedFeed(series, BEGIN_NS, last, now_ns=0)
        self.queue: list[Trade] = []
        self.released: list[Trade] = []
        self.was_cut = False
        self.others = 0

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS
        self.clock_ns += seconds * SECOND_NS
        while self.coming and self.coming[0].time_ns <= self.clock_ns:
            self.tape.append(self.coming.pop(0))
            self.queue.append(self.tape[-1])

    @rule(data=st.data())
    def socket_sends(self, data: st.DataObject) -> None:
        """Send some of the trades that it has not sent, in any order, some twice; the rest is lost."""
        if self.queue:
            sent = data.draw(st.lists(st.sampled_from(self.queue), max_size=8))
            self.queue.clear()
            if sent:
                self._release(self.feed.received(sent, now_ns=self.now_ns))

    @rule()
    def socket_gives_a_sign_of_life(self) -> None:
        self.feed.socket_alive(self.now_ns)

    @rule()
    def connection_is_lost(self) -> None:
        self.queue.clear()
        self.feed.disconnected(now_ns=self.now_ns)

    @rule(fault=st.sampled_from(["none", "none", "none", "empty", "hole", "cut", "head", "other"]))
    def rest_answers(self, fault: str) -> None:
        """Answer the query whether or not it is due."""
        trades, full = _page(self.tape, self.feed.query())
        if fault in ("other", "cut") and (self.feed._trades.last is None or self.feed._searches.anchor is not None):
            # While the start is searched nothing is known of which another market's trades would differ, and an answer
            # that ends too early makes a trade before the start the first one.
            fault = "none"
        self.others += fault == "other"
        if (fault == "cut" and self.was_cut) or (fault == "other" and self.others > 4):
            fault = "none"  # two answers in a row that end too early settle too much; an error that lasts is believed
        trades = {
            "none": trades,
            "empty": [],
            "hole": trades[:1] + trades[2:] if len(trades) > 2 else trades,
            "cut": trades[:-1],
            "head": trades[1:],
            "other": [_trade(trade.number, trade.time_ns, price=99.0) for trade in trades],
        }[fault]
        with suppress(BadAnswer):
            self._release(self.feed.answered(TradeAnswer(trades, full, self.clock_ns), now_ns=self.now_ns))
            self.was_cut = fault == "cut"

    @rule()
    def rest_fails(self) -> None:
        self.feed.query()
        self.feed.failed(now_ns=self.now_ns)

    def _release(self, trades: list[Trade]) -> None:
        assert all(trade.price == 1.5 for trade in trades), "a trade of another market"
        self.released += trades

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "feed"):
            return
        assert self.released == self.expected[: len(self.released)]
        settled_ns = self.feed.settled_ns
        assert {t for t in self.expected if t.time_ns < settled_ns} <= set(self.released)
        assert not (self.feed.skipped or self.feed.late or self.feed.corrected)

    def teardown(self) -> None:
        """Once REST is right, everything is released and settled, without a further message."""
        if not hasattr(self, "feed"):
            return
        self.time_passes(100)
        for _ in range(60):
            self.feed.socket_alive(self.now_ns)
            self.rest_answers("none")
            self.nothing_is_lost_or_doubled()
            self.now_ns = max(self.now_ns, self.feed.due_ns)
        assert self.released == self.expected
        if self.tape:
            assert self.feed.settled_ns >= self.clock_ns - SECOND_NS


Feeds.TestCase.settings = settings(max_examples=few(50), stateful_step_count=25, deadline=None)
TestFeeds = Feeds.TestCase


def _begun(**options: Any) -> NumberedFeed:
    """Return a feed whose trade 100 is known and that REST has confirmed."""
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, 99, now_ns=0, **options)
    assert feed.query() == TradeQuery(number=98), "half of the answer: values that were not compared may be wrong"
    known = [_trade(99, BEGIN_NS - 1), _trade(100, BEGIN_NS)]
    assert feed.answered(TradeAnswer(known, False, BEGIN_NS), now_ns=0) == known[1:]
    return feed


def test_a_market_that_begins_without_an_earlier_trade_may_have_had_some_and_that_is_named() -> None:
    """REST alone says so, and a replica may lack them: the first number is not 0."""
    feed, known = NumberedFeed(BY_NUMBER, BEGIN_NS, None, now_ns=0), [_trade(100, BEGIN_NS + 20)]
    found: list[Trade] = []
    for _ in range(15):
        feed.query()
        found += feed.answered(TradeAnswer(known, False, BEGIN_NS + SECOND_NS), now_ns=0)
    assert found == known
    (named,) = feed.provisional
    assert (named.first_id, named.last_id, named.span) == ("0", "99", TimeRange(BEGIN_NS, BEGIN_NS + 21))
    feed.received([_trade(98, BEGIN_NS + 10)], now_ns=1)
    assert feed.late == [_trade(98, BEGIN_NS + 10)]
    again = NumberedFeed(BY_NUMBER, BEGIN_NS + 21, 100, now_ns=0, provisional=feed.provisional)
    assert again.provisional == feed.provisional


def test_a_gap_is_queried_after_a_moment_in_which_shuffled_messages_may_close_it() -> None:
    feed = _begun()
    assert feed.received([_trade(102, BEGIN_NS + 2)], now_ns=10) == []
    assert 10 < feed.due_ns < SECOND_NS
    assert feed.query() == TradeQuery(number=99), "trades before the last one, too: they may have been corrected"
    assert len(feed.received([_trade(101, BEGIN_NS + 1)], now_ns=20)) == 2
    assert feed.due_ns >= SECOND_NS


def test_the_answer_to_a_query_before_a_search_for_numbers_that_begin_again_does_not_end_it() -> None:
    """A dispatch resumes by an old number, to which REST has nothing any more; the same query is repeated meanwhile."""
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, 99, now_ns=0)
    new = [_trade(n, BEGIN_NS + SECOND_NS * n) for n in range(1, 4)]
    tape, found = [_trade(99, BEGIN_NS - 1), _trade(100, BEGIN_NS + 1), *new], list[Trade]()
    for step in range(10):
        query = feed.query()
        is_old = query.number is not None and query.number > 3
        answer = TradeAnswer([] if is_old else [*tape], False, BEGIN_NS + 9 * SECOND_NS)
        for _ in range(2):
            with suppress(BadAnswer):
                found += feed.answered(answer, now_ns=step * SECOND_NS)
                break
    assert feed.seam is not None and [t.number for t in feed.seam.fresh] == [1, 2, 3]
    assert [t.number for t in feed.seam.tail] == [100] and found == []


@pytest.mark.parametrize("one_message", [True, False])
def test_numbers_that_begin_again_twice_in_seconds_are_not_taken_for_successors(one_message: bool) -> None:
    """The last known trade is number 2 of its sequence, so number 3 of the next one looks like its successor."""
    feed = _begun()
    first = [_trade(n, BEGIN_NS + SECOND_NS * (10 + n)) for n in (1, 2)]
    second = [_trade(n, BEGIN_NS + SECOND_NS * (14 + n)) for n in (1, 2, 3)]
    tape, found, seams = [_trade(100, BEGIN_NS)], list[Trade](), list[Trade]()
    for messages, now_s in (([first], 13), ([second] if one_message else [[each] for each in second], 18)):
        tape += [trade for message in messages for trade in message]
        for message in messages:
            found += feed.received(message, now_ns=now_s * SECOND_NS)
        while feed.due_ns <= (now_s + 3) * SECOND_NS:
            since_ns = feed.query().since_ns or 0
            answer = TradeAnswer([t for t in tape if t.time_ns >= since_ns], False, BEGIN_NS + now_s * SECOND_NS)
            found += feed.answered(answer, now_ns=max(feed.due_ns, now_s * SECOND_NS))
            if feed.seam is not None:
                seams, feed.seam = [*seams, *feed.seam.fresh], None
    assert [*found, *seams] == [*first, *second]
    assert feed.settled_ns == second[-1].time_ns


def test_two_trades_of_one_number_within_a_second_are_both_recorded_if_an_answer_has_both() -> None:
    """The second sequence has two trades, and numbers begin again 0.4 s after the last of them; the socket was dead."""
    feed, found = _begun(), list[Trade]()
    second = [_trade(n, BEGIN_NS + time_ns) for n, time_ns in ((1, 4 * SECOND_NS), (2, 20 * SECOND_NS))]
    third = [_trade(n, BEGIN_NS + 20 * SECOND_NS + n * SECOND_NS // 5) for n in (1, 2, 3)]
    for at_s in range(19):
        found += _answer(feed, [_trade(100, BEGIN_NS), second[0]], at_s)
    assert found == [second[0]]
    for at_s in range(25, 60):
        found += _answer(feed, [_trade(100, BEGIN_NS), *second, *third], at_s)
    assert found == [*second, *third]


def _answer(feed: NumberedFeed, tape: list[Trade], second: int) -> list[Trade]:
    """Answer the query that is due at a second, with the trades of a tape; return all trades that this brings."""
    now_ns, clock_ns = second * SECOND_NS, BEGIN_NS + second * SECOND_NS
    feed.look_at_gaps(clock_ns, now_ns=now_ns)
    if feed.due_ns > now_ns:
        return []
    since_ns = feed.query().since_ns or 0
    found = list[Trade]()
    with suppress(BadAnswer):
        found = feed.answered(TradeAnswer([t for t in tape if t.time_ns >= since_ns], False, clock_ns), now_ns=now_ns)
    seam, feed.seam, late, feed.late = feed.seam, None, feed.late, []
    return [*found, *late, *([*seam.tail, *seam.fresh] if seam else [])]


def _reason(feed: NumberedFeed) -> WaitReason | None:
    return feed.waits.reason if feed.waits else None


def test_a_trade_that_follows_new_numbers_on_the_socket_alone_is_provisional_until_rest_shows_both() -> None:
    """Numbers begin again twice, while the socket is dead and REST repeats one answer: 2 is of the second sequence."""
    first, lost = _trade(1, BEGIN_NS + 4 * SECOND_NS), _trade(1, BEGIN_NS + 17 * SECOND_NS)
    later = [_trade(n, BEGIN_NS + (38 + n) * SECOND_NS) for n in (2, 3)]
    feed, found = _begun(), list[Trade]()
    for second in range(20):
        found += _answer(feed, [_trade(100, BEGIN_NS), first], second)
    assert found == [first]
    found += feed.received(later, now_ns=41 * SECOND_NS)
    doubt = next(each for each in feed.provisional if not each.first_id)
    assert doubt.span == TimeRange(first.time_ns, later[0].time_ns + 1)
    assert doubt.reason is ProvisionalReason.IDS_BEGAN_AGAIN
    for second in range(42, 60):
        found += _answer(feed, [_trade(100, BEGIN_NS), first], second)
    assert doubt in feed.provisional, "an answer from before does not end it"

    again = NumberedFeed(BY_TIME, first.time_ns, None, now_ns=0, provisional=feed.provisional)
    assert doubt in again.provisional, "nor does a restart"
    for second in range(20):
        _answer(again, [_trade(100, BEGIN_NS), first], second)
    again.received(later, now_ns=41 * SECOND_NS)
    assert any(
        not each.first_id and each.span.start_ns <= lost.time_ns < each.span.end_ns for each in again.provisional
    )

    tape = [_trade(100, BEGIN_NS), first, lost, *later]
    for each in (feed, again):
        brought = [trade for second in range(60, 120) for trade in _answer(each, tape, second)]
        assert brought == [lost]
        assert all(span.first_id for span in each.provisional), "numbers between sequences stay open"
        assert any(s.span == TimeRange(first.time_ns, lost.time_ns + 1) for s in each.provisional)
    assert found == [first, *later]


@pytest.mark.parametrize("is_start", [True, False], ids=["a new dispatch", "a new connection"])
def test_the_first_trade_on_a_connection_proves_nothing_about_the_time_before_it(is_start: bool) -> None:
    """Numbers have begun again meanwhile, and the socket's first one follows the last known one."""
    last, lost = _trade(3, BEGIN_NS), [_trade(n, BEGIN_NS + (20 + n) * SECOND_NS) for n in (1, 2, 3)]
    later = [_trade(n, BEGIN_NS + (36 + n) * SECOND_NS) for n in (4, 5)]
    before = [_trade(2, BEGIN_NS - SECOND_NS), last]
    feed, found = NumberedFeed(BY_NUMBER, BEGIN_NS, 3 if is_start else 2, now_ns=0), list[Trade]()
    if not is_start:
        assert _answer(feed, before[:1], 0) == []
        assert feed.received([last], now_ns=1) == [last] and feed.provisional
        assert [trade for second in range(1, 20) for trade in _answer(feed, before, second)] == []
        assert not feed.provisional, "the first connection is joined"
        feed.disconnected(now_ns=20 * SECOND_NS)
    found += feed.received(later, now_ns=42 * SECOND_NS)
    for second in range(42, 70):
        found += _answer(feed, before, second)
        between = [each.span for each in feed.provisional if each.reason is ProvisionalReason.NOT_JOINED]
        assert between == ([TimeRange(last.time_ns, later[0].time_ns + 1)] if found else [])
    assert found == later and feed.settled_ns == later[-1].time_ns
    for second in range(70, 110):
        found += _answer(feed, [*before, *lost, *later], second)
    assert found == [*later, *lost]
    assert all(each.first_id for each in feed.provisional), "numbers between sequences stay open"


def test_a_trade_that_an_answer_about_a_connection_has_shown_does_not_close_its_gap_again() -> None:
    """REST has lost its feed with the socket: it lacks what neither has seen, until it is mended."""
    feed, found = _begun(), list[Trade]()
    tape = [_trade(n, BEGIN_NS + (n - 100) * SECOND_NS) for n in range(100, 106)]
    found += [trade for second in range(5) for trade in _answer(feed, tape[:1], second)]
    feed.disconnected(now_ns=5 * SECOND_NS)
    found += feed.received(tape[3:], now_ns=6 * SECOND_NS)
    for second in range(6, 300):
        found += _answer(feed, tape if found else [tape[0], *tape[4:]], second)
        if found == tape[3:]:
            assert {each.first_id for each in feed.provisional} == {"101", ""}, "left out, and it is mended just now"
    assert sorted(found) == tape[1:] and feed.provisional == ()


def test_a_trade_that_came_before_the_connection_was_lost_is_not_the_first_one_after_it() -> None:
    feed, found = _begun(), list[Trade]()
    tape = [_trade(n, BEGIN_NS + (n - 100) * SECOND_NS) for n in range(100, 105)]
    assert feed.received([tape[2]], now_ns=3 * SECOND_NS) == []
    feed.disconnected(now_ns=4 * SECOND_NS)
    found += _answer(feed, tape[:2], 5)
    assert found == tape[1:3]
    found += feed.received([tape[3]], now_ns=6 * SECOND_NS)
    (joint,) = feed.provisional
    assert joint.span == TimeRange(tape[2].time_ns, tape[3].time_ns + 1)


def test_a_dispatch_continues_although_the_exchange_has_removed_the_last_recorded_trade() -> None:
    tape = [_trade(n, BEGIN_NS + (n - 100) * SECOND_NS) for n in range(97, 104) if n != 99]
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, 99, now_ns=0)
    found = feed.received(tape[-2:], now_ns=3 * SECOND_NS)
    for second in range(4, 200):
        if not found:
            assert _reason(feed) in (WaitReason.REST_LACKS, WaitReason.IDS_BEGAN_AGAIN)
        found += _answer(feed, tape, second)
    assert found == tape[2:] and feed.settled_ns >= tape[-1].time_ns
    assert [(each.first_id, each.last_id) for each in feed.provisional] == [("99", "99")]


def test_a_new_number_that_comes_during_a_search_is_not_forgotten_at_its_end() -> None:
    """The search began because answers lacked the last known trade, so it knew of no later one."""
    feed, new = _begun(), _trade(1, BEGIN_NS + 5 * SECOND_NS)
    for second in range(4):
        with suppress(BadAnswer):
            _answer(feed, [], second)
    assert _reason(feed) is WaitReason.IDS_BEGAN_AGAIN
    assert feed.received([new], now_ns=5 * SECOND_NS) == []
    for second in range(6, 60):
        assert _answer(feed, [_trade(99, BEGIN_NS - 1)], second) == []
        assert _reason(feed) is WaitReason.IDS_BEGAN_AGAIN and feed.settled_ns < new.time_ns
    assert [t for second in range(60, 99) for t in _answer(feed, [_trade(100, BEGIN_NS), new], second)] == [new]


def test_a_trade_that_a_search_without_a_find_has_released_is_not_missing_at_the_joint() -> None:
    reason = ProvisionalReason.IDS_BEGAN_AGAIN
    left = ProvisionalSpan(TimeRange(BEGIN_NS, BEGIN_NS + 1), reason, since_ns=BEGIN_NS)
    feed, found = NumberedFeed(BY_TIME, BEGIN_NS, None, now_ns=0, provisional=[left]), list[Trade]()
    tape = [_trade(99, BEGIN_NS - 1), _trade(100, BEGIN_NS)]
    for second in range(10):
        found += _answer(feed, tape, second)
    feed.disconnected(now_ns=10 * SECOND_NS)
    for second in range(10, 40):
        if _reason(feed) is not WaitReason.IDS_BEGAN_AGAIN:
            found += _answer(feed, tape[:1], second)
    assert _reason(feed) is WaitReason.IDS_BEGAN_AGAIN, "answers lack 100"
    new = [_trade(n, BEGIN_NS + (n - 60) * SECOND_NS) for n in (101, 102)]
    assert feed.received(new[:1], now_ns=41 * SECOND_NS) == []
    for second in range(41, 80):
        found += _answer(feed, [*tape, new[0]], second)
    found += feed.received(new[1:], now_ns=80 * SECOND_NS)
    for second in range(80, 120):
        found += _answer(feed, [*tape, *new], second)
    assert found == [tape[1], *new] and feed.provisional == ()


def test_a_new_dispatch_notices_numbers_that_began_again_before_it_though_it_knows_only_a_number() -> None:
    """REST is behind, and the number after the last recorded one is of the new sequence."""
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, 29, now_ns=0)
    assert feed.received([_trade(28, BEGIN_NS + 30 * SECOND_NS)], now_ns=30 * SECOND_NS) == []
    assert feed.received([_trade(30, BEGIN_NS + 32 * SECOND_NS)], now_ns=32 * SECOND_NS) == []
    assert _reason(feed) is WaitReason.IDS_BEGAN_AGAIN and feed.settled_ns == BEGIN_NS


def test_a_search_for_the_last_trade_before_the_start_notices_that_numbers_begin_again_after_it() -> None:
    """The socket then goes on with the number after that trade, though of the new sequence."""
    old = [_trade(n, BEGIN_NS + (n - 14) * SECOND_NS) for n in (13, 14, 15)]
    new = [_trade(n, BEGIN_NS + (n + 4) * SECOND_NS) for n in range(1, 14)]
    feed = NumberedFeed(replace(BY_NUMBER, page=PAGE * 5), BEGIN_NS, 15, now_ns=0, search=True)
    _answer(feed, [*old, *new], 20)
    assert feed.received([_trade(14, BEGIN_NS + 22 * SECOND_NS)], now_ns=22 * SECOND_NS) == []
    assert _reason(feed) is WaitReason.IDS_BEGAN_AGAIN and feed.settled_ns == BEGIN_NS
    assert feed.provisional, "its time is not claimed either"


def test_old_trades_in_an_answer_about_new_numbers_are_not_their_successors() -> None:
    """A query from number 1 on may bring the trades of the old sequence, too."""
    old, new = [_trade(100, BEGIN_NS), _trade(101, BEGIN_NS + 1)], [_trade(n, BEGIN_NS + n * SECOND_NS) for n in (5, 6)]
    late = _trade(102, BEGIN_NS + 2 * SECOND_NS)
    feed, found = _begun(), list[Trade]()
    for second in range(20):
        found += _answer(feed, [*old, *new], second)
    feed.query()
    answer = TradeAnswer([*old, late, *new, _trade(7, BEGIN_NS + 7 * SECOND_NS)], False, BEGIN_NS + 20 * SECOND_NS)
    found += feed.answered(answer, now_ns=20 * SECOND_NS)
    assert feed.late == [late], "it fills the end of the old sequence"
    assert [t.number for t in found] == [101, 5, 6, 7]
    assert _reason(feed) is not WaitReason.REST_LACKS, "no number before 100 is missing"


def test_a_socket_that_comes_to_the_last_known_number_anew_shows_that_numbers_begin_again() -> None:
    """REST lacks the first trades since then, and shows only one with a larger number."""
    feed, found = _begun(), list[Trade]()
    new = [_trade(n, BEGIN_NS + n * SECOND_NS) for n in range(96, 104)]
    feed.received(new[:-1], now_ns=104 * SECOND_NS)
    for second in range(105, 140):
        found += _answer(feed, [_trade(100, BEGIN_NS), new[-1]], second)
    assert sorted(found) == new[:-1], "an answer without 102 is not taken"
    brought = [trade for second in range(140, 160) for trade in _answer(feed, [_trade(100, BEGIN_NS), *new], second)]
    assert brought == new[-1:]
    assert feed.settled_ns == new[-1].time_ns


def test_the_end_of_the_old_numbers_is_released_once_if_the_socket_has_sent_it_too() -> None:
    feed, found = _begun(), list[Trade]()
    old, new = [_trade(n, BEGIN_NS + (n - 100) * SECOND_NS) for n in (101, 102)], _trade(1, BEGIN_NS + 9 * SECOND_NS)
    feed.received([new], now_ns=9 * SECOND_NS)
    feed.received(old, now_ns=10 * SECOND_NS)
    for second in range(10, 40):
        found += _answer(feed, [_trade(100, BEGIN_NS), *old, new], second)
    assert found == [*old, new]


def test_a_released_trade_does_not_close_the_gap_after_numbers_that_began_in_the_same_second() -> None:
    """The times of a gap are not exact, and the old trade has a number that the shorter sequence has not used."""
    old = [_trade(100, BEGIN_NS), _trade(101, BEGIN_NS + SECOND_NS // 2)]
    first, second = _trade(1, BEGIN_NS + SECOND_NS), _trade(1, BEGIN_NS + 9 * SECOND_NS)
    feed, tape, found = _begun(), [*old], list[Trade]()
    for at, new in enumerate((first, second)):
        feed.received([new], now_ns=(10 + 40 * at) * SECOND_NS)
        tape.append(new)
        found += [each for n in range(10, 40) for each in _answer(feed, tape, n + 40 * at)]
    gaps = [each for each in feed.provisional if each.last_id == str(2**62)]
    assert [each.first_id for each in gaps] == ["102", "2"] and gaps[1].span.start_ns == first.time_ns
    assert found == [old[1], first, second]
    feed.received([*old, first], now_ns=90 * SECOND_NS)
    assert feed.late == []
    assert [each for n in range(90, 120) for each in _answer(feed, tape, n)] == []


def test_a_trade_that_an_answer_about_a_gap_has_shown_is_not_released_again_with_the_new_numbers() -> None:
    """It is from the second after new numbers have begun, so its time does not tell to which sequence it belongs."""
    feed, found = NumberedFeed(BY_TIME, BEGIN_NS, None, now_ns=0), list[Trade]()
    tape = [_trade(1, BEGIN_NS - 1), *(_trade(n, BEGIN_NS + (20 + n) * SECOND_NS) for n in (1, 2))]
    for second in range(10):
        found += _answer(feed, tape[:1], second)
    found += feed.received(tape[1:2], now_ns=21 * SECOND_NS)
    for second in range(21, 100):
        found += _answer(feed, tape if second > 40 else tape[:2], second)
        if second == 41:
            feed.due_ns = 99 * SECOND_NS  # the answer about the gap comes first
    assert found == tape[1:]


def test_a_trade_that_fits_an_earlier_gap_and_the_new_numbers_is_released_once() -> None:
    """Numbers begin again a second before it, so its time alone does not tell to which sequence it belongs."""
    second = [_trade(n, BEGIN_NS + SECOND_NS * (20 + n)) for n in (1, 2, 3)]
    gap = ProvisionalSpan(
        TimeRange(BEGIN_NS + 4 * SECOND_NS, second[0].time_ns + 1),
        ProvisionalReason.IDS_BEGAN_AGAIN,
        "2",
        str(2**62),
        BEGIN_NS,
    )
    feed = NumberedFeed(BY_TIME, BEGIN_NS, 2, now_ns=0, search=True, provisional=[gap])
    tape = [_trade(59, BEGIN_NS - 1), _trade(60, BEGIN_NS + 1), _trade(1, BEGIN_NS + 4 * SECOND_NS), *second]
    clock_ns, found = BEGIN_NS + 60 * SECOND_NS, list[Trade]()
    feed.look_at_gaps(clock_ns, now_ns=0)
    for step in range(20):
        since_ns = feed.query().since_ns or 0
        answer = TradeAnswer([trade for trade in tape if trade.time_ns >= since_ns], False, clock_ns)
        with suppress(BadAnswer):
            found += feed.answered(answer, now_ns=step * SECOND_NS)
        seam, feed.seam = feed.seam, None
        found += [*feed.late, *seam.tail, *seam.fresh] if seam else feed.late
        feed.late = []
        feed.look_at_gaps(clock_ns, now_ns=step * SECOND_NS)
    assert sorted(found) == tape[1:]


def test_numbers_that_all_answers_lack_are_skipped_and_told() -> None:
    feed = _begun(skip_answers=3)
    feed.received([_trade(103, BEGIN_NS + 3)], now_ns=0)
    answer = TradeAnswer([_trade(100, BEGIN_NS), _trade(103, BEGIN_NS + 3)], False, BEGIN_NS)
    assert feed.query() == TradeQuery(number=99)
    assert [feed.answered(answer, now_ns=n) for n in range(3)] == [[], [], [_trade(103, BEGIN_NS + 3)]]
    assert [(gap.first, gap.last) for gap in feed.skipped] == [(101, 102)]


def test_silence_of_a_quiet_market_is_asked_about_less_and_less_and_opens_no_socket() -> None:
    feed, now_ns, queries = _begun(), 0, 0
    while now_ns < 300 * SECOND_NS:
        now_ns = feed.wake_ns
        feed.socket_alive(now_ns)
        assert not feed.is_deaf(now_ns=now_ns)
        if now_ns >= feed.due_ns:
            queries += 1
            feed.query()
            feed.answered(TradeAnswer([_trade(100, BEGIN_NS)], False, BEGIN_NS + now_ns), now_ns=now_ns)
    assert queries <= 15
    assert feed.settled_ns >= BEGIN_NS + 180 * SECOND_NS
    (alone,) = feed.provisional
    assert (alone.span.end_ns, alone.reason) == (feed.settled_ns, ProvisionalReason.ONE_SOURCE)


def test_a_socket_is_deaf_once_rest_has_news_and_it_stays_silent() -> None:
    feed = _begun()
    feed.query()
    feed.answered(TradeAnswer([_trade(100, BEGIN_NS), _trade(101, BEGIN_NS)], False, BEGIN_NS), now_ns=SECOND_NS)
    assert not feed.is_deaf(now_ns=2 * SECOND_NS)
    assert feed.is_deaf(now_ns=5 * SECOND_NS)
    assert not feed.is_deaf(now_ns=5 * SECOND_NS), "once"


def test_a_message_shows_that_the_socket_is_not_deaf() -> None:
    feed = _begun()
    feed.query()
    feed.answered(TradeAnswer([_trade(100, BEGIN_NS), _trade(101, BEGIN_NS)], False, BEGIN_NS), now_ns=SECOND_NS)
    feed.received([_trade(101, BEGIN_NS)], now_ns=2 * SECOND_NS)
    assert not feed.is_deaf(now_ns=9 * SECOND_NS)


@pytest.mark.parametrize("answer", [[], [_trade(101, BEGIN_NS)], [_trade(100, BEGIN_NS, price=2.0)]])
def test_an_answer_without_the_last_known_trade_is_no_proof(answer: list[Trade]) -> None:
    feed = _begun()
    feed.query()
    with pytest.raises(BadAnswer):
        feed.answered(TradeAnswer(answer, False, BEGIN_NS + 100 * SECOND_NS), now_ns=0)
    assert feed.settled_ns == BEGIN_NS


def test_empty_answers_settle_nothing_while_the_first_trade_of_a_market_is_known_and_not_released() -> None:
    feed = NumberedFeed(BY_TIME, BEGIN_NS, None, now_ns=0)
    first = [_trade(100, BEGIN_NS)]
    for _ in range(10):  # answers agree that no trade is older
        feed.query()
        assert feed.answered(TradeAnswer(first, False, BEGIN_NS), now_ns=0) == []
    feed.query()
    for _ in range(2):
        with pytest.raises(BadAnswer, match="lacks trade 100, the first one of the market"):
            feed.answered(TradeAnswer([], False, BEGIN_NS + 2 * SECOND_NS), now_ns=0)
    assert feed.settled_ns == BEGIN_NS
    assert feed.answered(TradeAnswer(first, False, BEGIN_NS + 2 * SECOND_NS), now_ns=0) == first


def test_answers_that_are_behind_the_socket_skip_nothing() -> None:
    feed = _begun(skip_answers=3)
    feed.received([_trade(103, BEGIN_NS + 3)], now_ns=0)
    for now_ns in range(20):
        feed.query()
        assert feed.answered(TradeAnswer([_trade(100, BEGIN_NS)], False, BEGIN_NS), now_ns=now_ns) == []
    assert feed.skipped == []


def test_candles_of_the_exchange_end_the_doubt_about_their_time_alone_also_over_a_restart() -> None:
    def span(first: int, end: int) -> TimeRange:
        return TimeRange(BEGIN_NS + first * SECOND_NS, BEGIN_NS + end * SECOND_NS)

    alone = ProvisionalSpan(span(0, 240), ProvisionalReason.ONE_SOURCE, since_ns=BEGIN_NS)
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, FIRST, now_ns=0, provisional=[alone])
    feed.witnessed(span(300, 360))
    assert [each.span for each in feed.provisional] == [span(0, 240)]
    feed.witnessed(span(60, 120))
    left = feed.provisional
    assert left == (alone._replace(span=span(0, 60)), alone._replace(span=span(120, 240)))
    again = NumberedFeed(BY_NUMBER, BEGIN_NS, FIRST, now_ns=0, provisional=left)
    assert [each.span for each in again.provisional] == [span(0, 240)], "no part is left out"
    again.witnessed(span(0, 240))
    assert not again.provisional
    later, tape = _trade(FIRST + 1, BEGIN_NS + 300 * SECOND_NS), [_trade(FIRST, BEGIN_NS)]
    feed.received([later], now_ns=1)
    assert list(feed.provisional) == list(left), "REST has not shown the last recorded trade yet"
    assert _answer(feed, tape, 1) == [later]
    (doubt,) = feed.provisional
    assert (doubt.span, doubt.reason.name) == (TimeRange(tape[0].time_ns, later.time_ns + 1), "NOT_JOINED")
    assert [trade for second in range(2, 9) for trade in _answer(feed, [*tape, later], second)] == []
    assert not feed.provisional, "the next number proves all of it"


def test_messages_of_the_socket_do_not_postpone_the_query_about_other_values() -> None:
    tape = [_trade(FIRST + n, BEGIN_NS + (n - 1) * SECOND_NS) for n in range(5)]
    other = tape[1]._replace(price=2.5)
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, FIRST, now_ns=0)
    feed.query()
    feed.answered(TradeAnswer(tape[:3], False, BEGIN_NS + 2 * SECOND_NS), now_ns=0)
    for n in range(3):
        assert not feed.corrected
        feed.query()
        now_ns = (n + 1) * SECOND_NS
        feed.answered(TradeAnswer([tape[0], other, *tape[2 : 3 + n]], False, BEGIN_NS + 3 * SECOND_NS), now_ns=now_ns)
        if n < 2:
            feed.received([tape[3 + n]], now_ns=now_ns + 1)
            assert feed.due_ns <= now_ns + SECOND_NS // 2
    assert feed.corrected == [other]


def test_a_gap_whose_queries_fail_is_asked_about_less_and_less() -> None:
    """A delisted market refuses each query at once, and its gap stays due: it takes no calls from other markets."""
    span = TimeRange(BEGIN_NS, BEGIN_NS + 10 * SECOND_NS)
    skipped = ProvisionalSpan(span, ProvisionalReason.MISSING_IDS, str(FIRST - 9), str(FIRST - 5), since_ns=BEGIN_NS)
    feed = NumberedFeed(BY_NUMBER, BEGIN_NS, FIRST, now_ns=0, provisional=[skipped])
    asked = []
    for now_ns in range(0, 300 * SECOND_NS, SECOND_NS // 20):
        feed.look_at_gaps(BEGIN_NS + 3_600 * SECOND_NS + now_ns, now_ns=now_ns)
        if now_ns >= feed.due_ns:
            feed.query()
            feed.failed(now_ns=now_ns)
            asked.append(now_ns)
    assert asked, "it is due"
    assert len(asked) <= 300, "one a second: that is what a feed without a gap asks"
