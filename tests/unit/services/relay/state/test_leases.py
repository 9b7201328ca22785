"""Leases: single cases, then a machine that tries to lose a job or hold one twice."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dexorder_relay.state.leases import Leases
from dexorder_relay.state.workers import Slot, SlotKind
from tests.unit.services.relay.harness import counts

LEASE_NS = 15


def leases(max_slots: int = 1_000) -> Leases:
    ids = itertools.count()
    return Leases(lease_ns=LEASE_NS, new_id=lambda: f"id{next(ids)}", max_slots=max_slots)


def held(kind: SlotKind = SlotKind.HISTORICAL) -> tuple[Leases, str]:
    """Return leases with job 1, which ingestor ``a`` has since 0, and its dispatch."""
    d = leases()
    d.queue(1, "X", kind)
    d.offer(slot(kind=kind))
    (made,) = d.assign(now_ns=0)
    return d, made.dispatch_id


def slot(identity: bytes = b"a", exchange: str = "X", kind: SlotKind = SlotKind.HISTORICAL) -> Slot:
    return Slot(identity, exchange, kind)


def test_oldest_job_goes_to_oldest_slot_and_realtime_slots_are_left() -> None:
    d = leases()
    for identity, kind in ((b"rt", SlotKind.REALTIME), (b"any", SlotKind.ANY), (b"h", SlotKind.HISTORICAL)):
        d.offer(slot(identity, kind=kind))
    d.offer(slot(b"y", "Y"))
    for job in (1, 2, 3):
        d.queue(job, "X")
    assert [(a.job, a.slot.identity) for a in d.assign(now_ns=0)] == [(1, b"any"), (2, b"h")]
    assert counts(d) == (1, 2, 2)


def test_kinds_of_jobs_share_any_slots_by_age_and_keep_their_own() -> None:
    d = leases()
    d.queue(1, "X", SlotKind.REALTIME)
    for job in (2, 3):
        d.queue(job, "X")
    d.queue(4, "X", SlotKind.REALTIME)
    for identity, kind in ((b"h", SlotKind.HISTORICAL), (b"any1", SlotKind.ANY), (b"any2", SlotKind.ANY)):
        d.offer(slot(identity, kind=kind))
    made = [(a.job, a.slot.identity) for a in d.assign(now_ns=0)]
    assert made == [(1, b"any1"), (2, b"h"), (3, b"any2")]
    d.offer(slot(b"h", kind=SlotKind.HISTORICAL))
    assert d.assign(now_ns=0) == []
    d.requeue(3)
    d.requeue(1)  # now the first of all
    d.offer(slot(b"any3", kind=SlotKind.ANY))
    assert [a.job for a in d.assign(now_ns=0)] == [1, 3]


def test_nothing_extends_the_lease_of_a_dispatch_that_must_stop() -> None:
    d, first = held(SlotKind.REALTIME)
    d.stop(first)
    assert d.renew(first, now_ns=10)
    assert d.expired(now_ns=LEASE_NS) == [first]
    d.requeue(1)
    d.offer(slot(kind=SlotKind.REALTIME))
    (again,) = d.assign(now_ns=0)
    d.renew(again.dispatch_id, now_ns=10)
    assert d.expired(now_ns=24) == []


def test_lease_runs_from_the_last_sign_of_life_and_ends_on_the_dot() -> None:
    d, first = held()
    assert d.renew(first, now_ns=10)
    assert d.expired(now_ns=24) == []
    assert d.expired(now_ns=25) == [first]
    d.requeue(1)
    assert not d.renew(first, now_ns=26) and d.complete(first) is None
    assert d.job_of(first) is None and d.is_queued(1)


def test_expired_jobs_come_before_the_queue_in_their_own_order() -> None:
    d = leases()
    for job in (1, 2, 3):
        d.queue(job, "X")
    d.offer(slot())
    d.offer(slot())
    d.assign(now_ns=0)
    for job_id in d.expired(now_ns=LEASE_NS):
        d.requeue(d.job_of(job_id) or 0)
    for _ in range(3):
        d.offer(slot())
    assert [a.job for a in d.assign(now_ns=LEASE_NS)] == [1, 2, 3]


def test_produced_job_has_no_lease() -> None:
    d, first = held()
    assert d.complete(first) == 1
    assert d.renew(first, now_ns=1)
    assert d.expired(now_ns=10**18) == [] and d.job_of(first) == 1 and not d.is_running(1)


def test_exchange_is_busy_while_an_ingestor_fetches_history_from_it() -> None:
    d, dispatch_id = held()
    assert d.busy_exchanges() == {"X"}
    d.complete(dispatch_id)
    assert not d.busy_exchanges(), "the job waits for the pipeline"
    assert not held(SlotKind.REALTIME)[0].busy_exchanges(), "a realtime job never ends"


def test_reject_prefers_another_ingestor_but_takes_the_same_when_it_is_alone() -> None:
    d, _ = held()
    d.requeue(1, rejected_by=b"a")
    d.offer(slot(b"a"))
    d.offer(slot(b"b"))
    (made,) = d.assign(now_ns=0)
    assert made.slot.identity == b"b"
    d.requeue(1, rejected_by=b"b")
    assert [a.slot.identity for a in d.assign(now_ns=0)] == [b"a"]


def test_requeued_job_waits_at_the_front_and_lets_others_go_first_meanwhile() -> None:
    d, _ = held()
    d.queue(2, "X")
    d.requeue(1, not_before_ns=5)
    d.offer(slot())
    assert [a.job for a in d.assign(now_ns=4)] == [2]
    d.requeue(2)
    d.offer(slot())
    d.offer(slot())
    assert [a.job for a in d.assign(now_ns=5)] == [2, 1]


def test_offers_of_one_ingestor_are_bounded_and_dropped_together() -> None:
    d = leases(max_slots=2)
    assert [d.offer(slot(b"a")) for _ in range(3)] == [True, True, False]
    assert d.offer(slot(b"b"))
    assert (d.drop(b"a"), d.drop(b"a"), counts(d)[2]) == (2, 0, 1)


def test_resumed_dispatch_keeps_its_id_and_gets_a_full_lease() -> None:
    d = leases()
    d.resume(7, "X", "old", produced=False, now_ns=100)
    d.resume(8, "X", "done", produced=True, now_ns=100)
    assert d.expired(now_ns=100 + LEASE_NS - 1) == []
    assert d.expired(now_ns=100 + LEASE_NS) == ["old"]
    assert (d.job_of("old"), d.job_of("done")) == (7, 8)


class Machine(RuleBasedStateMachine):
    """Random events of jobs; the model knows the current dispatches and the jobs that must exist."""

    def __init__(self) -> None:
        super().__init__()
        self.d = leases()
        self.now_ns = 0
        self.next_job = 1
        self.alive: set[int] = set()
        self.current: dict[int, str] = {}
        self.seen: list[str] = []

    @rule(exchange=st.sampled_from("XY"))
    def queue(self, exchange: str) -> None:
        self.d.queue(self.next_job, exchange)
        self.alive.add(self.next_job)
        self.next_job += 1

    @rule(identity=st.sampled_from([b"a", b"b"]), exchange=st.sampled_from("XY"), kind=st.sampled_from(list(SlotKind)))
    def offer(self, identity: bytes, exchange: str, kind: SlotKind) -> None:
        self.d.offer(Slot(identity, exchange, kind))

    @rule()
    def assign(self) -> None:
        for made in self.d.assign(now_ns=self.now_ns):
            assert made.job in self.alive and made.job not in self.current
            assert made.dispatch_id not in self.seen
            self.current[made.job] = made.dispatch_id
            self.seen.append(made.dispatch_id)

    @rule(ns=st.integers(1, 20))
    def wait(self, ns: int) -> None:
        self.now_ns += ns
        self.take_back_what_expired()

    def take_back_what_expired(self) -> None:
        for job_id in self.d.expired(now_ns=self.now_ns):
            job = self.d.job_of(job_id)
            assert job is not None and self.current.pop(job) == job_id
            self.d.requeue(job, not_before_ns=self.now_ns + 4)

    @rule(data=st.data(), what=st.sampled_from(["renew", "complete", "fail", "reject", "remove"]))
    def ingestor_says(self, data: st.DataObject, what: str) -> None:
        if not self.seen:
            return
        job_id = data.draw(st.sampled_from(self.seen))
        job = next((j for j, i in self.current.items() if i == job_id), None)
        assert self.d.job_of(job_id) == job
        if what == "renew":
            assert self.d.renew(job_id, now_ns=self.now_ns) == (job is not None)
        elif what == "complete":
            assert self.d.complete(job_id) == job
        elif job is not None:
            del self.current[job]
            if what == "remove":
                self.d.remove(job)
                self.alive.discard(job)
            else:
                self.d.requeue(job, rejected_by=b"a" if what == "reject" else None)

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        for job in self.alive:
            assert self.d.is_queued(job) == (job not in self.current)
        assert counts(self.d)[0] == len(self.alive) - len(self.current)
        for job_id in self.seen:
            assert (self.d.job_of(job_id) is not None) == (job_id in self.current.values())

    def teardown(self) -> None:
        """With enough slots, every job that exists is dispatched."""
        self.now_ns += 10**12
        self.take_back_what_expired()
        for _ in self.alive:
            for exchange in "XY":
                self.d.offer(Slot(b"c", exchange, SlotKind.ANY))
        made = {a.job for a in self.d.assign(now_ns=self.now_ns + 10**12)}
        assert made == self.alive - set(self.current)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
