"""Number of rows by time, for reads of rows that have no grid in windows of bounded size. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS

MAX_BUCKETS = 100_000
FIRST_WIDTH_US = 1_000_000
Integers = NDArray[np.int64]


class TimeCounts:
    """Counts of rows in buckets of one width, at most ``MAX_BUCKETS``.

    The width is a second at first, and doubles whenever there would be more: 1.6 MB however many rows there are.
    """

    def __init__(self) -> None:
        self.total = 0
        self._width_us = FIRST_WIDTH_US
        self._buckets: Integers = np.empty(0, np.int64)
        self._counts: Integers = np.empty(0, np.int64)

    def add(self, times_us: Integers) -> None:
        """Count rows, in any order, by their times in microseconds since the epoch."""
        self.total += len(times_us)
        found, counts = np.unique(times_us // self._width_us, return_counts=True)
        self._join(np.concatenate([self._buckets, found]), np.concatenate([self._counts, counts]))
        while len(self._buckets) > MAX_BUCKETS:
            self._width_us *= 2
            self._join(self._buckets // 2, self._counts)

    def windows(self, limit: int) -> list[TimeRange]:
        """Return ranges, ascending, that contain all rows, each with at most ``limit`` of them.

        A bucket with more rows is a range of its own. Time between two ranges has no rows.
        """
        ranges, size, first = list[tuple[int, int]](), 0, 0
        buckets, counts = self._buckets.tolist(), self._counts.tolist()
        for index, count in enumerate(counts):
            if size and size + count > limit:
                ranges.append((buckets[first], buckets[index - 1] + 1))
                size, first = 0, index
            size += count
        if size:
            ranges.append((buckets[first], buckets[-1] + 1))
        width_ns = self._width_us * 1_000
        return [TimeRange(start * width_ns, min(end * width_ns, MAX_TIME_NS)) for start, end in ranges]

    def _join(self, buckets: Integers, counts: Integers) -> None:
        self._buckets, places = np.unique(buckets, return_inverse=True)
        self._counts = np.zeros(len(self._buckets), np.int64)
        np.add.at(self._counts, places, counts)
