"""Records that fail every batch in which they are, found by processing parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import Unavailable
from dexorder_spark.pipeline.batch import isolate
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.source.offsets import OffsetRange

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
    assert batches.attempts <= 1 + 23 * len(bad), "two for each halving of 600 records, and a second one at the end"


def test_no_record_is_blamed_while_a_good_one_fails_too() -> None:
    batches = Batches({*EVERY})

    def check() -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        isolate(RANGES, batches.attempt, check, batches.skip)
    assert not batches.skipped


class Outage:
    """A source that is lost for some attempts; a check says so until one of them works."""

    def __init__(self, batches: Batches, failures: int, error: Exception) -> None:
        self.batches = batches
        self.failures = failures
        self.error = error

    def attempt(self, ranges: Sequence[OffsetRange]) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        self.batches.attempt(ranges)

    def check(self) -> None:
        if self.failures > 0:
            raise Unavailable("source: Failed to get metadata")


@pytest.mark.parametrize("error", [Unavailable("source: lost"), RuntimeError("PythonException: Unavailable")])
def test_a_source_that_is_lost_for_a_while_is_not_taken_for_a_bad_record(error: Exception) -> None:
    for failures in range(1, 30):
        outage = Outage(Batches(set()), failures, error)
        with suppress(Unavailable):
            isolate(RANGES, outage.attempt, outage.check, outage.batches.skip)
        assert not outage.batches.skipped


def test_a_record_that_fails_once_is_tried_again() -> None:
    """The outage ends between the attempt and the check, which finds everything well."""
    batches = Batches(set())
    failing = iter(range(11))  # of the whole batch and of ten halves, down to one record

    def attempt(ranges: Sequence[OffsetRange]) -> None:
        if next(failing, None) is not None:
            raise RuntimeError("PythonException: Unavailable")
        batches.attempt(ranges)

    assert isolate(RANGES, attempt, lambda: None, batches.skip) == 0
    assert not batches.skipped
    assert batches.done == EVERY


def test_a_stopping_driver_blames_nothing() -> None:
    def attempt(ranges: Sequence[OffsetRange]) -> None:
        raise Stopped("stopping")

    batches = Batches(set())
    with pytest.raises(Stopped):
        isolate(RANGES, attempt, lambda: None, batches.skip)
    assert not batches.skipped
