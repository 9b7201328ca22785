"""Claims of pages after retractions."""

from __future__ import annotations

import pytest

from services.common.lake.coverage import Retractions
from services.common.model.time_range import TimeRange, merge


def points(ranges: list[TimeRange]) -> list[tuple[int, int]]:
    return [(part.start_ns, part.end_ns) for part in ranges]


@pytest.mark.parametrize(
    ("made", "fetched_ns", "claimed"),
    [
        ([], 0, [(0, 10)]),
        ([(2, 4, 5)], 4, [(0, 2), (4, 10)]),
        ([(2, 4, 5)], 5, [(0, 10)]),  # fetched at that time is not fetched before it
        ([(2, 4, 5)], 6, [(0, 10)]),
        ([(20, 30, 5)], 0, [(0, 10)]),
        ([(0, 10, 5)], 4, []),
        ([(0, 6, 5), (4, 10, 9)], 7, [(0, 4)]),
        ([(4, 10, 9), (0, 6, 5)], 7, [(0, 4)]),  # in any order
        ([(0, 10, 9), (4, 6, 5)], 7, []),
        ([(4, 6, 5), (0, 10, 9)], 9, [(0, 10)]),
        ([(0, 10, 5), (4, 6, 9)], 7, [(0, 4), (6, 10)]),
    ],
)
def test_later_retraction_removes_the_claim_inside_it(
    made: list[tuple[int, int, int]], fetched_ns: int, claimed: list[tuple[int, int]]
) -> None:
    retractions = Retractions()
    for start, end, retracted_ns in made:
        retractions.add(TimeRange(start, end), retracted_ns)
    assert points(retractions.claimed(TimeRange(0, 10), fetched_ns)) == claimed
    both = [*retractions.claimed(TimeRange(0, 10), fetched_ns), *retractions.taken(TimeRange(0, 10), fetched_ns)]
    assert merge(both) == [TimeRange(0, 10)]
    assert retractions.latest_ns == max((each[2] for each in made), default=0)
