"""The feed of a market without numbers: two answers of REST decide, and what is lost is told."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.realtime.agreed_feed import AgreedFeed

BEGIN_NS = 1_700_000_000 * SECOND_NS
PAGE = 5


def _trade(name: int, time_ns: int) -> Trade:
    return Trade(time_ns, 0, f"id{name}", 1.5, 0.25, "buy", 1, 0)


class Feeds(RuleBasedStateMachine):
    """Each trade is released once, in order; what is neither released nor to come is in a lost span."""

    feed: AgreedFeed

    @initialize(steps=st.lists(st.integers(1, 3), max_size=14), honours_since=st.booleans(), by_time=st.booleans())
    def begin(self, steps: list[int], honours_since: bool, by_time: bool) -> None:
        self.now_ns = 0
        self.clock_ns = BEGIN_NS
        self.honours_since = honours_since and by_time
        self.by_time = by_time
        self.tape = [_trade(0, BEGIN_NS - SECOND_NS)]
        self.coming = []
        time_ns = BEGIN_NS
        for i, step in enumerate(steps, 1):
            time_ns += step * SECOND_NS
            self.coming.append(_trade(i, time_ns))
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

    @rule()
    def socket_sends(self) -> None:
        assert self.feed.received(self.tape[-1:], now_ns=self.now_ns) == []

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
            self.released += released
            self.was_faulty = is_faulty

    @invariant()
    def nothing_is_doubled_or_lost_without_a_word(self) -> None:
        if not hasattr(self, "feed"):
            return
        ids = [trade.trade_id for trade in self.released]
        assert len(set(ids)) == len(ids)
        assert self.released == sorted(self.released)
        lost = {t for t in self.expected if any(s.start_ns <= t.time_ns < s.end_ns for s in self.feed.lost)}
        missing = {t for t in self.expected if t.time_ns < self.feed.settled_ns} - set(self.released)
        assert missing <= lost
        if self.honours_since:
            assert not self.feed.lost

    def teardown(self) -> None:
        """Once REST is right, everything is released, or told to be lost."""
        if not hasattr(self, "feed"):
            return
        self.time_passes(100)
        for _ in range(40):
            self.rest_answers(0)
            self.nothing_is_doubled_or_lost_without_a_word()
        assert self.feed.settled_ns >= self.clock_ns - SECOND_NS


Feeds.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestFeeds = Feeds.TestCase


def test_trades_without_an_id_are_told_apart_by_their_place() -> None:
    feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=SECOND_NS)
    twins = [_trade(0, BEGIN_NS - 1), *(_trade(0, BEGIN_NS + 1)._replace(trade_id="") for _ in range(2))]
    answer = TradeAnswer(twins, False, BEGIN_NS + 5 * SECOND_NS)
    assert feed.answered(answer, now_ns=0) == []
    assert [trade.trade_id[-2:] for trade in feed.answered(answer, now_ns=1)] == ["-0", "-1"]
