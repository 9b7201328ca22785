from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.model.errors import InvalidRequest
from services.udsource.ack_tracker import AckTracker


def issued(*offsets: int, committed: int | None = None) -> AckTracker:
    tracker = AckTracker()
    tracker.assign(0, committed)
    assert all(tracker.issue(0, offset) for offset in offsets)
    return tracker


@pytest.mark.parametrize(
    ("offsets", "acks", "commit"),
    [
        ([0, 1, 2], [0], {0: 1}),
        ([0, 1, 2], [0, 1, 2], {0: 3}),
        ([0, 1, 2], [2, 1], {}),
        ([0, 1, 2], [2, 0], {0: 1}),
        ([5, 8, 9], [5], {0: 8}),  # a hole belongs to what is before it
        ([5, 8, 9], [5, 9], {0: 8}),
        ([5, 8, 9], [9, 8, 5], {0: 10}),
    ],
)
def test_commit_is_the_first_offset_not_acked(offsets: list[int], acks: list[int], commit: dict[int, int]) -> None:
    tracker = issued(*offsets)
    for offset in acks:
        assert tracker.ack([(0, offset)], {}) == 1
    assert tracker.commits() == commit
    assert tracker.commits() == {}  # given out once
    tracker.commit_failed([0])
    assert tracker.commits() == (commit or {0: offsets[0]})


def test_ack_below_the_base_changes_nothing() -> None:
    tracker = issued(7, 8, committed=7)
    assert tracker.ack([(0, 3), (0, 7), (0, 7)], {}) == 1
    assert tracker.ack([(0, 7)], {}) == 0
    assert tracker.ack([(4, 10)], {4: 11}) == 0  # settled by another process of the group


@pytest.mark.parametrize("pair", [(0, 9), (0, 6), (1, 0), (4, 11), (-1, 0)])
def test_offsets_never_issued_can_be_neither_acked_nor_nacked(pair: tuple[int, int]) -> None:
    tracker = issued(5, 8)
    for answer in (tracker.ack, tracker.nack):
        with pytest.raises(InvalidRequest, match=f"offset {pair[1]} of partition {pair[0]}"):
            answer([(0, 5), pair], {4: 11})
    assert tracker.in_flight() == 2  # all or none
    assert tracker.commits() == {}


def test_new_client_gets_records_in_flight_and_no_duplicates() -> None:
    tracker = issued(0, 1, 2, 3)
    tracker.ack([(0, 1)], {})
    assert not any(tracker.issue(0, offset) for offset in range(4))
    assert tracker.rewinds() == {}
    tracker.restart()
    assert tracker.rewinds() == {0: 0}
    tracker.rewound(0)
    assert [offset for offset in range(5) if tracker.issue(0, offset)] == [0, 2, 3, 4]
    assert (tracker.redelivered, tracker.lost) == (3, 0)


def test_late_ack_of_the_first_copy_cancels_the_second() -> None:
    tracker = issued(0, 1)
    tracker.restart()
    assert tracker.ack([(0, 0)], {}) == 1
    assert tracker.rewinds() == {0: 1}
    tracker.ack([(0, 1)], {})
    assert tracker.rewinds() == {}
    assert tracker.commits() == {0: 2}


def test_nacked_records_that_the_topic_dropped_are_acked_and_counted() -> None:
    tracker = issued(0, 1, 2, 3)
    tracker.restart()
    assert tracker.issue(0, 4)  # read ahead of the rewind: says nothing about 0 to 3
    assert tracker.lost == 0
    tracker.rewinds()
    tracker.rewound(0)
    assert tracker.issue(0, 2)
    assert tracker.lost == 2
    assert tracker.commits() == {0: 2}


def test_partition_that_was_revoked_and_assigned_again() -> None:
    tracker = issued(0, 1, 2, 3)
    tracker.revoke(0)
    assert tracker.assigned() == []
    tracker.ack([(0, 0), (0, 3)], {})  # still welcome, but committing is another's business
    assert tracker.commits() == {}
    tracker.assign(0, 2)  # another has done 0 and 1
    assert not any(tracker.issue(0, offset) for offset in (2, 3))
    assert tracker.ack([(0, 2)], {}) == 1
    assert tracker.commits() == {0: 4}


def test_commit_lost_before_the_partition_was_assigned_again_is_repeated() -> None:
    tracker = issued(5, 6, committed=5)
    tracker.ack([(0, 5), (0, 6)], {})
    tracker.commits()
    tracker.revoke(0)
    tracker.assign(0, 5)
    assert tracker.commits() == {0: 7}


def test_lag_counts_records_not_acked() -> None:
    tracker = issued(3, 4, 5)
    tracker.ack([(0, 4)], {})
    starts, ends = {0: 3, 1: 10, 2: 0}, {0: 8, 1: 20, 2: 5}
    assert tracker.lag(starts, ends, {2: 1}) == (8 - 3 - 1) + (20 - 10) + (5 - 1)
    tracker.revoke(0)
    assert tracker.lag(starts, ends, {0: 7, 1: 20, 2: 5}) == 1


class TrackerModel(RuleBasedStateMachine):
    """One partition of ten records behind a consumer that reads in order and rewinds when told."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = AckTracker()
        self.tracker.assign(0, None)
        self.log = [0, 1, 2, 5, 6, 7, 9, 10, 14, 15]
        self.read_at = 0
        self.in_flight: set[int] = set()  # on the current stream, not answered
        self.seen: set[int] = set()
        self.acked: set[int] = set()
        self.committed = 0

    @rule(most=st.integers(1, 4))
    def read(self, most: int) -> None:
        for offset in self.tracker.rewinds().values():
            self.read_at = offset
            self.tracker.rewound(0)
        for offset in [o for o in self.log if o >= self.read_at][:most]:
            if self.tracker.issue(0, offset):
                assert offset not in self.in_flight and offset not in self.acked
                self.in_flight.add(offset)
                self.seen.add(offset)
            self.read_at = offset + 1

    @rule(offset=st.integers(0, 16))
    def ack(self, offset: int) -> None:
        if offset in self.seen:
            assert self.tracker.ack([(0, offset)], {}) == (offset not in self.acked)
            self.acked.add(offset)
            self.in_flight.discard(offset)
        elif offset > max(self.acked | self.seen, default=-1):
            with pytest.raises(InvalidRequest):
                self.tracker.ack([(0, offset)], {})

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.in_flight)))
        assert self.tracker.nack([(0, offset)], {}) == 1
        self.in_flight.discard(offset)

    @rule()
    def new_client(self) -> None:
        self.tracker.restart()
        self.in_flight.clear()

    @rule(arrives=st.booleans())
    def commit(self, arrives: bool) -> None:
        for position in self.tracker.commits().values():
            if arrives:
                assert position >= self.committed
                self.committed = position
            else:
                self.tracker.commit_failed([0])

    @rule()
    def crash(self) -> None:
        """Replace the process by one that knows only the commit."""
        self.tracker = AckTracker()
        self.tracker.assign(0, self.committed or None)
        self.read_at = self.committed
        self.in_flight.clear()
        self.seen = {o for o in self.log if o < self.committed}
        self.acked &= self.seen

    @invariant()
    def nothing_unacked_is_committed(self) -> None:
        assert all(o in self.acked for o in self.log if o < self.committed)
        assert self.tracker.in_flight() == len(self.in_flight)

    def teardown(self) -> None:
        """Check that one more client gets and acks the rest, and everything is committed."""
        self.new_client()
        for _ in self.log:
            self.read(4)
            for offset in sorted(self.in_flight):
                self.ack(offset)
        self.commit(arrives=True)
        assert self.acked == set(self.log)
        assert self.committed == 16


TrackerModel.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_tracker_model = TrackerModel.TestCase
