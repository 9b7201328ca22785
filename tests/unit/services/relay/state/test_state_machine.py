"""A short run of the state machine, and the faults that longer runs found; `make soak` runs 100,000 steps."""

from __future__ import annotations

import pytest
from hypothesis import settings

from dexorder_common.model.history import RequestStatus
from dexorder_relay.state.workers import Slot, SlotKind
from tests.examples import few
from tests.unit.services.relay.harness import at
from tests.unit.services.relay.state.state_machine import StateMachine
from tests.unit.services.relay.state.state_model import ALL_SERIES, LEASE_NS, Worker

StateMachine.TestCase.settings = settings(max_examples=few(25), stateful_step_count=40, deadline=None)
TestBroker = StateMachine.TestCase


def checked(life: StateMachine) -> None:
    life.the_file_says_what_memory_says()
    life.no_range_is_fetched_twice_at_once()
    life.no_period_of_an_unfinished_request_is_forgotten()
    life.queues_and_slots_hold_what_the_model_says()


def begun() -> tuple[StateMachine, Worker]:
    """Return a machine with a running job of two pages, and free slots."""
    life = StateMachine()
    life.submit(ALL_SERIES[0], 0, 6, None)
    life.alive.append(b"1")
    for _ in range(3):
        life.offer_one(Slot(b"1", ALL_SERIES[0].exchange, SlotKind.ANY))
    life.dispatch(None)
    return life, life.workers[0]


@pytest.mark.parametrize("reported", [False, True], ids=["not reported", "reported"])
def test_a_refused_page_is_fetched_by_one_job_at_most(reported: bool) -> None:
    life, first = begun()
    life.produce(first, reported=reported, empty=False)
    life.report(first, 1, refuse=True)
    checked(life)
    life.submit(ALL_SERIES[0], 0, 6, None)
    life.dispatch(None)
    checked(life)
    assert len(life.workers) == (2 if reported else 1)  # what was reported is nobody's to fetch again but a new job's
    life.wait(LEASE_NS)
    life.wait(LEASE_NS)
    life.dispatch(None)
    checked(life)
    life.teardown()
    assert life.ended == {"r1": RequestStatus.OK, "r2": RequestStatus.OK}


def test_a_page_refused_too_late_does_not_spoil_the_next_dispatchs_good_one() -> None:
    life, first = begun()
    life.produce(first, reported=False, empty=False)
    life.wait(LEASE_NS)
    life.wait(LEASE_NS)
    life.dispatch(None)
    again = life.workers[1]
    assert again.dispatch.span.start_ns == at(0)
    life.produce(again, reported=True, empty=False)
    life.report(first, 1, refuse=True)
    checked(life)
    life.teardown()
    assert life.ended == {"r1": RequestStatus.OK}


def test_many_jobs_of_one_exchange_leave_no_request_without_an_end() -> None:
    life = StateMachine()
    for number in range(10):
        life.submit(ALL_SERIES[2], number * 10, 8, None)
    life.teardown()
    assert set(life.ended.values()) == {RequestStatus.OK}
