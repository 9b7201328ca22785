"""What a new worker, a proven one and one that loses jobs get; then an attacker with any number of sockets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_relay.state.leases import Assignment, Leases
from dexorder_relay.state.workers import MAX_WAITS, Slot, SlotKind, TrialRules, Workers
from tests.unit.services.relay.harness import Driver, history_state

LEASE_NS = 10**6
RULES = TrialRules(places=2, late_ns=60, wait_ns=10, max_wait_ns=40, idle_ns=100)
NOW_NS = 1_000


def leases(jobs: int = 0, kind: SlotKind = SlotKind.HISTORICAL) -> Leases:
    ids = itertools.count()
    made = Leases(lease_ns=LEASE_NS, new_id=lambda: f"id{next(ids)}", trials=RULES)
    for job in range(1, jobs + 1):
        made.queue(job, "X", kind)
    return made


def offer(d: Leases, *identities: bytes, kind: SlotKind = SlotKind.HISTORICAL, exchange: str = "X") -> None:
    for identity in identities:
        assert d.offer(Slot(identity, exchange, kind))


def given_to(made: Sequence[Assignment]) -> list[bytes]:
    return [each.slot.identity for each in made]


def with_proven(jobs: int, *, kind: SlotKind = SlotKind.HISTORICAL) -> Leases:
    """Return leases where ``honest`` has shown a page of a job that has ended, with other jobs in the queue."""
    d = leases(jobs + 1, kind)
    offer(d, b"honest", kind=kind)
    (made,) = d.assign(now_ns=NOW_NS)
    d.page(made.dispatch_id, now_ns=NOW_NS)
    d.remove(made.job)
    return d


def lose(d: Leases, made: Assignment, now_ns: int) -> bool:
    alone = d.lose(made.dispatch_id, now_ns=now_ns)
    d.requeue(made.job, new_not_before_ns=now_ns + 10 if alone else 0)
    return alone


def test_all_are_alike_until_one_is_proven() -> None:
    d = leases(6)
    offer(d, *[b"new"] * 5)
    made = d.assign(now_ns=NOW_NS)
    assert given_to(made) == [b"new"] * 5
    assert not lose(d, made[0], NOW_NS), "the job is to blame: there is no worker to compare with"


def test_new_workers_have_few_places_beside_a_proven_one_and_all_of_them_once_a_page_has_come() -> None:
    d = with_proven(9)
    offer(d, *[b"new"] * 4, *[b"other"] * 4, b"honest")
    made = d.assign(now_ns=NOW_NS)
    assert given_to(made) == [b"new", b"new", b"honest"], "two places"
    d.page(made[1].dispatch_id, now_ns=NOW_NS)
    assert given_to(d.assign(now_ns=NOW_NS)) == [b"new", b"new", b"other", b"other"]


def test_a_place_is_free_again_when_its_job_has_ended_and_a_while_after_it_was_lost() -> None:
    d = with_proven(9)
    offer(d, *[b"a"] * 3, *[b"b"] * 3, *[b"c"] * 3)
    one, two = d.assign(now_ns=NOW_NS)
    d.remove(one.job)
    (three,) = d.assign(now_ns=NOW_NS)
    lose(d, two, NOW_NS)
    assert d.assign(now_ns=NOW_NS + 9) == []
    assert given_to(d.assign(now_ns=NOW_NS + 10)) == [b"b"], "one place is left, and a is the last in line"
    assert three.slot.identity == b"a"


def test_a_loss_beside_a_proven_worker_costs_the_job_nothing() -> None:
    d = with_proven(1)
    offer(d, b"new")
    (made,) = d.assign(now_ns=NOW_NS)
    assert lose(d, made, NOW_NS)
    offer(d, b"another")
    assert d.assign(now_ns=NOW_NS) == [], "before a new worker it waits"
    offer(d, b"honest")
    assert given_to(d.assign(now_ns=NOW_NS)) == [b"honest"]


def test_a_job_that_a_new_worker_lost_goes_to_a_new_one_after_its_wait() -> None:
    d = with_proven(1)
    offer(d, b"new")
    (made,) = d.assign(now_ns=NOW_NS)
    lose(d, made, NOW_NS)
    offer(d, b"another")
    assert given_to(d.assign(now_ns=NOW_NS + 10)) == [b"another"]


def test_a_worker_that_loses_jobs_waits_longer_each_time_and_is_new_again() -> None:
    d, waits = with_proven(1), []
    offer(d, b"honest", kind=SlotKind.REALTIME)
    now_ns = NOW_NS
    for _ in range(4):
        offer(d, b"w")
        while not (made := d.assign(now_ns=now_ns)):
            now_ns += 1
        waits.append(now_ns)
        lose(d, made[0], now_ns)
    assert [after - before for before, after in itertools.pairwise(waits)] == [10, 20, 40]
    offer(d, b"w")
    (made_again,) = d.assign(now_ns=now_ns + 40)
    d.page(made_again.dispatch_id, now_ns=now_ns + 40)
    lose(d, made_again, now_ns + 40)
    offer(d, b"w")
    assert d.assign(now_ns=now_ns + 49) == [] and d.assign(now_ns=now_ns + 50), "a page has ended the row of losses"


def test_without_a_proven_worker_a_loss_costs_no_wait() -> None:
    """The only ingestor goes on with the other jobs; the lost one has its own wait."""
    d = leases(2)
    offer(d, b"only", b"only")
    made, _ = d.assign(now_ns=NOW_NS)
    d.page(made.dispatch_id, now_ns=NOW_NS)
    lose(d, made, NOW_NS)
    offer(d, b"only")
    assert given_to(d.assign(now_ns=NOW_NS)) == [b"only"]


def test_a_loss_at_one_exchange_says_nothing_of_another() -> None:
    d = with_proven(1)
    d.queue(9, "Y")
    offer(d, b"honest")
    (made,) = d.assign(now_ns=NOW_NS)
    lose(d, made, NOW_NS)
    offer(d, b"honest", exchange="Y")
    assert given_to(d.assign(now_ns=NOW_NS)) == [b"honest"]


def test_a_job_on_trial_is_taken_back_whatever_its_worker_says() -> None:
    d = with_proven(2)
    offer(d, b"new", b"new")
    kept, ended = d.assign(now_ns=NOW_NS)
    d.complete(ended.dispatch_id)
    d.renew(kept.dispatch_id, now_ns=NOW_NS + 59)
    assert d.expired(now_ns=NOW_NS + 59) == []
    assert d.expired(now_ns=NOW_NS + 60) == [ended.dispatch_id, kept.dispatch_id]
    d.page(kept.dispatch_id, now_ns=NOW_NS + 60)
    assert d.expired(now_ns=NOW_NS + 60) == [], "proven by one of them"


def test_a_realtime_job_has_no_place() -> None:
    d = with_proven(5, kind=SlotKind.REALTIME)
    offer(d, *[b"new"] * 5, kind=SlotKind.REALTIME)
    made = d.assign(now_ns=NOW_NS)
    assert given_to(made) == [b"new"] * 5 and d.expired(now_ns=NOW_NS + 10**5) == []


@pytest.mark.parametrize("how", ["gone", "idle"])
def test_a_proven_worker_that_is_gone_restricts_no_new_one(how: str) -> None:
    d = with_proven(5)
    offer(d, *[b"new"] * 5)
    if how == "gone":
        d.drop(b"honest")
    made = d.assign(now_ns=NOW_NS + (RULES.idle_ns if how == "idle" else 0))
    assert given_to(made) == [b"new"] * 5


def test_a_proven_worker_that_waits_for_jobs_stays_proven() -> None:
    d = with_proven(0)
    offer(d, b"honest")
    for step in range(1, 50):
        d.assign(now_ns=NOW_NS + step * 90)
    d.queue(9, "X")
    (made,) = d.assign(now_ns=NOW_NS + 50 * 90)
    offer(d, *[b"new"] * 5)
    for job in range(10, 15):
        d.queue(job, "X")
    assert given_to(d.assign(now_ns=NOW_NS + 50 * 90)) == [b"new"] * 2 and made.slot.identity == b"honest"


def test_what_is_known_of_sockets_that_come_and_go_is_bounded() -> None:
    workers = Workers(max_slots=10, rules=RULES)
    workers.start("proven", Slot(b"proven", "X", SlotKind.ANY), SlotKind.HISTORICAL, now_ns=0)
    workers.page("proven", now_ns=0)  # beside it, losses count
    for number in range(MAX_WAITS + 100):
        slot = Slot(b"%d" % number, "X", SlotKind.ANY)
        workers.start(f"id{number}", slot, SlotKind.HISTORICAL, now_ns=number)
        workers.lose(f"id{number}", now_ns=number)
        workers.end(f"id{number}")
        workers.pass_time(now_ns=number)
    kept = {name: len(each) for name, each in vars(workers).items() if hasattr(each, "__len__")}
    assert kept["_losses"] == MAX_WAITS == max(kept.values()) and kept["_waiting"] <= 11, kept


def test_a_request_ends_well_beside_rejections_without_end() -> None:
    """A job is given up after three losses; an attacker's are not counted while an honest worker is there."""
    d = Driver(history_state(trials=TrialRules()))
    d.accept("r", 0, 20)
    (first,) = d.dispatch()
    d.page(first.dispatch_id, 0, 10)
    for number in range(40):
        d.state.leases.offer(Slot(b"evil%d" % number, "SIM", SlotKind.ANY))
        for made in d.state.leases.assign(now_ns=d.now_ns):
            job = d.state.jobs[made.job]
            d.state.add_dispatch(job, made.dispatch_id)
            lost = d.lose(made.dispatch_id, "rejected")
            assert lost is not None and lost.failures_in_a_row == 0
        d.now_ns += 10**9
    (last,) = d.dispatch()
    assert (last.span.start_ns, last.span.end_ns) != (first.span.start_ns, first.span.end_ns)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offers", "rejects", "keeps", "ends"]), st.integers(0, 30), st.integers(1, RULES.late_ns)
        ),
        max_size=60,
    )
)
def test_whatever_strangers_do_few_jobs_are_theirs_at_a_time(steps: list[tuple[str, int, int]]) -> None:
    """An honest worker takes each job that it has a slot for; strangers have at most two of them at any time."""
    d = with_proven(0)
    now_ns, job, fresh = NOW_NS, 100, itertools.count()
    held: list[Assignment] = []
    for what, number, wait_ns in steps:
        now_ns += wait_ns
        for late in d.expired(now_ns=now_ns):
            at = next(each for each in held if each.dispatch_id == late)
            held.remove(at)
            lose(d, at, now_ns)
        if what == "offers":
            for _ in range(number):
                offer(d, b"evil%d" % next(fresh), kind=SlotKind.ANY)
        elif held and what in ("rejects", "ends"):
            at = held[number % len(held)]
            if what == "ends":
                d.complete(at.dispatch_id)
            else:
                held.remove(at)
                lose(d, at, now_ns)
        d.queue(job, "X")
        job += 1
        offer(d, *[b"honest"] * 4)
        for made in d.assign(now_ns=now_ns):
            if made.slot.identity == b"honest":
                d.page(made.dispatch_id, now_ns=now_ns)
                d.remove(made.job)
            else:
                held.append(made)
        assert len(held) <= RULES.places
        offer(d, *[b"honest"] * 4)
        again = d.assign(now_ns=now_ns)
        assert not [each for each in again if each.slot.identity != b"honest"]
        for made in again:
            d.page(made.dispatch_id, now_ns=now_ns)
            d.remove(made.job)
        assert not any(d.is_queued(each) for each in range(100, job)), "every other job went to the honest worker"
