"""The ack tracker, against tables and against a plain set of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dexorder_common.kafka.ack_tracker import NEVER_NS, AckTracker
from dexorder_common.kafka.commits import Commit, commit_metadata, committed_ranges
from dexorder_common.model.errors import Exhausted

TIMEOUT = 100
END = 10**9


def deliver(to: AckTracker, *offsets: int, now_ns: int = 0) -> list[int]:
    return [offset for offset in offsets if to.deliver(offset, now_ns + TIMEOUT) is not None]


def redeliver(of: AckTracker, now_ns: int) -> int | None:
    found = of.redeliver(now_ns + TIMEOUT, now_ns=now_ns)
    return None if found is None else found[0]


def position(of: AckTracker) -> Commit:
    return of.lowest_unacked, commit_metadata(of.lowest_unacked, of.acked_above())


def after_restart(of: AckTracker) -> AckTracker:
    offset, metadata = position(of)
    return AckTracker(offset, committed_ranges(offset, metadata, end=END))


@pytest.mark.parametrize(
    ("delivered", "acked", "commit"),
    [
        ([], [], (0, "")),
        ([0], [], (0, "")),
        ([0], [0], (1, "")),
        ([0, 1, 2], [0], (1, "")),
        ([0, 1, 2], [0, 2], (1, "BB.DswA")),
        ([0, 1, 2, 3, 4], [1, 3, 4], (0, "BBBC./2H4")),
        ([0, 1, 2, 3, 4], [4, 3, 1, 0, 2], (5, "")),
        ([0, 1, 2, 3, 4], [1, 2, 3, 4], (0, "BE.Fn/2")),
        # Holes count as acked: Kafka has no records 2 to 4.
        ([0, 1, 5], [0, 1], (5, "")),
        ([0, 1, 5], [1], (0, "BE.Fn/2")),
        # Acked before their delivery.
        ([0], [3], (0, "DB.gvc5")),
        ([0], [0, 1], (1, "AB.AjlL")),
        ([], [0], (0, "AB.l+jk")),
        ([], [2, 0, 1], (0, "AD.QqZ8")),
    ],
)
def test_commit_is_the_lowest_unacked_offset(delivered: list[int], acked: list[int], commit: Commit) -> None:
    of = AckTracker(0)
    assert deliver(of, *delivered) == delivered
    assert all(of.ack(offset) for offset in acked)
    assert position(of) == commit


def test_second_ack_changes_nothing() -> None:
    of = AckTracker(0)
    deliver(of, 0, 1)
    assert [of.ack(1), of.ack(1), of.ack(7), of.ack(7)] == [True, False, True, False]
    assert position(of) == (0, "BBFB.tg4i")


def test_number_of_early_acks_is_limited() -> None:
    of = AckTracker(0, max_early=2)
    of.ack(10)
    of.ack(20)
    of.ack(11)  # extends a range
    with pytest.raises(Exhausted, match="30"):
        of.ack(30)


def test_early_acks_beyond_the_logs_end_are_forgotten() -> None:
    of = AckTracker(0, [(2, 4), (6, 9), (11, 12)])
    of.cut(7)
    assert deliver(of, *range(13)) == [0, 1, 4, 5, 7, 8, 9, 10, 11, 12]


def test_records_are_due_again_after_the_timeout_lowest_first() -> None:
    of = AckTracker(0)
    for offset in range(3):
        deliver(of, offset, now_ns=10 * offset)
    assert redeliver(of, TIMEOUT - 1) is None
    assert redeliver(of, TIMEOUT) == 0
    assert redeliver(of, TIMEOUT) is None
    of.ack(1)
    assert redeliver(of, TIMEOUT + 20) == 2
    assert redeliver(of, 2 * TIMEOUT + 20) == 0
    assert redeliver(of, 2 * TIMEOUT + 20) == 2


def test_record_given_back_is_due_at_once_and_not_counted_as_a_retry() -> None:
    of = AckTracker(0)
    deliver(of, 0, 1)
    assert of.give_back(1, now_ns=5)
    assert not of.give_back(1, now_ns=5)
    assert not of.give_back(9, now_ns=5)
    assert (of.pending, of.in_flight) == (2, 1)
    assert of.give_up(0, now_ns=5) == []
    assert of.redeliver(5 + TIMEOUT, now_ns=5) == (1, "given_back")
    assert redeliver(of, 5) is None
    assert of.give_up(0, now_ns=5 + TIMEOUT) == [0, 1]


def test_record_is_given_up_after_its_last_retry() -> None:
    of = AckTracker(0)
    deliver(of, 0)
    for retry in (1, 2):
        assert of.give_up(2, now_ns=retry * TIMEOUT) == []
        assert redeliver(of, retry * TIMEOUT) == 0
    assert of.give_up(2, now_ns=3 * TIMEOUT - 1) == []
    assert of.give_up(2, now_ns=3 * TIMEOUT) == [0]
    assert position(of) == (1, "")


def test_records_read_again_are_delivered_once_and_missing_ones_are_lost() -> None:
    of = AckTracker(0)
    deliver(of, 0, 1, 2, 3, 4)
    for offset in (0, 1, 3):
        of.give_back(offset, now_ns=0)
    of.ack(0)  # late, of the first copy
    assert of.read_again() == 1
    assert deliver(of, 2, 3, 4, 5) == [3, 5]  # the log does not have 1 any more
    assert (of.lost, of.lowest_unacked) == (1, 2)
    assert of.read_again() is None


@pytest.mark.parametrize(
    ("offset", "acked", "commit"),
    [
        (0, (), (0, "BBBB.p005")),
        (2, (), (2, "BB.tTqt")),
        (2, ((4, 5),), (2, "BC.7RZs")),
        (2, ((2, 3), (7, 9)), (4, "DC.hwGg")),
        (6, (), (6, "")),
    ],
)
def test_acks_of_a_later_commit_are_added(offset: int, acked: tuple[tuple[int, int], ...], commit: Commit) -> None:
    """0 to 4 delivered, 1 and 3 acked, when the partition returns from another member."""
    of = AckTracker(0)
    deliver(of, 0, 1, 2, 3, 4)
    of.ack(1)
    of.ack(3)
    of.join(offset, acked)
    assert position(of) == commit
    assert deliver(of, 0, 1, 2, 3, 4) == []  # acked or still in flight


def test_unacked_offsets_before_the_logs_end() -> None:
    of = AckTracker(3, [(7, 9)])
    deliver(of, 3, 4, 5)
    of.ack(4)
    assert [of.unacked(end) for end in (6, 8, 20)] == [2, 3, 14]


class AgainstASet(RuleBasedStateMachine):
    """Offsets with holes, delivered, acked, given back, timed out and restarted in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = AckTracker(0)
        self.now = 0
        self.next = 0
        self.acked: set[int] = set()
        self.pending: dict[int, int] = {}

    @rule(hole=st.integers(0, 3))
    def offer_next(self, hole: int) -> None:
        self.acked.update(range(self.next, self.next + hole))
        offset = self.next + hole
        assert self.tracker.acked_next(offset) == (offset in self.acked)
        if deliver(self.tracker, offset, now_ns=self.now):
            assert offset not in self.acked
            self.pending[offset] = self.now + TIMEOUT
        else:
            assert offset in self.acked
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
        if self.tracker.give_back(offset, now_ns=self.now):
            self.pending[offset] = self.now

    @rule(back=st.integers(0, 6), acked=st.lists(st.integers(0, 8), unique=True))
    def another_member_commits(self, back: int, acked: list[int]) -> None:
        base = position(self.tracker)[0]
        offset = max(base, self.next - back)
        others = sorted({offset + each for each in acked})
        self.tracker.join(offset, [(each, each + 1) for each in others])
        self.acked.update(range(base, offset), others)
        self.pending = {o: due for o, due in self.pending.items() if o not in self.acked}
        self.next = max(self.next, offset)

    @rule(kept=st.booleans())
    def restart(self, kept: bool) -> None:
        if kept:
            self.tracker.forget_pending()
        else:
            self.tracker = after_restart(self.tracker)
        self.next = min(self.pending, default=self.next)
        self.pending = {}

    @invariant()
    def committed_is_what_was_acked(self) -> None:
        offset, metadata = position(self.tracker)
        assert offset == min(self.pending, default=self.next)
        above = {o for start, end in committed_ranges(offset, metadata, end=END) for o in range(start, end)}
        assert above == {o for o in self.acked if o >= offset}
        assert self.tracker.pending_offsets == sorted(self.pending)
        assert self.tracker.last_ack_deadline_ns() == max(self.pending.values(), default=0)


TestAgainstASet = AgainstASet.TestCase
TestAgainstASet.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 40), unique=True), st.integers(0, 41))
def test_any_crash_point_loses_no_ack_and_no_record(acks: list[int], crash_after: int) -> None:
    of = AckTracker(0)
    deliver(of, *range(41))
    for offset in acks[:crash_after]:
        of.ack(offset)
    again = after_restart(of)
    assert deliver(again, *range(position(of)[0], 41)) == sorted(set(range(41)) - set(acks[:crash_after]))


def test_nothing_is_due_without_a_timeout() -> None:
    of = AckTracker(0)
    assert of.deliver(0, NEVER_NS) == ""
    assert of.redeliver(NEVER_NS, now_ns=NEVER_NS - 1) is None
