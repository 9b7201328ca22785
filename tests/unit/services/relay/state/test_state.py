"""Random steps of ingestors, a log and a pipeline; after every step the file equals memory, so a kill loses nothing.

At the end all work is finished, and every request ends with nothing missing.
"""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dexorder_common.model.history import Dispatch, FinalResult, FinalStatus, HistoryRequest, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import split_by_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.state import dispatches, planner
from dexorder_relay.state.changes import Changes, RequestEnded
from dexorder_relay.state.history import HistoryState, progress
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases, Slot, SlotKind
from dexorder_relay.state.request import decide
from dexorder_relay.store import loading, schema
from dexorder_relay.store.changes import statements
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import TICKER, at, dispatch_all

SERIES = Series(TICKER, 60)
NUMBERS = itertools.count(1)


def new_state() -> HistoryState:
    leases = Leases(lease_ns=15, new_id=lambda: dispatch_id(next(NUMBERS)))
    return HistoryState(leases, RetryPolicy(1_000, 0), job_periods=8, page_periods=3)


@dataclass
class Worker:
    """One dispatch at its ingestor: pages still to produce, and its records in the log."""

    dispatch: Dispatch
    todo: list[TimeRange]
    log: list[TimeRange] = field(default_factory=list)
    finished: bool = False
    read: int = 0
    final_read: bool = False


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript("".join(schema.STEPS))
        self.state = new_state()
        self.now_ns = 0
        self.next_request = 0
        self.workers: list[Worker] = []
        self.submitted: set[str] = set()
        self.ended: dict[str, list[TimeRange]] = {}

    def save(self, changes: Changes) -> None:
        for sql, values in statements(changes):
            self.connection.execute(sql, values)

    # ---- steps -----------------------------------------------------------------------------------------------------

    @rule(start=st.integers(0, 30), length=st.integers(1, 30), limit=st.none() | st.integers(1, 12))
    def submit(self, start: int, length: int, limit: int | None) -> None:
        self.next_request += 1
        request_id = f"r{self.next_request}"
        self.submitted.add(request_id)
        request = HistoryRequest(request_id, TICKER, at(start), at(start + length), 60, limit)
        changes = Changes()
        planner.accept(self.state, request, changes, wall_ns=self.now_ns, now_ns=self.now_ns)
        self.save(changes)
        self.end_what_is_ready()

    @rule(slots=st.integers(1, 3))
    def take(self, slots: int) -> None:
        for _ in range(slots):
            self.state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
        changes = Changes()
        for _, dispatch in dispatch_all(self.state, changes, wall_ns=0, now_ns=self.now_ns):
            assert not self.state.coverage[SERIES].covered.within(dispatch.span)
            self.workers.append(Worker(dispatch, split_by_periods(dispatch.span, 60, 3)))
        self.save(changes)

    @rule(data=st.data(), pages=st.integers(1, 3), reported=st.booleans())
    def produce(self, data: Any, pages: int, reported: bool) -> None:
        """An ingestor writes pages; it may die before it reports the last one."""
        if self.workers:
            worker = data.draw(st.sampled_from(self.workers))
            self.write(worker, pages, reported)

    def write(self, worker: Worker, pages: int, reported: bool) -> None:
        for _ in range(pages):
            if worker.finished:
                return
            changes = Changes()
            if not worker.todo:
                worker.finished = True
                if reported:
                    dispatches.produced(self.state, worker.dispatch.dispatch_id, changes)
                self.save(changes)
                return
            worker.log.append(worker.todo.pop(0))
            current = reported and dispatches.page(
                self.state, worker.dispatch.dispatch_id, worker.log[-1], [worker.log[-1]], changes, now_ns=self.now_ns
            )
            self.save(changes)
            if not current:  # fenced, or dead
                # no final record
                worker.todo = []
                worker.finished = True
                worker.final_read = True

    @rule(data=st.data(), records=st.integers(1, 4))
    def commit(self, data: Any, records: int) -> None:
        """The pipeline reads one partition further, and sometimes repeats records."""
        if self.workers:
            self.read(data.draw(st.sampled_from(self.workers)), records, repeat=data.draw(st.booleans()))

    def read(self, worker: Worker, records: int, *, repeat: bool = False) -> None:
        job_id = worker.dispatch.dispatch_id
        first = 0 if repeat else worker.read
        worker.read = max(worker.read, min(first + records, len(worker.log)))
        pages = [PageResult(job_id, SERIES, span, (span,)) for span in worker.log[first : worker.read]]
        finals = []
        if worker.finished and not worker.final_read and worker.read == len(worker.log):
            finals = [FinalResult(job_id, FinalStatus.OK)]
            worker.final_read = True
        changes = Changes()
        dispatches.report(self.state, pages, finals, changes, wall_ns=0, now_ns=self.now_ns)
        self.save(changes)
        self.end_what_is_ready()

    @rule(ns=st.integers(1, 20))
    def wait(self, ns: int) -> None:
        self.now_ns += ns
        changes = Changes()
        for job_id in self.state.leases.expired(now_ns=self.now_ns):
            dispatches.lose(self.state, job_id, "its lease expired", changes, now_ns=self.now_ns)
        self.save(changes)
        self.end_what_is_ready()

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if self.state.requests:
            request_id = data.draw(st.sampled_from(sorted(self.state.requests)))
            self.end(request_id, [])

    @rule()
    def restart(self) -> None:
        self.state = self.loaded()

    # ---- what must hold --------------------------------------------------------------------------------------------

    def loaded(self) -> HistoryState:
        state = new_state()
        loading.fill_state(self.connection, state, self.now_ns)
        return state

    @invariant()
    def the_file_says_what_memory_says(self) -> None:
        assert dump(self.loaded()) == dump(self.state)

    @invariant()
    def nothing_in_flight_is_fetched_twice(self) -> None:
        spans = sorted(job.span for job in self.state.jobs.values() if job.dispatch_id is None and job.phase == 1)
        assert all(left.end_ns <= right.start_ns for left, right in itertools.pairwise(spans))

    def end_what_is_ready(self) -> None:
        for request in list(self.state.requests.values()):
            if self.state.is_ready(request):
                missing = self.state.missing(request, request.planned_end_ns)
                if not missing and request.planned_end_ns < request.request.end_ns:
                    changes = Changes()  # every page here is empty, so a limit is never reached
                    planner.widen(self.state, request, request.request.limit or 0, changes, now_ns=self.now_ns)
                    self.save(changes)
                    self.end_what_is_ready()
                    return
                self.end(request.request.request_id, missing)

    def end(self, request_id: str, missing: list[TimeRange]) -> None:
        assert request_id not in self.ended
        self.ended[request_id] = missing
        request, changes = self.state.requests[request_id], Changes()
        outcome = decide(
            end_ns=request.planned_end_ns,
            missing=missing,
            job_errors=self.state.errors(request),
            row_count=0,
            empty_periods=0,
            snapshot_id=None,
            completed_ns=self.now_ns,
        )
        changes.append(RequestEnded(request.request, outcome, progress(self.state, request)))
        planner.remove(self.state, request, changes)
        self.save(changes)

    def teardown(self) -> None:
        """Let ingestors finish their work and the pipeline read everything: every request ends."""
        for turn in range(200):
            if not self.state.requests:
                break
            for worker in list(self.workers):
                self.write(worker, 100, reported=True)
                self.read(worker, 100)
            self.take(3)
            self.wait(16 if turn % 10 == 9 else 1)
        assert not self.state.requests and not self.state.jobs
        assert self.ended.keys() == self.submitted and not any(self.ended.values())
        rows = self.connection.execute("SELECT count(*), count(DISTINCT request_id) FROM notifications").fetchone()
        assert rows == (len(self.submitted), len(self.submitted))
        for table in ("jobs", "dispatches WHERE job_id NOT NULL", "attachments"):
            assert self.connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        self.connection.close()


def dump(state: HistoryState) -> Any:
    """Return everything that must survive a restart."""
    return (
        {
            number: (
                job.request_id,
                job.span,
                job.phase,
                job.error,
                job.failures_in_a_row,
                job.dispatch_id,
                job.produced,
                job.sent,
                *(tuple(getattr(job, name)) for name in ("acked", "acked_empty", "refused", "handled")),
                frozenset(job.requests),
                frozenset(job.dispatch_ids),
                state.leases.is_queued(number),
                state.leases.is_running(number),
            )
            for number, job in state.jobs.items()
        },
        {
            request_id: (live.request, live.state, live.planned_end_ns, frozenset(live.jobs))
            for request_id, live in state.requests.items()
        },
        {series: (tuple(c.covered), tuple(c.empty)) for series, c in state.coverage.items() if c.covered},
        {series: taken for series, each in state.retractions.items() if (taken := each.in_force())},
    )


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
