from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.tables import OHLC
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.policy import (
    Compact,
    MergeManifests,
    PartitionState,
    PartitionValue,
    TableState,
    plan,
    predicate,
)
from dexorder_spark.maintenance.snapshots import ExpireSnapshots, SnapshotState

MB = 1024 * 1024
DAY = 24 * 3_600 * 1_000_000_000
HOUR = DAY // 24
NOW = 1_000 * DAY
SETTINGS = MaintenanceSettings()
CUTS = (PartitionValue("open_time", "month", 648), PartitionValue("ticker", "bucket[4]", 2))


def part(small: int = 0, large: int = 0, deletes: int = 0, small_mb: int = 1) -> PartitionState:
    return PartitionState(
        CUTS, small + large, (small * small_mb + large * 120) * MB, small, small * small_mb * MB, deletes
    )


def state(*parts: PartitionState, manifests: int = 1, ages: tuple[int, ...] = (0,)) -> TableState:
    snapshots = tuple(SnapshotState(n, NOW - age) for n, age in enumerate(sorted(ages, reverse=True)))
    return TableState(OHLC.name, parts, manifests, snapshots)


def steps(table: TableState, settings: MaintenanceSettings = SETTINGS, *, eager: bool = False) -> list[object]:
    return list(plan(table, settings, now_ns=NOW, eager=eager))


@pytest.mark.parametrize(
    ("what", "due"),
    [
        (part(), False),
        (part(small=15, large=40), False),
        (part(small=16), True),
        (part(large=3, deletes=7), False),
        (part(large=3, deletes=8), True),
    ],
)
def test_a_partition_is_due_by_its_small_files_or_its_delete_files(what: PartitionState, due: bool) -> None:
    found = steps(state(part(), what))
    assert [isinstance(step, Compact) for step in found] == [True] * due


def test_a_run_on_request_reduces_everything_possible() -> None:
    assert steps(state(part(small=2), manifests=1), eager=True)
    assert steps(state(part(large=1, deletes=1), manifests=1), eager=True)
    assert not steps(state(part(small=1, large=5), manifests=1), eager=True)
    aged = state(manifests=2, ages=(3 * HOUR, 8 * DAY))
    assert steps(aged, eager=True) == [MergeManifests(), ExpireSnapshots((0,))]
    assert steps(replace(aged, named=None), eager=True) == [MergeManifests()], "nobody knows what must be kept"


def test_a_step_takes_about_its_bytes_and_repeats_until_all_is_done() -> None:
    (step,) = steps(state(part(small=100, small_mb=10)))
    assert isinstance(step, Compact)
    assert (step.max_files, step.repeats, step.deletes, step.saved_files) == (25, 4, 0, 92)
    (step,) = steps(state(part(small=4, large=8, deletes=9)))
    assert isinstance(step, Compact)
    assert (step.max_files, step.repeats, step.deletes) == (3, 4, 9)


@given(st.integers(2, 5_000), st.integers(0, 50), st.integers(0, 50), st.integers(0, 15))
def test_every_step_is_bounded(small: int, large: int, deletes: int, small_mb: int) -> None:
    what = part(small, large, deletes, small_mb)
    for step in steps(state(what), SETTINGS.model_copy(update={"small_files": 2})):
        assert isinstance(step, Compact)
        assert 2 <= step.max_files <= max(2, what.data_files)
        average = what.data_bytes / what.data_files
        assert step.max_files == 2 or step.deletes or step.max_files * what.small_bytes / small <= SETTINGS.step_bytes
        assert not step.deletes or step.max_files == 2 or step.max_files * average <= SETTINGS.step_bytes
        assert 1 <= step.repeats <= 20


def test_many_manifests_are_merged() -> None:
    assert steps(state(manifests=63)) == []
    assert steps(state(manifests=64)) == [MergeManifests()]


@pytest.mark.parametrize(
    ("cuts", "text"),
    [
        ((), ""),
        (
            CUTS,
            "open_time >= TIMESTAMP '2024-01-01 00:00:00+00:00' AND open_time < TIMESTAMP '2024-02-01 00:00:00+00:00'"
            " AND `dx`.system.bucket(4, ticker) = 2",
        ),
        (
            (PartitionValue("open_time", "month", -1),),
            "open_time >= TIMESTAMP '1969-12-01 00:00:00+00:00' AND open_time < TIMESTAMP '1970-01-01 00:00:00+00:00'",
        ),
        ((PartitionValue("ticker", "bucket[4]", None),), "ticker IS NULL"),
        ((PartitionValue("ticker", "truncate[3]", "BTC"), PartitionValue("open_time", "day", 3)), ""),
    ],
)
def test_a_partition_in_words(cuts: tuple[PartitionValue, ...], text: str) -> None:
    assert predicate(cuts, "dx") == text
