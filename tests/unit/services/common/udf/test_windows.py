"""Windows close with the same points over a file and on the stream, whenever they close."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dexorder_udf.points import Batch, Point
from dexorder_udf.windows import Windows

GROUPS = ("a", "b", "c")
Fed = tuple[str, int]

fed_points = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(-30, 100)), max_size=40)
"""In the order in which they come, which is not always that of time."""
cuts = st.lists(st.integers(0, 40), max_size=6).map(sorted)


def point(group: str, time_ns: int, number: int) -> Point:
    return Point(time_ns, {"g": group}, {"n": number}, "m", ("g",))


def of_groups(found: list[Batch]) -> dict[str, list[Batch]]:
    return {group: [each for each in found if each.tags == {"g": group}] for group in GROUPS}


def add(windows: Windows, points: list[Point]) -> list[Batch]:
    return [batch for each in points for batch in windows.add(each.group, each)]


@given(fed_points, cuts, st.data(), st.integers(1, 20))
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
            settled_ns = data.draw(st.integers(-40, min(later, default=200)))
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
