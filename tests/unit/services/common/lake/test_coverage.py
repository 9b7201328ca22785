"""Claims of pages after retractions."""

from __future__ import annotations

import pytest

from dexorder_common.lake.coverage import Order, Retractions
from dexorder_common.model.time_range import TimeRange, merge


def points(ranges: list[TimeRange]) -> list[tuple[int, int]]:
    return [(part.start_ns, part.end_ns) for part in ranges]


@pytest.mark.parametrize(
    "numbered", [True, False], ids=["by number, against the clock", "by time, from before numbers"]
)
@pytest.mark.parametrize(
    ("made", "at", "claimed"),
    [
        ([], 0, [(0, 10)]),
        ([(2, 4, 5)], 4, [(0, 2), (4, 10)]),
        ([(2, 4, 5)], 5, [(0, 10)]),  # at the same place is not before it
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
    made: list[tuple[int, int, int]], at: int, claimed: list[tuple[int, int]], numbered: bool
) -> None:
    def order(place: int) -> Order:
        return Order(1 + place, 100 - place) if numbered else Order(0, place)

    retractions = Retractions()
    for start, end, place in made:
        retractions.add(TimeRange(start, end), order(place))
    assert points(retractions.claimed(TimeRange(0, 10), order(at))) == claimed
    both = [*retractions.claimed(TimeRange(0, 10), order(at)), *retractions.taken(TimeRange(0, 10), order(at))]
    assert merge(both) == [TimeRange(0, 10)]


def test_a_numbered_retraction_is_later_than_every_claim_without_a_number() -> None:
    retractions = Retractions()
    retractions.add(TimeRange(0, 10), Order(1, 5))
    assert retractions.claimed(TimeRange(0, 10), Order(0, 2**62)) == []
    old = Retractions()
    old.add(TimeRange(0, 10), Order(0, 2**62))
    assert old.claimed(TimeRange(0, 10), Order(1, 5)) == [TimeRange(0, 10)], (
        "and an old one earlier than every dispatch"
    )
