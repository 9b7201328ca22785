"""Random steps of clients, ingestors, log and pipeline, with kills of the relay between any two of them.

A model beside the state gives the expected result of each step.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dexorder_common.lake.coverage import Order
from dexorder_common.model.history import (
    FinalResult,
    FinalStatus,
    HistoryRequest,
    Outcome,
    PageResult,
    RequestStatus,
)
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import split_by_periods
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.state import coverage, dispatches, planner
from dexorder_relay.state.changes import Changes, RequestEnded
from dexorder_relay.state.history import HistoryState, progress, timed_out
from dexorder_relay.state.job import Job, Phase, RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.request import LiveRequest, decide
from dexorder_relay.state.workers import Slot, SlotKind
from dexorder_relay.store import loading, schema
from dexorder_relay.store.changes import statements
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import MINUTE_NS, at, counts, dispatch_all
from tests.unit.services.relay.state.state_model import (
    ALL_SERIES,
    BACKOFF_NS,
    EXCHANGES,
    HOUR_NS,
    LEASE_NS,
    MAX_ATTEMPTS,
    MAX_SLOTS,
    TIMEOUT_NS,
    Model,
    Worker,
    dump,
)

EVER = TimeRange(0, MAX_TIME_NS)
markets, exchanges = st.sampled_from(ALL_SERIES), st.sampled_from(EXCHANGES)


class StateMachine(RuleBasedStateMachine):
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).steps -= 1  # invariants are checked once before the first step
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript("".join(schema.STEPS))
        self.numbers = itertools.count(1)
        self.state = self.new_state()
        self.model = Model()
        self.now_ns = 0
        self.wall_ns = 10 * HOUR_NS
        self.requests = itertools.count(1)
        self.identities = itertools.count(1)
        self.alive: list[bytes] = []
        self.workers: list[Worker] = []
        self.fenced: set[str] = set()
        self.submitted: dict[str, HistoryRequest] = {}
        self.ended: dict[str, RequestStatus] = {}
        self.excused: list[tuple[Series, TimeRange]] = []

    def new_state(self) -> HistoryState:
        leases = Leases(lease_ns=LEASE_NS, new_id=lambda: dispatch_id(next(self.numbers)), max_slots=MAX_SLOTS)
        return HistoryState(leases, RetryPolicy(MAX_ATTEMPTS, BACKOFF_NS), job_periods=8, page_periods=3)

    def save(self, changes: Changes) -> None:
        for sql, values in statements(changes):
            self.connection.execute(sql, values)

    # ---- clients ---------------------------------------------------------------------------------------------------

    @rule(series=markets, start=st.integers(0, 30), length=st.integers(1, 30), limit=st.none() | st.integers(1, 12))
    def submit(self, series: Series, start: int, length: int, limit: int | None) -> None:
        request_id = f"r{next(self.requests)}"
        asked = HistoryRequest(request_id, series.ticker, at(start), at(start + length), 60, limit, "me")
        self.submitted[request_id] = asked
        self.plan(lambda changes: planner.accept(self.state, asked, changes, wall_ns=self.wall_ns, now_ns=self.now_ns))

    def plan(self, change: Any) -> None:
        known, changes = set(self.state.jobs), Changes()
        change(changes)
        self.save(changes)
        for number in sorted(set(self.state.jobs) - known):
            self.model.queues[self.state.jobs[number].series.exchange].append(number)

    @precondition(lambda self: self.state.requests)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.cut_short(data.draw(st.sampled_from(list(self.state.requests.values()))), RequestStatus.ERROR)

    def cut_short(self, request: LiveRequest, status: RequestStatus) -> None:
        missing = self.state.missing(request, request.planned_end_ns)
        self.finish(request, Outcome(status, "", request.planned_end_ns, self.wall_ns, missing=tuple(missing)))

    @precondition(lambda self: any(map(self.state.is_ready, self.state.requests.values())))
    @rule(data=st.data())
    def decide(self, data: Any) -> None:
        """Decide as the OutcomeDecider does, with a table that equals coverage."""
        request = data.draw(st.sampled_from([r for r in self.state.requests.values() if self.state.is_ready(r)]))
        self.decide_one(request)

    def decide_one(self, request: LiveRequest) -> None:
        asked, end_ns = request.request, request.planned_end_ns
        opens = self.rows(asked.series, request.planned)
        if asked.limit is not None and len(opens) >= asked.limit:
            opens = opens[: asked.limit]
            end_ns = opens[-1] + MINUTE_NS
        missing = self.state.missing(request, end_ns)
        lacking = 0 if asked.limit is None else asked.limit - len(opens)
        if not missing and lacking and end_ns < asked.end_ns:
            self.plan(lambda changes: planner.widen(self.state, request, lacking, changes, now_ns=self.now_ns))
            return
        excused = [span for series, span in self.excused if series == asked.series]
        assert not subtract(missing, excused), "missing, and nobody refused it or gave it up"
        outcome = decide(
            end_ns=end_ns,
            missing=missing,
            job_errors=self.state.errors(request),
            row_count=len(opens),
            completed_ns=self.wall_ns,
        )
        self.finish(request, outcome)

    def rows(self, series: Series, span: TimeRange) -> list[int]:
        coverage = self.state.coverage[series]
        there = subtract(coverage.covered.within(span), coverage.empty.within(span))
        return [open_ns for part in there for open_ns in range(part.start_ns, part.end_ns, MINUTE_NS)]

    def finish(self, request: LiveRequest, outcome: Any) -> None:
        request_id, changes = request.request.request_id, Changes()
        assert request_id not in self.ended
        self.ended[request_id] = outcome.status
        changes.append(RequestEnded(request.request, outcome, progress(self.state, request, outcome.end_ns)))
        planner.remove(self.state, request, changes)
        self.save(changes)
        self.notice_what_left()

    @rule(series=markets, start=st.integers(0, 30), length=st.integers(1, 20))
    def take_back(self, series: Series, start: int, length: int) -> None:
        """Retract coverage of a range; requests that wait for it continue to wait."""
        span, before = TimeRange(at(start), at(start + length)), dump(self.state)
        order = Order(next(self.numbers), 0)
        self.plan(lambda changes: self.take_back_now(series, span, order, changes))
        assert not self.state.coverage[series].covered.within(span)
        assert before[1].keys() == self.state.requests.keys()
        self.model.note(self.model.taken_back, series, [span])
        self.notice_what_left()

    def take_back_now(self, series: Series, span: TimeRange, order: Order, changes: Changes) -> None:
        coverage.retract(self.state, series, [span], order, changes)
        planner.replan(self.state, series, [span], changes)

    # ---- ingestors -------------------------------------------------------------------------------------------------

    @rule(exchange=exchanges, kind=st.sampled_from(list(SlotKind)), slots=st.integers(1, 4), data=st.data())
    def offer(self, exchange: str, kind: SlotKind, slots: int, data: Any) -> None:
        identity = data.draw(st.sampled_from([*self.alive, b"new"]))
        if identity == b"new":
            identity = b"%d" % next(self.identities)
            self.alive.append(identity)
        for _ in range(slots):
            self.offer_one(Slot(identity, exchange, kind))

    def offer_one(self, slot: Slot) -> None:
        room = self.model.offered(slot.identity) < MAX_SLOTS
        assert self.state.leases.offer(slot) == room
        if room:
            self.model.slots[slot.exchange].append(slot)

    @precondition(lambda self: any(self.model.queues.values()) and any(self.model.slots.values()))
    @rule(cancelled=st.none() | st.integers(0, 5))
    def dispatch(self, cancelled: int | None) -> None:
        """Dispatch as the engine does: on disk, then sent; meanwhile a request may be cancelled."""
        expected, changes = self.model.assign(self.now_ns), Changes()
        made = dispatch_all(self.state, changes, wall_ns=self.wall_ns, now_ns=self.now_ns)
        self.save(changes)
        assert sorted((a.job, a.slot) for a, _ in made) == sorted(expected)
        for exchange in EXCHANGES:
            of = [a.job for a, _ in made if a.slot.exchange == exchange]
            assert of == [job for job, slot in expected if slot.exchange == exchange]
        for assign, sent in made:
            assert assign.dispatch_id not in self.model.current and assign.dispatch_id not in self.fenced
            assert not self.state.coverage[sent.series].covered.within(sent.span)
            self.model.current[assign.dispatch_id], self.model.sent[assign.dispatch_id] = assign.job, sent
            self.model.deadline_ns[assign.dispatch_id] = self.now_ns + LEASE_NS
        if cancelled is not None and cancelled < len(self.state.requests):
            self.cut_short(list(self.state.requests.values())[cancelled], RequestStatus.ERROR)
        for assign, sent in made:
            if self.state.leases.job_of(assign.dispatch_id) is None:
                self.offer_one(assign.slot)
            elif assign.slot.identity in self.alive:
                self.workers.append(Worker(sent, assign.slot.identity, split_by_periods(sent.span, 60, 3)))
            else:
                self.unreachable(assign.slot.identity)
                back = Changes()
                dispatches.unsent(self.state, assign, back)
                self.save(back)
                self.give_up(assign.dispatch_id, front=True)

    def unreachable(self, identity: bytes) -> None:
        assert self.state.leases.drop(identity) == self.model.offered(identity)
        for exchange, slots in self.model.slots.items():
            self.model.slots[exchange] = [slot for slot in slots if slot.identity != identity]

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def ingestor_dies(self, data: Any) -> None:
        """The broker is not told: the next send to the ingestor fails, and its leases expire."""
        identity = data.draw(st.sampled_from(self.alive))
        self.alive.remove(identity)
        for worker in self.workers:
            worker.idle |= worker.identity == identity

    @precondition(lambda self: self.at_work())
    @rule(data=st.data(), reported=st.booleans(), empty=st.booleans())
    def page(self, data: Any, reported: bool, empty: bool) -> None:
        """An ingestor writes a page, and may die before it reports it. Fenced dispatches write late pages."""
        self.produce(data.draw(st.sampled_from(self.at_work())), reported=reported, empty=empty)

    def at_work(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.idle]

    def produce(self, worker: Worker, *, reported: bool, empty: bool) -> None:
        job_id, current = worker.job_id, worker.job_id in self.model.current
        if not worker.todo:
            worker.log.append(FinalResult(job_id, FinalStatus.OK))
            worker.idle = True
            if reported:
                self.completes(worker)
            return
        span = worker.todo.pop(0)
        holes = (span,) if empty else ()
        worker.log.append(PageResult(job_id, worker.dispatch.series, span, holes))
        if not reported:
            worker.idle = True
            return
        before, changes = dump(self.state), Changes()
        job = dispatches.page(self.state, job_id, span, holes, changes, now_ns=self.now_ns)
        self.save(changes)
        assert (job is not None) == current
        if current:
            self.model.settled[job_id].append(span)
            self.model.renew(self.now_ns, job_id)
        else:
            worker.idle = True
            assert dump(self.state) == before and not statements(changes)

    @precondition(lambda self: self.fenced)
    @rule(data=st.data(), status=st.sampled_from(FinalStatus))
    def final_of_a_fenced_dispatch(self, data: Any, status: FinalStatus) -> None:
        """The final record of a dispatch that is no longer current changes nothing, whatever its status."""
        final = FinalResult(data.draw(st.sampled_from(sorted(self.fenced))), status, "too late")
        before, changes = dump(self.state), Changes()
        dispatches.report(self.state, [], [final], changes, wall_ns=0, now_ns=self.now_ns)
        assert dump(self.state) == before and not statements(changes)

    def completes(self, worker: Worker) -> None:
        before, changes = dump(self.state), Changes()
        current = worker.job_id in self.model.current
        assert dispatches.produced(self.state, worker.job_id, changes) == current
        self.save(changes)
        self.model.deadline_ns.pop(worker.job_id, None)
        assert current or (dump(self.state) == before and not statements(changes))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), what=st.sampled_from(["heartbeat", "complete", "fail", "reject", "error"]))
    def ingestor_says(self, data: Any, what: str) -> None:
        """A message about any dispatch so far, from any ingestor."""
        current = [worker for worker in self.workers if worker.job_id in self.model.current]
        worker = data.draw(st.sampled_from(current or self.workers) | st.sampled_from(self.workers))
        job_id, job = worker.job_id, self.model.current.get(worker.job_id)
        if what == "heartbeat":
            assert self.state.leases.renew(job_id, now_ns=self.now_ns) == (job is not None)
            self.model.renew(self.now_ns, job_id)
        elif what == "complete":
            if worker.log and isinstance(worker.log[-1], FinalResult):
                self.completes(worker)
        elif what == "error":
            if not worker.idle:
                worker.log.append(FinalResult(job_id, FinalStatus.ERROR, "the exchange has no such symbol"))
                worker.idle = True
        else:
            self.give_back(worker, rejected_by=worker.identity if what == "reject" else None)
            if worker.identity in self.alive:  # its slot is free again
                self.offer_one(Slot(worker.identity, worker.dispatch.series.exchange, SlotKind.ANY))

    def give_back(self, worker: Worker, *, rejected_by: bytes | None) -> None:
        worker.idle, job = True, self.model.current.get(worker.job_id)
        before = dump(self.state)
        if job is None:
            changes = Changes()
            assert (
                dispatches.lose(self.state, worker.job_id, "x", changes, now_ns=self.now_ns, rejected_by=rejected_by)
                is None
            )
            assert dump(self.state) == before and not statements(changes)
            return
        if rejected_by is not None:
            self.model.rejected_by.setdefault(job, set()).add(rejected_by)
        self.lose([worker.job_id], rejected_by)

    # ---- the pipeline ----------------------------------------------------------------------------------------------

    @precondition(lambda self: any(worker.log for worker in self.workers))
    @rule(data=st.data(), records=st.integers(1, 4), repeat=st.booleans(), refuse=st.integers(0, 3))
    def commit(self, data: Any, records: int, repeat: bool, refuse: int) -> None:
        """Commit records of a dispatch in order; sometimes from the start again, sometimes with an invalid page."""
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.log]))
        self.report(worker, records, repeat=repeat, refuse=refuse == 0)

    def report(self, worker: Worker, records: int, *, repeat: bool = False, refuse: bool = False) -> None:
        first = 0 if repeat else worker.read
        until = min(worker.read + records, len(worker.log))
        if refuse and worker.read < until and isinstance(page := worker.log[worker.read], PageResult):
            worker.log[worker.read] = PageResult(page.dispatch_id, page.series, page.span, refused="bad header")
            self.excused.append((page.series, page.span))
        read, worker.read = worker.log[first:until], max(worker.read, until)
        pages = [each for each in read if isinstance(each, PageResult)]
        finals = [each for each in read if isinstance(each, FinalResult)]
        job = self.model.current.get(worker.job_id)
        before, changes, series = dump(self.state), Changes(), worker.dispatch.series
        lacked = self.state.coverage[series].covered.holes(EVER)
        dispatches.report(self.state, pages, finals, changes, wall_ns=0, now_ns=self.now_ns)
        self.save(changes)
        self.model.note(self.model.settled, series, subtract(lacked, self.state.coverage[series].covered.holes(EVER)))
        if finals and job is None and not pages:
            assert dump(self.state) == before
        if finals and job is not None:
            self.model.failures_in_a_row[job] = 0
            if finals[0].status is FinalStatus.ERROR:
                self.excused.append((worker.dispatch.series, self.state.jobs[job].span))
            self.give_up(worker.job_id, front=self.state.jobs[job].phase is Phase.OPEN)
        self.notice_what_left()

    # ---- time and restarts -----------------------------------------------------------------------------------------

    @rule(ns=st.integers(1, 10))
    def wait(self, ns: int) -> None:
        self.now_ns += ns
        expected = self.model.expired(self.now_ns)
        assert self.state.leases.expired(now_ns=self.now_ns) == expected
        self.lose(expected)

    @rule(what=st.sampled_from(["long_silence", "relay_slept", "relay_is_killed", "wall_clock_jumps"]))
    def rarely(self, what: str) -> None:
        getattr(self, what)()

    def long_silence(self) -> None:
        """Nothing happens for a long time: requests without progress time out."""
        self.wait(TIMEOUT_NS // 2)
        for request in list(timed_out(self.state, TIMEOUT_NS, now_ns=self.now_ns)):
            self.cut_short(request, RequestStatus.TIMEOUT)

    def wall_clock_jumps(self) -> None:
        """The wall clock jumps by an hour: leases and timeouts use the monotonic clock, so nothing changes."""
        self.wall_ns += HOUR_NS if self.wall_ns < 10 * HOUR_NS else -2 * HOUR_NS
        assert self.state.leases.expired(now_ns=self.now_ns) == []

    def relay_slept(self) -> None:
        self.now_ns += 10 * LEASE_NS
        self.state.leases.renew_all(now_ns=self.now_ns)
        self.model.renew(self.now_ns, *self.model.current)
        assert self.state.leases.expired(now_ns=self.now_ns) == []

    def relay_is_killed(self) -> None:
        """Running jobs keep their dispatch ids; ingestors notice the loss and offer slots under new identities."""
        self.state = self.loaded()
        self.model.restart(self.now_ns)
        self.alive.clear()

    def loaded(self) -> HistoryState:
        state = self.new_state()
        loading.fill_state(self.connection, state, self.now_ns)
        return state

    # ---- the model follows -----------------------------------------------------------------------------------------

    def lose(self, job_ids: Iterable[str], rejected_by: bytes | None = None) -> None:
        changes = Changes()
        for job_id in job_ids:
            number, made_progress = self.model.current[job_id], self.model.made_progress(job_id)
            job = dispatches.lose(self.state, job_id, "x", changes, now_ns=self.now_ns, rejected_by=rejected_by)
            assert job is not None and (job.id, not job.failures_in_a_row) == (number, made_progress)
            self.model.failures_in_a_row[number] = 0 if made_progress else self.model.failures_in_a_row[number] + 1
            if not made_progress:
                wait_ns = BACKOFF_NS << (self.model.failures_in_a_row[number] - 1)
                self.model.not_before_ns[number] = self.now_ns + wait_ns
            given_up = job.phase is Phase.ENDED
            assert given_up == (self.model.failures_in_a_row[number] >= MAX_ATTEMPTS)
            if given_up:
                self.excused.append((job.series, job.span))
            self.give_up(job_id, front=not given_up)
        self.save(changes)

    def give_up(self, job_id: str, *, front: bool) -> None:
        job = self.model.current.pop(job_id)
        self.model.deadline_ns.pop(job_id, None)
        self.fenced.add(job_id)
        if front and self.state.leases.is_queued(job):  # not when all its pages are in Kafka
            self.model.queues[self.state.jobs[job].series.exchange].insert(0, job)

    def notice_what_left(self) -> None:
        """Remove jobs from the model that were settled, or that no request waits for."""
        for exchange, queue in self.model.queues.items():
            self.model.queues[exchange] = [job for job in queue if self.state.leases.is_queued(job)]
        for job_id, job in list(self.model.current.items()):
            if job not in self.state.jobs:
                del self.model.current[job_id]
                self.model.deadline_ns.pop(job_id, None)
                self.fenced.add(job_id)
        for of_jobs in (self.model.not_before_ns, self.model.failures_in_a_row, self.model.rejected_by):
            for job in of_jobs.keys() - self.state.jobs:  # a number may be given again after a restart
                del of_jobs[job]

    # ---- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def step_is_counted(self) -> None:
        type(self).steps += 1

    @invariant()
    def the_file_says_what_memory_says(self) -> None:
        assert dump(self.loaded()) == dump(self.state)

    @invariant()
    def a_job_id_is_current_for_one_dispatch_and_a_job_has_one(self) -> None:
        held = {job_id: self.state.leases.job_of(job_id) for job_id in self.model.current}
        assert held == self.model.current and len(set(held.values())) == len(held)
        assert not any(map(self.state.leases.job_of, self.fenced))

    @invariant()
    def queues_and_slots_hold_what_the_model_says(self) -> None:
        queued = {number for number in self.state.jobs if self.state.leases.is_queued(number)}
        assert sorted(queued) == sorted(itertools.chain(*self.model.queues.values()))
        assert counts(self.state.leases)[2] == sum(map(len, self.model.slots.values()))

    @invariant()
    def no_range_is_fetched_twice_at_once(self) -> None:
        """Neither by dispatches, nor by a dispatch and a job that is queued, nor by two of these."""
        jobs = [job for job in self.state.jobs.values() if job.phase is Phase.OPEN]
        wanted = [(job.series, self.to_fetch(job)) for job in jobs]
        for (series, one), (other, two) in itertools.combinations(wanted, 2):
            assert series != other or subtract(one, two) == one

    def to_fetch(self, job: Job) -> list[TimeRange]:
        """Return what the current dispatch of a job fetches, or its next one."""
        if job.dispatch_id is None:
            return job.to_fetch(self.state.covered(job.series))
        return subtract([job.sent] if job.sent else [], [*job.acked, *job.handled])

    @invariant()
    def no_period_of_an_unfinished_request_is_forgotten(self) -> None:
        for request in self.state.requests.values():
            series = request.request.series
            held = [part for number in request.jobs for part in self.accounted(self.state.jobs[number])]
            assert not subtract(self.state.coverage[series].covered.holes(request.planned), held)

    def accounted(self, job: Job) -> list[TimeRange]:
        """Return the ranges of a job that are queued, running, in Kafka, refused, or given up."""
        covered, leases = self.state.coverage[job.series].covered, self.state.leases
        parts = [*job.in_pipeline(covered), *job.refused, *job.handled]
        if job.phase is Phase.OPEN:
            queued, held = leases.is_queued(job.id), job.id in self.model.current.values()
            assert queued != held
            return [*parts, *job.to_fetch(covered), *([job.sent] if held and job.sent else [])]
        return [job.span] if job.phase is Phase.ENDED and job.error else parts

    @invariant()
    def attempts_are_counted_and_capped(self) -> None:
        for number, job in self.state.jobs.items():
            if job.phase is Phase.OPEN:
                assert job.failures_in_a_row == self.model.failures_in_a_row[number] < MAX_ATTEMPTS

    def teardown(self) -> None:
        """Let ingestors finish their work and the pipeline read everything: every request ends."""
        for _ in range(300):
            if not self.state.requests:
                break
            for worker in list(self.workers):
                while not worker.idle:
                    self.produce(worker, reported=True, empty=False)
                self.report(worker, len(worker.log))
            for request in [r for r in self.state.requests.values() if self.state.is_ready(r)]:
                self.decide_one(request)
            self.alive = [exchange.encode() for exchange in EXCHANGES]
            for exchange, identity in zip(EXCHANGES, self.alive, strict=True):  # offers are counted by identity
                self.offer_one(Slot(identity, exchange, SlotKind.HISTORICAL))
            self.dispatch(None)
            self.wait(4)
        assert not self.state.requests and not self.state.jobs
        assert self.ended.keys() == self.submitted.keys()
        reported = self.connection.execute("SELECT request_id, topic FROM notifications").fetchall()
        assert sorted(reported) == sorted((i, topic) for i, asked in self.submitted.items() for topic in asked.topics)
        for table in ("jobs", "dispatches WHERE job_id NOT NULL", "attachments", "ranges WHERE owner LIKE 'job:%'"):
            assert self.connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        self.connection.close()
