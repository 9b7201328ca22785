"""Windows of rows that have no grid: all rows, bounded in number, in bounded memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_relay.reading import rows
from dexorder_relay.reading.rows import TimeCounts

TIMES = st.lists(st.lists(st.integers(0, 30_000_000), max_size=40), max_size=5)


def counted(*parts: list[int]) -> TimeCounts:
    counts = TimeCounts()
    for part in parts:
        counts.add(np.array(part, np.int64))
    return counts


def test_rows_are_grouped_up_to_the_limit_and_gaps_are_left_out() -> None:
    counts = counted([5_000_000, 0, 1], [999_999, 900_000_000])
    assert counts.total == 5
    assert [(w.start_ns // SECOND_NS, w.end_ns // SECOND_NS) for w in counts.windows(4)] == [(0, 6), (900, 901)]
    assert [(w.start_ns // SECOND_NS, w.end_ns // SECOND_NS) for w in counts.windows(2)] == [(0, 1), (5, 901)]
    assert counted().windows(4) == counted([]).windows(4) == []


@given(TIMES, st.integers(1, 50))
def test_every_row_is_in_one_window_and_only_a_full_bucket_exceeds_the_limit(
    parts: list[list[int]], limit: int
) -> None:
    counts = counted(*parts)
    times_ns = [time * 1_000 for part in parts for time in part]
    windows = counts.windows(limit)
    sizes = [sum(w.start_ns <= time < w.end_ns for time in times_ns) for w in windows]
    assert sum(sizes) == counts.total == len(times_ns) and all(sizes)
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(windows))
    too_large = [w for w, size in zip(windows, sizes, strict=True) if size > limit]
    assert all(w.end_ns - w.start_ns == SECOND_NS for w in too_large)


def test_buckets_double_their_width_instead_of_growing_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BUCKETS", 10)
    counts = counted(*([1_000_000 * second] for second in range(1_000)))
    windows = counts.windows(1)
    assert len(windows) <= 10 and counts.total == 1_000
    assert windows[0].start_ns == 0 and windows[-1].end_ns >= 1_000 * SECOND_NS


def test_the_last_window_ends_with_time_itself() -> None:
    last = MAX_TIME_NS // 1_000
    assert counted([last]).windows(1) == [TimeRange(last // 1_000_000 * SECOND_NS, MAX_TIME_NS)]
