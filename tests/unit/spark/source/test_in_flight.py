"""Records between their read and their ack."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.source.in_flight import BatchOffset, InFlight, RecordId, cut, is_batch_offset, records_to_request
from dexorder_spark.source.records import to_batch
from tests.unit.spark.source.plain_source import id_of, record


def add(in_flight: InFlight, numbers: Sequence[int], size: int = 1) -> None:
    records = [record(number) for number in numbers]
    in_flight.add(to_batch(records), [id_of(r) for r in records], [size] * len(records))


def numbers(in_flight: InFlight, start: BatchOffset, end: BatchOffset) -> list[int]:
    return [int(row["payload"]) for part in in_flight.parts(start, end) for row in part.to_pylist()]


def ids(*numbers_: int) -> list[RecordId]:
    return [id_of(record(number)) for number in numbers_]


def test_a_batch_has_the_records_since_the_last_one_and_without_any_keeps_its_offset() -> None:
    in_flight = InFlight("r")
    start = in_flight.end
    assert in_flight.offer() == start == BatchOffset("r", 0)
    add(in_flight, [1, 2])
    add(in_flight, [3])
    assert in_flight.open_records == 3
    first = in_flight.offer()
    assert in_flight.offer() == first == BatchOffset("r", 1)
    add(in_flight, [4])
    second = in_flight.offer()
    assert numbers(in_flight, start, first) == [1, 2, 3]
    assert numbers(in_flight, first, second) == [4]
    assert numbers(in_flight, start, second) == [1, 2, 3, 4]
    assert numbers(in_flight, second, second) == []


def test_a_new_run_continues_after_its_checkpoint_without_records_of_older_runs() -> None:
    in_flight = InFlight("new")
    in_flight.resume(BatchOffset("old", 7))
    assert in_flight.offer() == BatchOffset("old", 7)
    assert numbers(in_flight, BatchOffset("old", 6), BatchOffset("old", 7)) == []
    in_flight.commit(BatchOffset("old", 7))
    add(in_flight, [1])
    end = in_flight.offer()
    assert end == BatchOffset("new", 1)
    assert numbers(in_flight, BatchOffset("old", 7), end) == [1]
    in_flight.resume(BatchOffset("old", 7))
    assert in_flight.offer() == end, "too late: it has offered already"


def test_only_committed_records_are_to_be_acked_and_their_rows_are_dropped() -> None:
    in_flight = InFlight("r")
    for number in range(3):
        add(in_flight, [number])
        in_flight.offer()
    in_flight.commit(BatchOffset("r", 2))
    assert in_flight.to_ack == {1: ids(0), 2: ids(1)}
    with pytest.raises(InvalidRequest, match=r"\[1, 2\]"):
        in_flight.parts(BatchOffset("r", 0), BatchOffset("r", 3))
    in_flight.settle(1)
    in_flight.commit(BatchOffset("r", 2))
    assert in_flight.to_ack == {2: ids(1)}
    assert numbers(in_flight, BatchOffset("r", 2), BatchOffset("r", 3)) == [2]


def test_a_copy_is_not_fresh_until_its_record_is_settled() -> None:
    in_flight = InFlight("r")
    assert in_flight.fresh([*ids(1, 2), *ids(1)]) == [0, 1]
    add(in_flight, [1])
    assert in_flight.fresh(ids(1, 2)) == [1]
    in_flight.commit(in_flight.offer())
    assert in_flight.fresh(ids(1, 2)) == [1], "owed"
    in_flight.settle(1)
    assert in_flight.fresh(ids(1)) == [0], "its source gives it again, as it may"
    assert in_flight.fresh([(0, b"o-1"), (1, b"o-1")]) == [0, 1], "an offset is one of its partition"


@pytest.mark.parametrize("offset", [{}, {"0": 17}, {"run": 3, "batch": 1}, {"run": "a"}, {"run": "a", "batch": "1"}])
def test_another_sources_offset_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="without replay"):
        BatchOffset.from_json(offset)


def test_offsets_tell_which_kind_they_are() -> None:
    mark = BatchOffset("r", 3)
    assert BatchOffset.from_json(mark.to_json()) == mark
    assert is_batch_offset(mark.to_json())
    assert not is_batch_offset({"0": 17})


@given(st.lists(st.integers(0, 6 * 1024 * 1024), max_size=60))
def test_parts_cover_everything_once_and_none_is_too_large_or_too_small(sizes: list[int]) -> None:
    parts = cut(sizes)
    assert [index for first, last in parts for index in range(first, last)] == list(range(len(sizes)))
    limit = min(max(sum(sizes) // 8, 256 * 1024), 4 * 1024 * 1024)
    for first, last in parts:
        assert last == first + 1 or sum(sizes[first:last]) <= limit
    for (first, last), (_, after) in itertools.pairwise(parts):
        assert sum(sizes[first : last + 1]) > limit, f"[{first}, {after}) would have had room in one"


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], 0),
        ([1], 1),
        ([1_000] * 200, 1),
        ([100_000] * 80, 8),
        ([1_000_000] * 80, 20),
        ([60_000_000] * 3, 3),
    ],
)
def test_small_batches_are_one_task_and_large_ones_several(sizes: list[int], parts: int) -> None:
    assert len(cut(sizes)) == parts


@pytest.mark.parametrize(
    ("limit", "left_bytes", "record_bytes", "asked"),
    [(600, 10, 0, 600), (600, 1_000, 10, 100), (50, 1_000, 10, 50), (600, 5, 10, 1), (1, 1, 1, 1)],
)
def test_the_number_of_requested_records_follows_their_size(
    limit: int, left_bytes: int, record_bytes: float, asked: int
) -> None:
    assert records_to_request(limit, left_bytes, record_bytes) == asked


class HeldMachine(RuleBasedStateMachine):
    """A source that repeats itself, a Spark that commits in order, and acks that get lost."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight("r")
        self.sent = 0
        self.offers = [self.in_flight.end]
        self.delivered: list[int] = []
        self.committed: set[RecordId] = set()
        self.settled: set[RecordId] = set()

    @rule(count=st.integers(1, 4), again=st.integers(0, 4))
    def read(self, count: int, again: int) -> None:
        unsettled = [n for n in range(self.sent) if ids(n)[0] not in self.settled][:again]
        came = [*unsettled, *range(self.sent, self.sent + count)]
        self.sent += count
        fresh = self.in_flight.fresh(ids(*came))
        assert [came[index] for index in fresh] == came[len(unsettled) :]
        add(self.in_flight, [came[index] for index in fresh])

    @rule()
    def offer(self) -> None:
        end = self.in_flight.offer()
        if end != self.offers[-1]:
            self.offers.append(end)
            self.delivered += numbers(self.in_flight, self.offers[-2], end)

    @precondition(lambda self: len(self.offers) > 1)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.offers))
        for number in range(1, end.batch + 1):
            if number not in self.in_flight.to_ack and number in self.in_flight._offered:
                self.committed |= set(self.in_flight._offered[number].ids)
        self.in_flight.commit(end)

    @precondition(lambda self: bool(self.in_flight.to_ack))
    @rule()
    def settle(self) -> None:
        batch, to_ack = next(iter(self.in_flight.to_ack.items()))
        self.settled |= set(to_ack)
        self.in_flight.settle(batch)

    @invariant()
    def nothing_is_acked_before_it_is_committed(self) -> None:
        to_ack = {one for batch in self.in_flight.to_ack.values() for one in batch}
        assert to_ack | self.settled == self.committed
        assert not to_ack & self.settled

    @invariant()
    def every_record_is_delivered_once_in_order(self) -> None:
        assert self.delivered == list(range(len(self.delivered)))
        assert len(self.delivered) + self.in_flight.open_records == self.sent

    @invariant()
    def nothing_stays_in_memory(self) -> None:
        assert self.in_flight.records == self.sent - len(self.settled)


TestHeld = HeldMachine.TestCase
