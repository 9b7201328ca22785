from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dexorder_ingestor.broker.slots import PUBLISHING_PER_SLOT, DispatchEnd, JobKind, JobSlots, SlotType

SIM, OTHER, LIVE = (
    SlotType("SIM", JobKind.HISTORICAL),
    SlotType("OTHER", JobKind.HISTORICAL),
    SlotType("SIM", JobKind.REALTIME),
)


def slots(capacity: dict[SlotType, int] | None = None) -> JobSlots:
    return JobSlots(capacity or {SIM: 2}, repeat_ns=10)


def test_every_free_slot_is_offered_once() -> None:
    s = slots({SIM: 2, OTHER: 1})
    assert s.take_offers() == [SIM, OTHER, SIM]
    assert s.take_offers() == []


def test_used_offer_returns_with_its_slot() -> None:
    s = slots({SIM: 2})
    s.take_offers()
    s.use_offer(SIM)
    assert s.take("j1", SIM) is None
    assert (s.running, s.free(SIM), s.take_offers()) == (("j1",), 1, [])
    s.release("j1")
    assert s.take_offers() == [SIM]


def test_a_rejected_dispatch_used_up_an_offer_too() -> None:
    s = slots({SIM: 1})
    s.take_offers()
    s.use_offer(SIM)
    assert s.take_offers() == [SIM]


def test_a_new_connection_is_offered_what_is_free_now() -> None:
    s = slots({SIM: 3})
    s.take_offers()
    s.use_offer(SIM)
    s.take("j1", SIM)
    s.forget_offers()
    assert s.take_offers() == [SIM, SIM]


@pytest.mark.parametrize(
    ("slot", "reason"),
    [
        (
            SlotType("MOON", JobKind.HISTORICAL),
            "exchange 'MOON' is not served by this ingestor; it serves SIM",
        ),
        (SIM, "no free slot for historical jobs of SIM"),
        (LIVE, "no free slot for realtime jobs of SIM"),
    ],
)
def test_dispatches_that_cannot_be_taken(slot: SlotType, reason: str) -> None:
    s = slots({SIM: 1})
    s.take("j0", SIM)
    assert s.take("j1", slot) == reason
    assert s.running == ("j0",)


def test_stopped_offers_and_takes_nothing() -> None:
    s = slots({SIM: 2})
    s.take("j0", SIM)
    s.stop()
    s.release("j0")
    assert s.take_offers() == []
    assert s.take("j1", SIM) == "this ingestor is shutting down"


def test_completion_is_repeated_until_it_is_old_enough_to_have_arrived() -> None:
    s = slots()
    one, two = DispatchEnd("j1", success=True), DispatchEnd("j2", success=False, message="no")
    s.complete(one)
    s.complete(two)
    assert s.unsettled(now_ns=1000) == [one, two]
    s.note_sent("j1", now_ns=1000)
    assert s.unsettled(now_ns=1009) == [one, two]
    assert s.unsettled(now_ns=1010) == [two]
    s.note_sent("never heard of", now_ns=1010)


def test_no_more_dispatches_run_than_the_limit_which_may_be_lower_than_the_offers() -> None:
    s = slots({SIM: 2, LIVE: 2})
    assert s.limit == 4
    assert s.take_offers() == [SIM, LIVE, SIM, LIVE]
    s.limit = 1
    s.use_offer(SIM)
    assert s.take("j1", SIM) is None
    s.use_offer(LIVE)
    assert s.take("j2", LIVE) == "max_concurrent 1 dispatches are running"
    assert s.take_offers() == []
    s.limit = 4
    assert s.take_offers() == [LIVE]
    assert (s.count(JobKind.HISTORICAL), s.count(JobKind.REALTIME)) == (1, 0)


def test_a_dispatch_that_only_publishes_frees_its_slot_and_still_runs() -> None:
    s = slots({SIM: 1, LIVE: 1})
    s.take_offers()
    s.use_offer(SIM)
    s.take("j1", SIM)
    s.fetched("j1")
    assert (s.running, s.count(JobKind.HISTORICAL), s.take_offers()) == (("j1",), 1, [SIM])
    s.release("j1")
    assert (s.running, s.free(SIM)) == ((), 1)


def test_dispatches_that_can_not_publish_hold_slots_again() -> None:
    s = slots({SIM: 2, LIVE: 1})
    for number in range(2 * PUBLISHING_PER_SLOT + 2):
        assert s.take(f"j{number}", SIM) is None
        s.fetched(f"j{number}")
    assert (s.free(SIM), s.busy(SIM)) == (0, 2)
    assert s.take("more", SIM) == "no free slot for historical jobs of SIM"
    assert s.free(LIVE) == 1, "the other type has its own"
    s.release("j3")
    assert s.free(SIM) == 1


def test_the_limit_does_not_count_dispatches_that_only_publish() -> None:
    s = slots({SIM: 2})
    s.limit = 1
    s.take("j1", SIM)
    s.fetched("j1")
    assert s.take("j2", SIM) is None
    assert s.take("j3", SIM) == "max_concurrent 1 dispatches are running"


class SlotsMachine(RuleBasedStateMachine):
    """Whatever happens, the broker never holds more offers than there are free slots."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = JobSlots({SIM: 2, LIVE: 1}, repeat_ns=10)
        self.at_broker = {SIM: 0, LIVE: 0}
        self.jobs = 0
        self.fetching: list[str] = []
        self._send()

    def _send(self) -> None:
        for slot in self.slots.take_offers():
            self.at_broker[slot] += 1

    @rule(slot=st.sampled_from([SIM, LIVE]))
    def dispatch(self, slot: SlotType) -> None:
        if not self.at_broker[slot]:
            return
        self.at_broker[slot] -= 1
        self.jobs += 1
        self.slots.use_offer(slot)
        assert self.slots.take(f"j{self.jobs}", slot) is None, "an offered slot is free"
        self.fetching.append(f"j{self.jobs}")
        self._send()

    @rule(slot=st.sampled_from([SIM, LIVE]))
    def dispatch_that_is_rejected(self, slot: SlotType) -> None:
        if self.at_broker[slot]:
            self.at_broker[slot] -= 1
            self.slots.use_offer(slot)
            self._send()

    @precondition(lambda self: self.slots.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(self.slots.running))
        self.slots.release(ended)
        self.fetching = [each for each in self.fetching if each != ended]
        self._send()

    @precondition(lambda self: self.fetching)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        done = data.draw(st.sampled_from(self.fetching))
        self.slots.fetched(done)
        self.fetching.remove(done)
        self._send()

    @rule()
    def reconnect(self) -> None:
        self.at_broker = {SIM: 0, LIVE: 0}
        self.slots.forget_offers()
        self._send()

    @invariant()
    def offers_are_the_free_slots(self) -> None:
        assert self.at_broker == {slot: self.slots.free(slot) for slot in (SIM, LIVE)}

    @invariant()
    def no_more_run_than_the_bound(self) -> None:
        assert len(self.fetching) <= 3
        assert len(self.slots.running) <= 3 * (PUBLISHING_PER_SLOT + 1)


SlotsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlotsMachine = SlotsMachine.TestCase
