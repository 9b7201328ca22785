"""Random steps of clients, ingestors and a relay that is killed: no series of a subscription ever has a hole.

What a subscription asks for is, up to the position of its series, in Kafka, requested as history, or gone for good.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dexorder_common.model.periods import TRADES_PERIOD, ceil_to_grid, floor_to_grid
from dexorder_common.model.realtime import (
    Knowledge,
    ProvisionalReason,
    ProvisionalSpan,
    RealtimeParams,
    RealtimeState,
    RealtimeStatus,
    StartedSubscription,
    Subscription,
    UncheckedCandles,
)
from dexorder_common.model.time_range import RangeSet, TimeRange, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state import realtime as rules
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.workers import Slot, SlotKind
from dexorder_relay.store import schema
from dexorder_relay.store.changes import statements
from dexorder_relay.store.loading import fill_registry, read_realtime_jobs
from tests.examples import few
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import START_NS, TICKER

NUMBERS = itertools.count(1)
PERIODS = (60, 300)
POLICY = RetryPolicy(3, 0)


@dataclass
class Worker:
    """One dispatch at its ingestor: where it is in each series, and spans in Kafka that it has not reported."""

    dispatch_id: str
    params: RealtimeParams
    next_ns: dict[int, int]
    unreported: list[tuple[int, TimeRange]] = field(default_factory=list)


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript("".join(schema.STEPS))
        self.now_ns = START_NS
        self.ids = itertools.count(1)
        self.workers: list[Worker] = []
        self.kafka: defaultdict[int, RangeSet] = defaultdict(RangeSet)
        self.lost = RangeSet()
        self.load()

    def load(self) -> None:
        leases = Leases(lease_ns=15, new_id=lambda: dispatch_id(next(NUMBERS)))
        self.state = HistoryState(leases, POLICY, job_periods=8, page_periods=3)
        self.registry = Registry(leases, self.new_id)
        fill_registry(self.connection, self.registry, self.state, 0)

    def save(self, changes: Changes) -> None:
        for sql, values in statements(changes):
            self.connection.execute(sql, values)

    def new_id(self) -> str:
        return f"id{next(self.ids)}"

    # ---- steps -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.integers(1, 400))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS

    @rule(
        ticks=st.booleans(),
        periods=st.sets(st.sampled_from(PERIODS)),
        since_seconds=st.none() | st.integers(0, 2_000),
    )
    def start(self, ticks: bool, periods: set[int], since_seconds: int | None) -> None:
        params = RealtimeParams(ticks or not periods, tuple(sorted(periods)))
        since_ns = None if since_seconds is None else self.now_ns - since_seconds * SECOND_NS
        wanted = Subscription(self.new_id(), TICKER, params, since_ns)
        changes = Changes()
        started = StartedSubscription(wanted, self.now_ns, self.registry.last_sequence + 1)
        rules.start(self.registry, started, self.state.new_job_id, changes)
        self.save(changes)

    @precondition(lambda self: self.registry.subscriptions)
    @rule(data=st.data())
    def stop(self, data: Any) -> None:
        subscription_id = data.draw(st.sampled_from(sorted(self.registry.subscriptions)))
        changes = Changes()
        rules.stop(self.registry, subscription_id, changes, wall_ns=self.now_ns)
        self.save(changes)

    @initialize()
    def begin(self) -> None:
        """A market is watched from the beginning."""
        self.start(ticks=True, periods={60}, since_seconds=None)

    @rule()
    def take(self) -> None:
        self.registry.leases.offer(Slot(b"i", "SIM", SlotKind.REALTIME))
        changes = Changes()
        for assignment in self.registry.leases.assign(now_ns=self.now_ns):
            dispatch = rules.assign(self.registry, assignment, changes, wall_ns=self.now_ns)
            begin = self.registry.jobs[assignment.job].resumption()
            trades = {TRADES_PERIOD: begin.start_ns} if dispatch.params.include_ticks else {}
            self.workers.append(Worker(dispatch.dispatch_id, dispatch.params, trades | begin.candles))
            assert set(self.workers[-1].next_ns) == set(dispatch.params.series)
        self.save(changes)

    @precondition(lambda self: self.registry.subscriptions)
    @rule(
        data=st.data(),
        seconds=st.integers(1, 400),
        skipped=st.sampled_from([0, 0, 0, 1, 3]),
        reported=st.sampled_from([True, True, False]),
    )
    def work(self, data: Any, seconds: int, skipped: int, reported: bool) -> None:
        """A worker, fenced or not, puts what is settled into Kafka; it may find that something is gone."""
        self.take()
        self.wait(seconds)
        if not self.workers:  # the dispatch is one from before a restart
            return
        worker = self.workers[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(self.workers))
        for period, next_ns in worker.next_ns.items():
            start_ns = next_ns + skipped * (period or 7) * SECOND_NS
            end_ns = floor_to_grid(self.now_ns, period)
            if start_ns < end_ns:
                span = TimeRange(start_ns, end_ns)
                if period == TRADES_PERIOD:
                    self.lost.add(TimeRange(next_ns, start_ns))
                self.kafka[period].add(span)
                worker.next_ns[period] = end_ns
                worker.unreported.append((period, span))
        if reported:
            self.report(worker)

    def report(self, worker: Worker) -> None:
        job, changes = self.registry.current_job(worker.dispatch_id), Changes()
        if job is None:
            self.workers.remove(worker)
            return
        while worker.unreported:
            period, span = worker.unreported.pop(0)
            rules.settle(self.registry, job, period, span, changes, current=True)
        self.save(changes)

    @precondition(lambda self: any(each.positions for each in self.registry.jobs.values()))
    @rule(data=st.data())
    def commit(self, data: Any) -> None:
        """Spark reports something that Kafka has, from whichever dispatch."""
        (job,) = self.registry.jobs.values()
        period = data.draw(st.sampled_from(sorted(job.positions)))
        if spans := list(self.kafka[period]):
            changes = Changes()
            span = data.draw(st.sampled_from(spans))
            rules.settle(self.registry, job, period, span, changes, current=False)
            self.save(changes)

    @precondition(lambda self: any(each.dispatch_id for each in self.registry.jobs.values()))
    @rule()
    def end(self) -> None:
        """The dispatch is over: told to stop, or its ingestor is lost. What it has not reported is in Kafka."""
        (job,) = self.registry.jobs.values()
        assert job.dispatch_id is not None
        changes = Changes()
        rules.end(self.registry, job.dispatch_id, "lost", POLICY, changes, wall_ns=self.now_ns, now_ns=self.now_ns)
        self.save(changes)

    @precondition(lambda self: any(each.dispatch_id for each in self.registry.jobs.values()))
    @rule(seconds=st.lists(st.integers(1, 400), max_size=2, unique=True), periods=st.sets(st.sampled_from(PERIODS)))
    def learn(self, seconds: list[int], periods: set[int]) -> None:
        """The dispatch says which spans have one witness, and which candles no comparison has confirmed."""
        (job,) = self.registry.jobs.values()
        assert job.dispatch_id is not None
        spans = [TimeRange(self.now_ns - each * SECOND_NS, self.now_ns) for each in sorted(seconds, reverse=True)]
        provisional = tuple(ProvisionalSpan(each, ProvisionalReason.ONE_SOURCE) for each in spans)
        unchecked = tuple(UncheckedCandles(period, span, 0, None) for period in sorted(periods) for span in spans)
        changes = Changes()
        rules.learn(self.registry, RealtimeStatus(job.dispatch_id, Knowledge(provisional, unchecked)), changes)
        self.save(changes)

    @rule()
    def flush(self) -> None:
        self.save(rules.flush(self.registry))
        assert not self.registry.dirty

    @rule()
    def kill(self) -> None:
        """The relay starts again with what is on disk."""
        before = {each.dispatch_id for each in self.registry.jobs.values()}, set(self.registry.subscriptions)
        history, sequence = set(self.registry.history), self.registry.last_sequence
        self.load()
        assert before == (
            {each.dispatch_id for each in self.registry.jobs.values()},
            set(self.registry.subscriptions),
        )
        assert (history, sequence) == (set(self.registry.history), self.registry.last_sequence)

    # ---- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def one_job_while_there_is_something_to_do(self) -> None:
        jobs = list(self.registry.jobs.values())
        assert len(jobs) <= 1 and bool(jobs) >= bool(self.registry.subscriptions)
        for job in jobs:
            assert job.subscriptions == self.registry.subscriptions
            assert job.subscriptions or job.dispatch_id
            assert set(job.positions) == set(job.wanted.series)
            if job.state is RealtimeState.RUNNING:
                assert job.sent == job.wanted

    @invariant()
    def nothing_is_skipped(self) -> None:
        requested: defaultdict[int, list[TimeRange]] = defaultdict(list)
        for period, start_ns, end_ns in self.connection.execute(
            "SELECT period_seconds, start_ns, end_ns FROM realtime_history"
        ):
            requested[period].append(TimeRange(start_ns, end_ns))
        for job in self.registry.jobs.values():
            for started in job.subscriptions.values():
                for period in started.subscription.params.series:
                    position = job.positions[period]
                    if period == TRADES_PERIOD:
                        begin_ns, elsewhere = started.begin_ns, list(self.lost)
                    else:
                        begin_ns, elsewhere = ceil_to_grid(started.begin_ns, period), requested[period]
                    assert position.from_ns <= begin_ns or period != TRADES_PERIOD
                    if begin_ns < position.next_ns:
                        asked = TimeRange(begin_ns, position.next_ns)
                        assert not subtract([asked], [*self.kafka[period], *elsewhere])

    @invariant()
    def the_disk_is_never_ahead(self) -> None:
        stored = {job.id: job for job in read_realtime_jobs(self.connection)}
        assert stored.keys() == self.registry.jobs.keys()
        for job_id, job in self.registry.jobs.items():
            assert stored[job_id].dispatch_id == job.dispatch_id and stored[job_id].sent == job.sent
            assert stored[job_id].positions.keys() == job.positions.keys()
            assert stored[job_id].knowledge.provisional == job.knowledge.provisional
            assert stored[job_id].knowledge.unchecked == job.knowledge.unchecked
            for period, position in stored[job_id].positions.items():
                assert position.next_ns <= job.positions[period].next_ns
                assert position.from_ns == job.positions[period].from_ns


Life.TestCase.settings = settings(max_examples=few(60), stateful_step_count=40, deadline=None)
TestLife = Life.TestCase


def test_candles_of_a_period_that_nobody_watches_any_more_are_forgotten_on_disk_too() -> None:
    life = Life()
    life.begin()
    life.take()
    life.learn(seconds=[1], periods={60})
    (job,) = life.registry.jobs.values()
    changes = Changes()
    rules.stop(life.registry, next(iter(life.registry.subscriptions)), changes, wall_ns=life.now_ns)
    life.save(changes)
    assert job.knowledge.unchecked == () and job.knowledge.provisional
    life.the_disk_is_never_ahead()
