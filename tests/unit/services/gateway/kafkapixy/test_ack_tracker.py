"""The ack tracker, against tables and against a plain set of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.model.errors import Exhausted
from services.gateway.kafkapixy.ack_tracker import AckRules, AckTracker
from services.gateway.kafkapixy.commits import committed_ranges

TIMEOUT = 100
END = 10**9


def tracker(offset: int = 0, acked: tuple[tuple[int, int], ...] = (), **rules: int) -> AckTracker[str]:
    return AckTracker(offset, AckRules(**{"ack_timeout_ns": TIMEOUT, **rules}), acked)


def deliver(to: AckTracker[str], *offsets: int, now_ns: int = 0) -> list[int]:
    return [o for o in offsets if to.deliver([(o, f"record {o}")], now_ns=now_ns)]


def redeliver(of: AckTracker[str], now_ns: int) -> int | None:
    found = of.redeliver(now_ns=now_ns)
    return None if found is None else found.first


@pytest.mark.parametrize(
    ("delivered", "acked", "position"),
    [
        ([], [], (0, "")),
        ([0], [], (0, "")),
        ([0], [0], (1, "")),
        ([0, 1, 2], [0], (1, "")),
        ([0, 1, 2], [0, 2], (1, "BB.")),
        ([0, 1, 2, 3, 4], [1, 3, 4], (0, "BBBC.")),
        ([0, 1, 2, 3, 4], [4, 3, 1, 0, 2], (5, "")),
        ([0, 1, 2, 3, 4], [1, 2, 3, 4], (0, "BE.")),
        # Holes count as acked: Kafka has no records 2 to 4.
        ([0, 1, 5], [0, 1], (5, "")),
        ([0, 1, 5], [1], (0, "BE.")),
        # Acked before their delivery.
        ([0], [3], (0, "DB.")),
        ([0], [0, 1], (1, "AB.")),
        ([], [0], (0, "AB.")),
        ([], [2, 0, 1], (0, "AD.")),
    ],
)
def test_position_is_the_lowest_unacked_offset(
    delivered: list[int], acked: list[int], position: tuple[int, str]
) -> None:
    of = tracker()
    assert deliver(of, *delivered) == delivered
    assert all(of.ack(offset) for offset in acked)
    assert of.position() == position


def test_second_ack_changes_nothing() -> None:
    of = tracker()
    deliver(of, 0, 1)
    assert [of.ack(1), of.ack(1), of.ack(7), of.ack(7)] == [True, False, True, False]
    assert of.position() == (0, "BBFB.")


def test_record_acked_early_is_skipped() -> None:
    of = tracker()
    of.ack(1)
    assert deliver(of, 0, 1, 2) == [0, 2]


def test_number_of_early_acks_is_limited() -> None:
    of = tracker(max_pending=2)
    of.ack(10)
    of.ack(20)
    of.ack(11)  # extends a range
    with pytest.raises(Exhausted, match="30"):
        of.ack(30)


def test_restart_delivers_unacked_records() -> None:
    of = tracker()
    deliver(of, 0, 1, 2, 3, 4)
    for offset in (1, 3, 4):
        of.ack(offset)
    offset, metadata = of.position()
    again = tracker(offset, tuple(committed_ranges(offset, metadata, end=END)))
    assert again.position() == (offset, metadata)
    assert deliver(again, *range(7)) == [0, 2, 5, 6]


def test_records_are_due_again_after_the_timeout_lowest_first() -> None:
    of = tracker()
    deliver(of, 0, now_ns=0)
    deliver(of, 1, now_ns=10)
    deliver(of, 2, now_ns=20)
    assert redeliver(of, TIMEOUT - 1) is None
    assert redeliver(of, TIMEOUT) == 0
    assert redeliver(of, TIMEOUT) is None
    of.ack(1)
    assert redeliver(of, TIMEOUT + 20) == 2
    assert redeliver(of, 2 * TIMEOUT + 20) == 0
    assert redeliver(of, 2 * TIMEOUT + 20) == 2


def test_record_given_back_is_due_at_once_and_not_counted_as_a_retry() -> None:
    of = tracker(max_retries=0)
    deliver(of, 0, 1)
    of.give_back(1, 1, now_ns=5)
    assert of.give_up(now_ns=5) == []
    assert redeliver(of, 5) == 1
    assert redeliver(of, 5) is None
    of.give_back(9, 9, now_ns=5)  # not pending: nothing happens
    assert [run.first for run in of.give_up(now_ns=5 + TIMEOUT)] == [0, 1]


def test_record_is_given_up_after_its_last_retry() -> None:
    of = tracker(max_retries=2)
    deliver(of, 0)
    for retry in (1, 2):
        assert of.give_up(now_ns=retry * TIMEOUT) == []
        assert redeliver(of, retry * TIMEOUT) == 0
    assert of.give_up(now_ns=3 * TIMEOUT - 1) == []
    assert [run.records for run in of.give_up(now_ns=3 * TIMEOUT)] == [[(0, "record 0")]]
    assert of.position() == (1, "")


def test_full_until_a_record_is_acked() -> None:
    of = tracker(max_pending=2)
    seen = []
    for step in (lambda: deliver(of, 0), lambda: deliver(of, 1), lambda: of.ack(0)):
        step()
        seen.append((of.pending, of.full))
    assert seen == [(1, False), (2, True), (1, False)]


class AgainstASet(RuleBasedStateMachine):
    """Offsets with holes, delivered, acked, timed out and restarted in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = tracker()
        self.now = 0
        self.next = 0
        self.acked: set[int] = set()
        self.pending: dict[int, int] = {}

    @rule(hole=st.integers(0, 3))
    def offer_next(self, hole: int) -> None:
        self.acked.update(range(self.next, self.next + hole))
        offset = self.next + hole
        delivered = self.tracker.deliver([(offset, "")], now_ns=self.now) is not None
        assert delivered == (offset not in self.acked)
        if delivered:
            self.pending[offset] = self.now + TIMEOUT
        self.next = offset + 1

    @rule(data=st.data())
    @precondition(lambda self: self.next > 0)
    def ack_passed(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.next - 1))
        assert self.tracker.ack(offset) == (offset in self.pending)
        self.pending.pop(offset, None)
        self.acked.add(offset)

    @rule(distance=st.integers(0, 6))
    def ack_early(self, distance: int) -> None:
        offset = self.next + distance
        assert self.tracker.ack(offset) == (offset not in self.acked)
        self.acked.add(offset)

    @rule(by=st.integers(0, TIMEOUT))
    def wait_and_redeliver(self, by: int) -> None:
        self.now += by
        due = [offset for offset, due_ns in self.pending.items() if due_ns <= self.now]
        found = redeliver(self.tracker, self.now)
        assert found == (min(due) if due else None)
        if found is not None:
            self.pending[found] = self.now + TIMEOUT

    @rule(data=st.data())
    @precondition(lambda self: self.pending)
    def give_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.pending)))
        self.tracker.give_back(offset, offset, now_ns=self.now)
        self.pending[offset] = self.now

    @rule()
    def restart(self) -> None:
        offset, metadata = self.tracker.position()
        self.tracker = tracker(offset, tuple(committed_ranges(offset, metadata, end=END)))
        self.next = offset
        self.pending = {}

    @invariant()
    def committed_is_what_was_acked(self) -> None:
        offset, metadata = self.tracker.position()
        assert offset == min(self.pending, default=self.next)
        above = {o for start, end in committed_ranges(offset, metadata, end=END) for o in range(start, end)}
        assert above == {o for o in self.acked if o >= offset}
        assert self.tracker.pending == len(self.pending)


TestAgainstASet = AgainstASet.TestCase
TestAgainstASet.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 40), unique=True), st.integers(0, 41))
def test_any_crash_point_loses_no_ack_and_no_record(acks: list[int], crash_after: int) -> None:
    of = tracker()
    deliver(of, *range(41))
    for offset in acks[:crash_after]:
        of.ack(offset)
    offset, metadata = of.position()
    again = tracker(offset, tuple(committed_ranges(offset, metadata, end=END)))
    assert deliver(again, *range(offset, 41)) == sorted(set(range(41)) - set(acks[:crash_after]))


# ---- batches: several callers, ranges

CALLERS = (0, 1, 2)


def batch(*offsets: int) -> list[tuple[int, str]]:
    return [(offset, f"record {offset}") for offset in offsets]


def test_range_acks_the_callers_records_and_names_the_rest() -> None:
    of = tracker()
    of.deliver(batch(0, 1, 2), now_ns=0, caller=1)
    of.deliver(batch(3), now_ns=0)
    of.deliver(batch(4, 5), now_ns=0, caller=2)
    of.deliver(batch(6, 9), now_ns=0, caller=1)
    done = of.ack_range(1, 12, caller=1)
    assert (done.count, done.held_by_others, done.undelivered) == (4, [(3, 6)], (10, 13))
    assert of.position() == (0, "BCDE.")
    assert of.ack_range(0, 12, caller=7).held_by_others == [(0, 1), (3, 6)]
    assert (of.unacked_of(1).records, of.unacked_of(0).records, of.unacked_of(2).records) == (1, 1, 2)


def test_late_ack_of_a_range_counts_although_another_caller_has_the_records() -> None:
    of = tracker()
    of.deliver(batch(0, 1), now_ns=0, caller=1)
    assert of.redeliver(1, now_ns=TIMEOUT, caller=2) is not None
    assert of.ack_range(0, 1, caller=2).held_by_others == [(1, 2)]
    of.deliver(batch(2), now_ns=0, caller=2)
    assert of.redeliver(1, now_ns=TIMEOUT, caller=2) is not None
    done = of.ack_range(0, 1, caller=1)
    assert (done.count, done.held_by_others) == (1, [])
    assert of.position() == (2, "")


def test_released_caller_has_nothing_and_acks_nothing() -> None:
    of = tracker(max_retries=0)
    of.deliver(batch(0, 1), now_ns=0, caller=1)
    of.deliver(batch(2), now_ns=0, caller=2)
    of.release(1, now_ns=5)
    assert of.give_up(now_ns=5) == []  # it is not a retry
    again = of.redeliver(10, now_ns=5, caller=2)
    assert again is not None
    assert (again.records, again.redelivery) == (batch(0, 1), "given_back")
    assert of.ack_range(0, 1, caller=1).held_by_others == [(0, 2)]
    assert (of.unacked_of(1).records, of.unacked_of(2).records, of.unacked_of(2).bytes) == (0, 3, 24)


def test_records_in_flight_are_not_changed_by_acks() -> None:
    of = tracker()
    run = of.deliver(batch(0, 1, 2, 3), now_ns=0, caller=1)
    assert run is not None
    taken = run.records
    of.ack_range(1, 2, caller=1)
    of.give_back(3, 3, now_ns=0, caller=1)
    assert taken == batch(0, 1, 2, 3)


def test_batch_leaves_out_acked_records() -> None:
    of = tracker(0, ((2, 4),))
    run = of.deliver(batch(0, 1, 2, 3, 4), now_ns=0, caller=1)
    assert run is not None
    assert run.records == batch(0, 1, 4)
    of.ack(5)
    assert of.deliver(batch(5), now_ns=0) is None
    assert of.ack_range(0, 5, caller=1).count == 3
    assert of.position() == (6, "")


class BatchesAgainstADict(RuleBasedStateMachine):
    """Callers take batches, ack and give back ranges, leave and return; the model has each record separately."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = tracker(max_retries=2)
        self.now = self.next = 0
        self.acked: set[int] = set()
        self.holder: dict[int, int | None] = {}
        self.seen: dict[int, set[int]] = {}
        self.due: dict[int, int] = {}
        self.retries: dict[int, int] = {}

    def forget(self, offset: int) -> None:
        self.acked.add(offset)
        for table in (self.holder, self.seen, self.due, self.retries):
            table.pop(offset, None)

    @rule(holes=st.lists(st.integers(0, 2), min_size=1, max_size=6), caller=st.sampled_from(CALLERS))
    def deliver(self, holes: list[int], caller: int) -> None:
        offsets = []
        for hole in holes:
            self.acked.update(range(self.next, self.next + hole))
            offsets.append(self.next + hole)
            self.next = offsets[-1] + 1
        run = self.tracker.deliver(batch(*offsets), now_ns=self.now, caller=caller)
        wanted = [offset for offset in offsets if offset not in self.acked]
        assert (run.records if run else []) == batch(*wanted)
        for offset in wanted:
            self.holder[offset], self.seen[offset] = caller, {caller}
            self.due[offset], self.retries[offset] = self.now + TIMEOUT, 0

    @rule(distance=st.integers(0, 4))
    def ack_early(self, distance: int) -> None:
        self.tracker.ack(self.next + distance)
        self.acked.add(self.next + distance)

    @rule(data=st.data(), caller=st.sampled_from(CALLERS))
    def ack_range(self, data: st.DataObject, caller: int) -> None:
        first = data.draw(st.integers(0, self.next + 2))
        last = data.draw(st.integers(first, self.next + 3))
        done = self.tracker.ack_range(first, last, caller=caller)
        within = [offset for offset in sorted(self.holder) if first <= offset <= last]
        own = [offset for offset in within if caller in self.seen[offset]]
        assert done.count == len(own)
        others = [offset for offset in within if offset not in own]
        named = [offset for start, end in done.held_by_others for offset in range(start, end)]
        assert [offset for offset in named if offset in self.holder] == others
        assert set(named) <= set(others) | self.acked
        assert done.undelivered == ((max(first, self.next), last + 1) if last >= self.next else None)
        for offset in own:
            self.forget(offset)

    @rule(data=st.data())
    @precondition(lambda self: self.holder)
    def ack_one(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.holder)))
        assert self.tracker.ack(offset)
        self.forget(offset)

    @rule(data=st.data(), caller=st.sampled_from(CALLERS), counts_as_retry=st.booleans())
    def give_back(self, data: st.DataObject, caller: int, counts_as_retry: bool) -> None:
        first = data.draw(st.integers(0, self.next))
        last = data.draw(st.integers(first, self.next))
        self.tracker.give_back(first, last, now_ns=self.now, caller=caller, counts_as_retry=counts_as_retry)
        self._given_back([o for o, who in self.holder.items() if who == caller and first <= o <= last], counts_as_retry)

    @rule(caller=st.sampled_from(CALLERS))
    def release(self, caller: int) -> None:
        self.tracker.release(caller, now_ns=self.now)
        self._given_back([o for o, who in self.holder.items() if who == caller], counts_as_retry=False)
        for callers in self.seen.values():
            callers.discard(caller)

    def _given_back(self, offsets: list[int], counts_as_retry: bool) -> None:
        for offset in offsets:
            self.holder[offset], self.due[offset] = None, self.now
            self.retries[offset] -= not counts_as_retry

    @rule(by=st.integers(0, TIMEOUT), most=st.integers(1, 4), caller=st.sampled_from(CALLERS))
    def wait_and_redeliver(self, by: int, most: int, caller: int) -> None:
        self.now += by
        for run in self.tracker.give_up(now_ns=self.now):
            for offset, _ in run.records:
                assert self.due[offset] <= self.now
                assert self.retries[offset] >= 2
                self.forget(offset)
        due = sorted(offset for offset, due_ns in self.due.items() if due_ns <= self.now)
        assert all(self.retries[offset] < 2 for offset in due)
        found = self.tracker.redeliver(most, now_ns=self.now, caller=caller)
        offsets = [offset for offset, _ in found.records] if found else []
        assert offsets == due[: len(offsets)]  # the lowest ones
        assert bool(offsets) == bool(due)
        assert len(offsets) <= most
        for offset in offsets:
            self.holder[offset], self.due[offset] = caller, self.now + TIMEOUT
            self.seen[offset].add(caller)
            self.retries[offset] += 1

    @rule()
    def restart(self) -> None:
        offset, metadata = self.tracker.position()
        self.tracker = tracker(offset, tuple(committed_ranges(offset, metadata, end=END)), max_retries=2)
        self.next = offset
        for table in (self.holder, self.seen, self.due, self.retries):
            table.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert self.tracker.pending == len(self.holder)
        assert self.tracker.pending_offsets == sorted(self.holder)
        for caller in CALLERS:
            own = [offset for offset, who in self.holder.items() if who == caller]
            held = self.tracker.unacked_of(caller)
            assert (held.records, held.bytes) == (len(own), sum(len(f"record {o}") for o in own))
            assert self.tracker.last_ack_deadline_ns(caller) == max((self.due[o] for o in own), default=0)

    @invariant()
    def committed_is_what_was_acked(self) -> None:
        offset, metadata = self.tracker.position()
        assert offset == min(self.holder, default=self.next)
        above = {o for start, end in committed_ranges(offset, metadata, end=END) for o in range(start, end)}
        assert above == {o for o in self.acked if o >= offset}


TestBatchesAgainstADict = BatchesAgainstADict.TestCase
TestBatchesAgainstADict.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
