"""Rules of subscriptions and jobs, one by one; test_rules.py runs them at random."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import WEEK_SECONDS
from dexorder_common.model.realtime import (
    Knowledge,
    ProvisionalReason,
    ProvisionalSpan,
    RealtimeParams,
    RealtimeState,
    RealtimeStatus,
    StartedSubscription,
    Subscription,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state import realtime as rules
from dexorder_relay.state import realtime_job
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.realtime_job import RealtimeJob, Registry
from dexorder_relay.state.workers import Slot, SlotKind
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import START_NS, TICKER

MINUTE_NS = 60 * SECOND_NS
TRADES, MINUTES = RealtimeParams(True), RealtimeParams(False, (60,))


class Relay:
    """A registry with what a driver does around it."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        ids = (f"id{number}" for number in itertools.count(1))
        self.registry = Registry(Leases(lease_ns=15, new_id=lambda: dispatch_id(next(numbers))), lambda: next(ids))
        self.jobs = itertools.count(1)

    def start(self, name: str, params: RealtimeParams, since_ns: int | None = None, *, at_ns: int = START_NS) -> None:
        wanted = Subscription(name, TICKER, params, since_ns, client_id=f"owner of {name}")
        started = StartedSubscription(wanted, at_ns, self.registry.last_sequence + 1)
        rules.start(self.registry, started, lambda: next(self.jobs), Changes())

    def stop(self, name: str) -> RealtimeJob:
        return rules.stop(self.registry, name, Changes(), wall_ns=START_NS)

    def take(self) -> RealtimeJob:
        self.registry.leases.offer(Slot(b"i", "SIM", SlotKind.REALTIME))
        (assignment,) = self.registry.leases.assign(now_ns=10**18)
        rules.assign(self.registry, assignment, Changes(), wall_ns=START_NS)
        return self.job

    def settle(self, period: int, start_ns: int, end_ns: int, *, current: bool = True) -> None:
        span = TimeRange(start_ns, end_ns)
        rules.settle(self.registry, self.job, period, span, Changes(), current=current)

    def end(self, reason: str = "lost") -> None:
        assert self.job.dispatch_id is not None
        policy = RetryPolicy(2, SECOND_NS)
        rules.end(self.registry, self.job.dispatch_id, reason, policy, Changes(), wall_ns=START_NS, now_ns=0)

    @property
    def job(self) -> RealtimeJob:
        (job,) = self.registry.jobs.values()
        return job

    @property
    def history(self) -> list[tuple[str, str, int, int]]:
        """Return what is to be fetched: subscription, client, and minutes from the start."""
        minutes = [(each, (each.span.start_ns - START_NS) // MINUTE_NS) for each in self.registry.history.values()]
        return [
            (each.subscription_id, each.client_id, first, first + (each.span.end_ns - each.span.start_ns) // MINUTE_NS)
            for each, first in minutes
        ]


def test_candles_begin_with_the_first_that_opens_after_the_acceptance_and_history_fetches_those_before() -> None:
    relay = Relay()
    accepted_ns = START_NS + 10 * MINUTE_NS + 1
    relay.start("a", RealtimeParams(True, (60,)), START_NS + 1, at_ns=accepted_ns)
    begin = relay.take().resumption()
    assert (begin.start_ns, begin.candles) == (START_NS + 1, {60: START_NS + 11 * MINUTE_NS})
    assert relay.history == [("a", "owner of a", 1, 10), ("a", "owner of a", 10, 11)]


def test_a_series_begins_no_later_than_the_exchanges_time_unless_something_is_settled() -> None:
    relay = Relay()
    relay.start("a", RealtimeParams(True, (60, 300)), at_ns=START_NS + 1)
    job = relay.take()
    relay.settle(300, START_NS + 5 * MINUTE_NS, START_NS + 10 * MINUTE_NS)
    assert not job.begin_by(START_NS + 6 * MINUTE_NS)  # its clock is ahead
    exchange_ns = START_NS - 90 * SECOND_NS
    assert job.begin_by(exchange_ns) and not job.begin_by(exchange_ns)
    begin = job.resumption()
    assert (begin.start_ns, begin.candles[60]) == (exchange_ns, START_NS - MINUTE_NS)
    assert begin.candles[300] == START_NS + 10 * MINUTE_NS
    relay.settle(0, exchange_ns, START_NS)
    job.begin_by(exchange_ns - 5)
    assert job.resumption().start_ns == START_NS


def test_a_subscription_on_the_grid_needs_no_candle_that_is_open() -> None:
    relay = Relay()
    relay.start("a", MINUTES, START_NS - 2 * MINUTE_NS)
    begin = relay.take().resumption()
    assert (begin.start_ns, begin.candles) == (START_NS, {60: START_NS})
    assert relay.history == [("a", "owner of a", -2, 0)]


@pytest.mark.parametrize(("since_minutes", "expected"), [(-5, [(-5, 0)]), (0, []), (3, [])])
def test_a_later_subscription_fetches_only_what_is_before_the_candles_of_the_job(
    since_minutes: int, expected: list[tuple[int, int]]
) -> None:
    relay = Relay()
    relay.start("a", MINUTES)
    relay.take()
    relay.settle(60, START_NS, START_NS + 7 * MINUTE_NS)
    since_ns = START_NS + since_minutes * MINUTE_NS
    relay.start("b", MINUTES, since_ns, at_ns=START_NS + 9 * MINUTE_NS)
    assert [part[2:] for part in relay.history] == expected
    assert relay.job.state is RealtimeState.RUNNING  # it may go on


def test_a_week_that_is_open_is_fetched_when_it_is_over() -> None:
    span = TimeRange(START_NS - 2 * WEEK_SECONDS * SECOND_NS, START_NS + WEEK_SECONDS * SECOND_NS)
    assert rules.closed_parts(span, WEEK_SECONDS, wall_ns=START_NS + 5) == [
        TimeRange(span.start_ns, START_NS),
        TimeRange(START_NS, span.end_ns),
    ]


def test_what_a_stopped_subscription_was_waiting_for_is_fetched_for_another_that_has_the_period() -> None:
    relay = Relay()
    relay.start("a", MINUTES)
    relay.start("t", TRADES)
    relay.start("b", RealtimeParams(False, (60, 300)))
    relay.take()
    relay.settle(60, START_NS + 2 * MINUTE_NS, START_NS + 3 * MINUTE_NS)
    assert relay.history == [("a", "owner of a", 0, 2)]
    relay.stop("a")
    assert relay.history == [("b", "owner of b", 0, 2)]
    relay.stop("b")
    assert relay.history == []


def test_trades_that_are_gone_leave_a_hole_that_nobody_fetches() -> None:
    relay = Relay()
    relay.start("a", TRADES)
    relay.take()
    relay.settle(0, START_NS + 5, START_NS + 9)
    assert relay.history == [] and relay.job.resumption().start_ns == START_NS + 9


def test_spans_of_other_dispatches_count_only_where_they_join() -> None:
    relay = Relay()
    relay.start("a", TRADES)
    relay.take()
    relay.settle(0, START_NS + 5, START_NS + 9, current=False)
    assert relay.job.resumption().start_ns == START_NS
    relay.settle(0, START_NS, START_NS + 6, current=False)
    assert relay.job.resumption().start_ns == START_NS + 6


def test_a_wait_grows_with_dispatches_that_bring_nothing_and_never_ends_the_job() -> None:
    relay = Relay()
    relay.start("a", TRADES)
    waits = []
    for number in range(8):
        relay.take()
        if number == 5:
            relay.settle(0, START_NS, START_NS + 1)
        relay.end()
        waits.append((relay.job.next_attempt_ns - START_NS) // SECOND_NS if relay.job.next_attempt_ns else 0)
    assert waits == [1, 2, 4, 8, 16, 0, 1, 2]
    assert relay.job.state is RealtimeState.WAITING and relay.job.error == "lost"


def test_a_dispatch_that_was_told_to_stop_is_no_failure_even_if_the_same_is_wanted_again() -> None:
    relay = Relay()
    relay.start("a", MINUTES)
    relay.take()
    relay.start("b", RealtimeParams(False, (300,)))
    assert relay.job.state is RealtimeState.STOPPING
    relay.job.told_to_stop = True
    relay.stop("b")
    assert relay.job.sent == relay.job.wanted and relay.job.state is RealtimeState.STOPPING
    relay.end()
    assert (relay.job.failures_in_a_row, relay.job.error, relay.job.state) == (0, "", RealtimeState.WAITING)
    assert relay.take().state is RealtimeState.RUNNING


def test_the_last_subscription_takes_the_job_with_it_at_once_or_when_the_dispatch_ends() -> None:
    relay = Relay()
    relay.start("a", MINUTES)
    relay.stop("a")
    assert not relay.registry.jobs and not relay.registry.leases.load()["SIM"].queued
    relay.start("b", MINUTES)
    relay.take()
    relay.stop("b")
    assert relay.job.state is RealtimeState.STOPPING
    relay.end()
    assert not relay.registry.jobs


def test_ingestor_of_a_dispatch_that_ended_without_it_is_told_to_stop_for_a_bounded_number_of_dispatches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(realtime_job, "MAX_FENCED", 3)
    registry = Relay().registry
    for number in range(1, 6):
        registry.fence(dispatch_id(number))
    fenced = [registry.is_fenced(dispatch_id(number)) for number in range(1, 7)]
    assert fenced == [False, False, True, True, True, False]


def test_position_keeps_the_last_trade_id_that_is_known() -> None:
    position = realtime_job.SeriesPosition(START_NS, START_NS)
    position.advance(TimeRange(START_NS, START_NS + 10), "17")
    position.advance(TimeRange(START_NS + 10, START_NS + 20), "")
    assert (position.next_ns, position.last_trade_id) == (START_NS + 20, "17")
    position.advance(TimeRange(START_NS, START_NS + 5), "3")
    assert (position.next_ns, position.last_trade_id) == (START_NS + 20, "17")


def test_a_job_of_which_nothing_was_heard_since_the_restart_of_the_relay_says_so() -> None:
    relay = Relay()
    relay.start("a", TRADES)
    job = relay.take()
    assert job.record().error == "" == relay.registry.waiting(TICKER)
    job.identity = None  # as the store reads it
    assert "the ingestor of this job has not reported" in job.record().error == relay.registry.waiting(TICKER)
    job.identity = b"i"
    assert job.record().error == ""


def test_a_dispatch_that_has_said_nothing_yet_has_the_reason_of_the_one_before() -> None:
    """One that lives for a few seconds never says why it settles nothing."""
    relay = Relay()
    relay.start("a", TRADES, at_ns=START_NS)
    job = relay.take()
    relay.settle(0, START_NS, START_NS + 5)
    job.learn(Knowledge(waiting="REST is behind"))
    job.lose("its lease has expired")
    job.assign(dispatch_id(2), b"i", wall_ns=1)
    assert job.waiting == "REST is behind"
    relay.settle(0, START_NS, START_NS + 5)
    assert job.waiting == "REST is behind", "these trades were settled before"
    for failures in (1, 2):
        job.lose("its lease has expired")
        assert job.waiting == "" == relay.registry.waiting(TICKER), "the end of the last one is its reason now"
        job.assign(dispatch_id(3), b"i", wall_ns=1)
        assert (job.waiting, job.failures_in_a_row) == ("its lease has expired", failures)
    job.learn(Knowledge(waiting="REST fails"))
    assert job.waiting == "REST fails"
    relay.settle(0, START_NS + 5, START_NS + 9)
    job.learn(Knowledge())
    assert job.waiting == ""


def test_a_job_is_found_by_its_dispatch_and_tells_its_restarts() -> None:
    relay = Relay()
    relay.start("a", TRADES)
    assert relay.registry.current_job(dispatch_id(1)) is None and relay.job.record().restarts == 0
    for restarts in range(3):
        job = relay.take()
        assert job.dispatch_id is not None and relay.registry.current_job(job.dispatch_id) is job
        assert job.record().restarts == restarts
        relay.end()
    assert relay.stop("a") is job


def test_what_a_dispatch_has_said_ends_with_it_and_the_next_begins_with_nothing() -> None:
    relay = Relay()
    relay.start("a", TRADES, at_ns=START_NS)
    job = relay.take()
    job.ingestor = "host-1"
    relay.end()
    assert (job.dispatched_ns, job.ingestor, job.sent) == (0, "", None)
    job.ingestor = "host-1"
    relay.take()
    assert (job.dispatched_ns, job.ingestor, job.sent) == (START_NS, "", job.wanted)
    relay.start("b", TRADES, at_ns=START_NS - MINUTE_NS)
    assert job.sent is None, "the trades between are not those that were asked for"


def test_the_time_of_the_last_comparison_stays_until_there_is_a_later_one() -> None:
    relay = Relay()
    relay.start("a", MINUTES, at_ns=START_NS)
    job = relay.take()
    for number, compared_ns, kept in ((0, 5, 5), (1, 0, 5), (2, 9, 9)):
        span = TimeRange(START_NS + number * MINUTE_NS, START_NS + (number + 1) * MINUTE_NS)
        rules.settle(relay.registry, job, 60, span, Changes(), current=True, compared_ns=compared_ns)
        assert job.positions[60].compared_ns == kept


def test_clients_see_only_news_of_the_current_dispatch() -> None:
    relay = Relay()
    relay.start("a", TRADES, at_ns=START_NS)
    job = relay.take()
    assert job.dispatch_id is not None
    waits = RealtimeStatus(job.dispatch_id, Knowledge(waiting="REST is behind"))
    assert [rules.learn(relay.registry, waits, Changes()) for _ in range(2)] == [job, None]
    assert rules.learn(relay.registry, waits._replace(dispatch_id=dispatch_id(99)), Changes()) is None


def test_history_before_a_subscription_ends_where_its_realtime_candles_start() -> None:
    def before(since_ns: int | None) -> TimeRange | None:
        wanted = Subscription("a", TICKER, MINUTES, since_ns, client_id="c")
        return rules.history_span(StartedSubscription(wanted, START_NS + 1, 1), 60)

    assert before(START_NS - MINUTE_NS - 1) == TimeRange(START_NS - MINUTE_NS, START_NS + MINUTE_NS)
    assert before(START_NS + MINUTE_NS) is None
    assert before(None) is None


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, ""),
        ({"subscription_id": ""}, "subscription_id"),
        ({"client_id": "a\nb"}, "client_id"),
        ({"ticker": "BTC/USDT.NOWHERE"}, "NOWHERE"),
        ({"params": RealtimeParams(include_ticks=False)}, "params ask for nothing"),
        ({"params": RealtimeParams(include_ticks=True, periods=(60, 61))}, "61"),
        ({"since_ns": START_NS}, ""),
        ({"since_ns": START_NS + 1}, "is not between 1 and now"),
        ({"since_ns": 0}, "is not between 1 and now"),
    ],
)
def test_a_subscription_that_cannot_be_served_is_refused_with_its_field(changed: dict[str, Any], refusal: str) -> None:
    wanted = replace(Subscription("a", TICKER, MINUTES, client_id="c"), **changed)
    with pytest.raises(InvalidRequest, match=refusal) if refusal else nullcontext():
        rules.check_subscription(wanted, ["SIM"], wall_ns=START_NS)


def test_a_dispatch_that_was_not_sent_is_not_counted() -> None:
    relay = Relay()
    relay.start("a", TRADES, at_ns=START_NS)
    relay.registry.leases.offer(Slot(b"i", "SIM", SlotKind.REALTIME))
    (assignment,) = relay.registry.leases.assign(now_ns=0)
    rules.assign(relay.registry, assignment, Changes(), wall_ns=START_NS)
    assert relay.job.dispatches == 1
    rules.unsent(relay.registry, assignment, Changes(), wall_ns=START_NS)
    assert (relay.job.dispatches, relay.job.dispatch_id, relay.job.failures_in_a_row) == (0, None, 0)


def test_a_span_is_provisional_for_whole_candles_until_the_table_has_what_came_later() -> None:
    relay = Relay()
    relay.start("a", TRADES, at_ns=START_NS)
    job, hour = relay.job, TimeRange(START_NS, START_NS + 60 * MINUTE_NS)
    span = TimeRange(START_NS + MINUTE_NS + 1, START_NS + 2 * MINUTE_NS + 1)
    doubt = ProvisionalSpan(span, ProvisionalReason.ONE_SOURCE)
    job.knowledge = Knowledge(provisional=(doubt,))
    assert job.provisional_in(0, hour) == [span]
    assert job.provisional_in(60, hour) == [TimeRange(START_NS + MINUTE_NS, START_NS + 3 * MINUTE_NS)]
    job.closing[doubt] = span.end_ns
    assert not job.landed(TimeRange(START_NS, span.end_ns)) and job.provisional_in(0, hour)
    assert job.landed(TimeRange(START_NS, span.end_ns + 1)) and not job.provisional_in(0, hour)
