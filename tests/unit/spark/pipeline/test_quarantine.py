"""Records that fail every batch in which they are, found by processing parts of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.pipeline.quarantine import isolate
from spark.pipeline.reporter import Stopped
from spark.source.offsets import OffsetRange

Place = tuple[int, int]
RANGES = [OffsetRange(0, 3, 303), OffsetRange(1, 0, 300)]
EVERY = [(each.partition, offset) for each in RANGES for offset in range(each.start, each.end)]


class Batches:
    """Batches of which those with a bad record fail."""

    def __init__(self, bad: set[Place]) -> None:
        self.bad = bad
        self.attempts = 0
        self.done: list[Place] = []
        self.skipped: list[Place] = []

    def attempt(self, ranges: Sequence[OffsetRange]) -> None:
        self.attempts += 1
        records = [(each.partition, offset) for each in ranges for offset in range(each.start, each.end)]
        if self.bad & {*records}:
            raise ValueError("the worker has crashed")
        self.done += records

    def skip(self, part: OffsetRange, reason: str) -> None:
        assert (part.end - part.start, reason) == (1, "ValueError: the worker has crashed")
        self.skipped.append((part.partition, part.start))
        self.done.append(self.skipped[-1])


@given(st.sets(st.sampled_from(EVERY), max_size=4))
def test_only_the_records_at_fault_are_skipped_and_all_are_settled_in_order(bad: set[Place]) -> None:
    batches = Batches(bad)
    assert isolate(RANGES, batches.attempt, lambda: None, batches.skip) == len(bad)
    assert {*batches.skipped} == bad
    assert batches.done == EVERY
    assert batches.attempts <= 1 + 22 * len(bad), "two for each halving of 600 records"


def test_no_record_is_blamed_while_a_good_one_fails_too() -> None:
    batches = Batches({*EVERY})

    def check() -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        isolate(RANGES, batches.attempt, check, batches.skip)
    assert not batches.skipped


def test_a_stopping_driver_blames_nothing() -> None:
    def attempt(ranges: Sequence[OffsetRange]) -> None:
        raise Stopped("stopping")

    batches = Batches(set())
    with pytest.raises(Stopped):
        isolate(RANGES, attempt, lambda: None, batches.skip)
    assert not batches.skipped
