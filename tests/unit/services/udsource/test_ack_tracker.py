from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.model.errors import InvalidRequest
from services.udsource.ack_tracker import AckTracker


def handed_out(*offsets: int, committed: int | None = None) -> AckTracker:
    ledger = AckTracker()
    ledger.assign(0, committed)
    assert all(ledger.deliver(0, offset) for offset in offsets)
    return ledger


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
    ledger = handed_out(*offsets)
    for offset in acks:
        assert ledger.ack([(0, offset)], {}) == 1
    assert ledger.commits() == commit
    assert ledger.commits() == {}  # given out once
    ledger.commit_failed([0])
    assert ledger.commits() == (commit or {0: offsets[0]})


def test_ack_below_the_base_changes_nothing() -> None:
    ledger = handed_out(7, 8, committed=7)
    assert ledger.ack([(0, 3), (0, 7), (0, 7)], {}) == 1
    assert ledger.ack([(0, 7)], {}) == 0
    assert ledger.ack([(4, 10)], {4: 11}) == 0  # settled by another process of the group


@pytest.mark.parametrize("pair", [(0, 9), (0, 6), (1, 0), (4, 11), (-1, 0)])
def test_what_was_never_handed_out_can_be_neither_acked_nor_nacked(pair: tuple[int, int]) -> None:
    ledger = handed_out(5, 8)
    for answer in (ledger.ack, ledger.nack):
        with pytest.raises(InvalidRequest, match=f"offset {pair[1]} of partition {pair[0]}"):
            answer([(0, 5), pair], {4: 11})
    assert ledger.in_flight() == 2  # all or none
    assert ledger.commits() == {}


def test_new_client_gets_what_is_in_flight_and_nothing_twice() -> None:
    ledger = handed_out(0, 1, 2, 3)
    ledger.ack([(0, 1)], {})
    assert not any(ledger.deliver(0, offset) for offset in range(4))
    assert ledger.rewinds() == {}
    ledger.restart()
    assert ledger.rewinds() == {0: 0}
    ledger.rewound(0)
    assert [offset for offset in range(5) if ledger.deliver(0, offset)] == [0, 2, 3, 4]
    assert (ledger.redelivered, ledger.lost) == (3, 0)


def test_late_ack_of_the_first_copy_spares_the_second() -> None:
    ledger = handed_out(0, 1)
    ledger.restart()
    assert ledger.ack([(0, 0)], {}) == 1
    assert ledger.rewinds() == {0: 1}
    ledger.ack([(0, 1)], {})
    assert ledger.rewinds() == {}
    assert ledger.commits() == {0: 2}


def test_due_records_the_topic_has_dropped_are_settled_and_counted() -> None:
    ledger = handed_out(0, 1, 2, 3)
    ledger.restart()
    assert ledger.deliver(0, 4)  # read ahead of the rewind: says nothing about 0 to 3
    assert ledger.lost == 0
    ledger.rewinds()
    ledger.rewound(0)
    assert ledger.deliver(0, 2)
    assert ledger.lost == 2
    assert ledger.commits() == {0: 2}


def test_partition_that_went_and_came_back() -> None:
    ledger = handed_out(0, 1, 2, 3)
    ledger.revoke(0)
    assert ledger.assigned() == []
    ledger.ack([(0, 0), (0, 3)], {})  # still welcome, but committing is another's business
    assert ledger.commits() == {}
    ledger.assign(0, 2)  # another has done 0 and 1
    assert not any(ledger.deliver(0, offset) for offset in (2, 3))
    assert ledger.ack([(0, 2)], {}) == 1
    assert ledger.commits() == {0: 4}


def test_commit_that_had_not_arrived_before_the_partition_came_back_is_repeated() -> None:
    ledger = handed_out(5, 6, committed=5)
    ledger.ack([(0, 5), (0, 6)], {})
    ledger.commits()
    ledger.revoke(0)
    ledger.assign(0, 5)
    assert ledger.commits() == {0: 7}


def test_lag_counts_what_is_not_acked() -> None:
    ledger = handed_out(3, 4, 5)
    ledger.ack([(0, 4)], {})
    starts, ends = {0: 3, 1: 10, 2: 0}, {0: 8, 1: 20, 2: 5}
    assert ledger.lag(starts, ends, {2: 1}) == (8 - 3 - 1) + (20 - 10) + (5 - 1)
    ledger.revoke(0)
    assert ledger.lag(starts, ends, {0: 7, 1: 20, 2: 5}) == 1


class LedgerModel(RuleBasedStateMachine):
    """One partition of ten records behind a consumer that reads in order and rewinds when told."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = AckTracker()
        self.ledger.assign(0, None)
        self.log = [0, 1, 2, 5, 6, 7, 9, 10, 14, 15]
        self.read_at = 0
        self.flying: set[int] = set()  # on the current stream, not answered
        self.seen: set[int] = set()
        self.acked: set[int] = set()
        self.committed = 0

    @rule(most=st.integers(1, 4))
    def read(self, most: int) -> None:
        for offset in self.ledger.rewinds().values():
            self.read_at = offset
            self.ledger.rewound(0)
        for offset in [o for o in self.log if o >= self.read_at][:most]:
            if self.ledger.deliver(0, offset):
                assert offset not in self.flying and offset not in self.acked
                self.flying.add(offset)
                self.seen.add(offset)
            self.read_at = offset + 1

    @rule(offset=st.integers(0, 16))
    def ack(self, offset: int) -> None:
        if offset in self.seen:
            assert self.ledger.ack([(0, offset)], {}) == (offset not in self.acked)
            self.acked.add(offset)
            self.flying.discard(offset)
        elif offset > max(self.acked | self.seen, default=-1):
            with pytest.raises(InvalidRequest):
                self.ledger.ack([(0, offset)], {})

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.flying)))
        assert self.ledger.nack([(0, offset)], {}) == 1
        self.flying.discard(offset)

    @rule()
    def new_client(self) -> None:
        self.ledger.restart()
        self.flying.clear()

    @rule(arrives=st.booleans())
    def commit(self, arrives: bool) -> None:
        for position in self.ledger.commits().values():
            if arrives:
                assert position >= self.committed
                self.committed = position
            else:
                self.ledger.commit_failed([0])

    @rule()
    def crash(self) -> None:
        """Another process: it knows the commit and nothing else."""
        self.ledger = AckTracker()
        self.ledger.assign(0, self.committed or None)
        self.read_at = self.committed
        self.flying.clear()
        self.seen = {o for o in self.log if o < self.committed}
        self.acked &= self.seen

    @invariant()
    def nothing_unacked_is_committed(self) -> None:
        assert all(o in self.acked for o in self.log if o < self.committed)
        assert self.ledger.in_flight() == len(self.flying)

    def teardown(self) -> None:
        """Whatever happened, one more client gets and acks the rest, and all of it is committed."""
        self.new_client()
        for _ in self.log:
            self.read(4)
            for offset in sorted(self.flying):
                self.ack(offset)
        self.commit(arrives=True)
        assert self.acked == set(self.log)
        assert self.committed == 16


LedgerModel.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_ledger_model = LedgerModel.TestCase
