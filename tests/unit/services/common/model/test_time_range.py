"""Ranges and sets of ranges against sets of single points."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.time_range import RangeSet, TimeRange, merge, subtract

ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda t: TimeRange(t[0], t[0] + t[1])), max_size=12
)


def points(ranges: Iterable[TimeRange]) -> set[int]:
    return {point for part in ranges for point in range(part.start_ns, part.end_ns)}


@given(ranges, ranges)
def test_range_sets_agree_with_sets_of_points(left: list[TimeRange], right: list[TimeRange]) -> None:
    assert points(merge(left)) == points(left)
    assert points(subtract(left, right)) == points(left) - points(right)
    for result in (merge(left), subtract(left, right)):
        assert all(a.end_ns < b.start_ns for a, b in pairwise(result))
        assert all(result)


SPANS = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: TimeRange(pair[0], sum(pair)))


@given(SPANS, SPANS)
def test_two_ranges_agree_with_their_points(one: TimeRange, other: TimeRange) -> None:
    common = points([one]) & points([other])
    assert one.overlaps(other) == bool(common)
    assert points(filter(None, [one.intersect(other)])) == common
    assert (one.intersect(other) is None) == (not common)
    assert bool(one) == bool(points([one]))
    if other:
        assert one.contains(other) == (points([other]) <= points([one]))


CHANGES = st.lists(st.tuples(st.booleans(), SPANS), max_size=25)


@given(CHANGES, SPANS)
def test_range_set_agrees_with_a_set_of_points_and_its_diffs_rebuild_it(
    changes: list[tuple[bool, TimeRange]], span: TimeRange
) -> None:
    ranges, model, stored = RangeSet(), set[int](), set[TimeRange]()
    for adding, part in changes:
        diff = ranges.add(part) if adding else ranges.remove(part)
        model = model | points([part]) if adding else model - points([part])
        assert set(diff.removed) <= stored
        stored = (stored - set(diff.removed)) | set(diff.added)
        assert bool(diff.removed or diff.added) == (set(diff.removed) != set(diff.added))
    parts = list(ranges)
    assert points(parts) == model and set(parts) == stored and all(parts)
    assert all(left.end_ns < right.start_ns for left, right in pairwise(parts))
    assert points(ranges.within(span)) == model & points([span])
    assert points(ranges.holes(span)) == points([span]) - model
