"""The ack tracker, against tables and against a plain set of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.errors import Exhausted
from services.gateway.pixy.acks import AckRules, AckTracker
from services.gateway.pixy.sparse_acks import committed_ranges

TIMEOUT = 100
END = 10**9


def tracker(offset: int = 0, acked: tuple[tuple[int, int], ...] = (), **rules: int) -> AckTracker[str]:
    return AckTracker(offset, AckRules(**{"ack_timeout_ns": TIMEOUT, **rules}), acked)


def offer(to: AckTracker[str], *offsets: int, now_ns: int = 0) -> list[int]:
    return [o for o in offsets if to.offer([(o, f"record {o}")], now_ns=now_ns)]


def redeliver(of: AckTracker[str], now_ns: int) -> int | None:
    found = of.redeliver(now_ns=now_ns)
    return None if found is None else found.first


@pytest.mark.parametrize(
    ("offered", "acked", "position"),
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
        # Acked before they were offered.
        ([0], [3], (0, "DB.")),
        ([0], [0, 1], (1, "AB.")),
        ([], [0], (0, "AB.")),
        ([], [2, 0, 1], (0, "AD.")),
    ],
)
def test_position_is_the_lowest_unacked_offset(offered: list[int], acked: list[int], position: tuple[int, str]) -> None:
    of = tracker()
    assert offer(of, *offered) == offered
    assert all(of.ack(offset) for offset in acked)
    assert of.position() == position


def test_second_ack_changes_nothing() -> None:
    of = tracker()
    offer(of, 0, 1)
    assert [of.ack(1), of.ack(1), of.ack(7), of.ack(7)] == [True, False, True, False]
    assert of.position() == (0, "BBFB.")


def test_record_acked_ahead_is_skipped_when_it_comes() -> None:
    of = tracker()
    of.ack(1)
    assert offer(of, 0, 1, 2) == [0, 2]


def test_acks_ahead_are_bounded() -> None:
    of = tracker(max_pending=2)
    of.ack(10)
    of.ack(20)
    of.ack(11)  # joins a range, needs no further one
    with pytest.raises(Exhausted, match="30"):
        of.ack(30)


def test_restart_delivers_what_was_not_acked() -> None:
    of = tracker()
    offer(of, 0, 1, 2, 3, 4)
    for offset in (1, 3, 4):
        of.ack(offset)
    offset, metadata = of.position()
    again = tracker(offset, tuple(committed_ranges(offset, metadata, end=END)))
    assert again.position() == (offset, metadata)
    assert offer(again, *range(7)) == [0, 2, 5, 6]


def test_records_are_due_again_after_the_timeout_lowest_first() -> None:
    of = tracker()
    offer(of, 0, now_ns=0)
    offer(of, 1, now_ns=10)
    offer(of, 2, now_ns=20)
    assert redeliver(of, TIMEOUT - 1) is None
    assert redeliver(of, TIMEOUT) == 0
    assert redeliver(of, TIMEOUT) is None
    of.ack(1)
    assert redeliver(of, TIMEOUT + 20) == 2
    assert redeliver(of, 2 * TIMEOUT + 20) == 0
    assert redeliver(of, 2 * TIMEOUT + 20) == 2


def test_record_given_back_is_due_at_once_and_not_counted_as_a_retry() -> None:
    of = tracker(max_retries=0)
    offer(of, 0, 1)
    of.give_back(1, 1, now_ns=5)
    assert of.give_up(now_ns=5) == []
    assert redeliver(of, 5) == 1
    assert redeliver(of, 5) is None
    of.give_back(9, 9, now_ns=5)  # not pending: nothing happens
    assert [run.first for run in of.give_up(now_ns=5 + TIMEOUT)] == [0, 1]


def test_record_is_given_up_after_its_last_retry() -> None:
    of = tracker(max_retries=2)
    offer(of, 0)
    for retry in (1, 2):
        assert of.give_up(now_ns=retry * TIMEOUT) == []
        assert redeliver(of, retry * TIMEOUT) == 0
    assert of.give_up(now_ns=3 * TIMEOUT - 1) == []
    assert [run.records for run in of.give_up(now_ns=3 * TIMEOUT)] == [[(0, "record 0")]]
    assert of.position() == (1, "")


def test_full_until_a_record_is_acked() -> None:
    of = tracker(max_pending=2)
    seen = []
    for step in (lambda: offer(of, 0), lambda: offer(of, 1), lambda: of.ack(0)):
        step()
        seen.append((of.pending, of.full))
    assert seen == [(1, False), (2, True), (1, False)]


class AgainstASet(RuleBasedStateMachine):
    """Offsets with holes, offered, acked, timed out and restarted in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = tracker()
        self.now, self.next = 0, 0
        self.acked: set[int] = set()
        self.pending: dict[int, int] = {}

    @rule(hole=st.integers(0, 3))
    def offer_next(self, hole: int) -> None:
        self.acked.update(range(self.next, self.next + hole))
        offset = self.next + hole
        offered = self.tracker.offer([(offset, "")], now_ns=self.now) is not None
        assert offered == (offset not in self.acked)
        if offered:
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
    def ack_ahead(self, distance: int) -> None:
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
        self.next, self.pending = offset, {}

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
    offer(of, *range(41))
    for offset in acks[:crash_after]:
        of.ack(offset)
    offset, metadata = of.position()
    again = tracker(offset, tuple(committed_ranges(offset, metadata, end=END)))
    assert offer(again, *range(offset, 41)) == sorted(set(range(41)) - set(acks[:crash_after]))
