"""Windows close with the same points over a file and on the stream, whenever they close."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dexorder_udf.points import Batch, Point
from dexorder_udf.windows import Windows

GROUPS = ("a", "b", "c")
Fed = tuple[str, int]

come = st.tuples(st.sampled_from(GROUPS), st.integers(-6, 30), st.sampled_from((0, 0, 0, 1, 5)))
fed_points = st.lists(come, min_size=2, max_size=30).map(
    lambda all_points: [each[:2] for each in sorted(all_points, key=lambda each: each[1] + each[2])]
)
"""In the order in which they come, which is mostly that of time: some come later than others of the group."""
cuts = st.lists(st.integers(0, 30), min_size=1, max_size=12).map(sorted)


def point(group: str, time_ns: int, number: int) -> Point:
    return Point(time_ns, {"g": group}, {"n": number}, "m", ("g",))


def of_groups(found: list[Batch]) -> dict[str, list[Batch]]:
    return {group: [each for each in found if each.tags == {"g": group}] for group in GROUPS}


def add(windows: Windows, points: list[Point]) -> list[Batch]:
    return [batch for each in points for batch in windows.add(each.group, each)]


@given(fed_points, cuts, st.data(), st.sampled_from((2, 3, 10)))
def test_any_live_pieces_close_the_windows_of_the_file(
    fed: list[Fed], cuts: list[int], data: st.DataObject, length_ns: int
) -> None:
    points = [point(group, time_ns, number) for number, (group, time_ns) in enumerate(fed)]
    offline, live = Windows(length_ns), Windows(length_ns)
    whole = add(offline, points) + offline.rest()
    found: list[Batch] = []
    for first, end in pairwise([0, *cuts, len(points)]):
        found += add(live, points[first:end])
        live, late = Windows(length_ns, live.open), live.late  # as after a restart
        live.late = late
        for group in GROUPS:
            later = [each.time_ns for each in points[max(first, end) :] if each.tags["g"] == group]
            settled_ns = min(later, default=50) - data.draw(st.sampled_from((0, 0, 1, 7)))  # often all that it may be
            found += live.settle(f"g={group}", settled_ns)
    found += live.rest()
    assert of_groups(found) == of_groups(whole)
    assert live.late == offline.late
    assert sum(len(each.points) for each in found) + live.late == len(points)


def test_a_window_closes_with_its_settled_time_and_what_comes_later_is_late() -> None:
    windows = Windows(10)
    first, late, after = point("a", 3, 0), point("a", 9, 1), point("a", 10, 2)
    assert add(windows, [first]) == [] and windows.settle("g=a", 9) == []
    assert windows.settle("g=a", 10) == [Batch([first], "m", {"g": "a"}, 10)]
    assert windows.settle("g=a", 10) == windows.settle("g=b", 99) == []
    assert add(windows, [late, after]) == [] and windows.late == 1
    assert windows.rest() == [Batch([after], "m", {"g": "a"}, 20)] and windows.rest() == []
