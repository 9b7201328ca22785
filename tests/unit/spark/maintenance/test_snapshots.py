from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.snapshots import ExpireSnapshots, SnapshotState, Tag, plan_expiry

MINUTE = 60 * 1_000_000_000
HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
NOW = 1_000 * DAY


def plan(
    snapshots: list[SnapshotState],
    named: dict[int, int] | None = None,
    *,
    needed_ns: int | None = None,
    eager: bool = False,
    **settings: Any,
) -> list[Tag | ExpireSnapshots]:
    found = MaintenanceSettings(**settings)
    return plan_expiry(snapshots, named or {}, found, needed_ns=needed_ns, now_ns=NOW, eager=eager)


def aged(*ages: int) -> list[SnapshotState]:
    """Return snapshots of these ages, which descend; their number is their id, and the last is current."""
    made = [SnapshotState(n, NOW - age) for n, age in enumerate(ages)]
    return [*made[:-1], replace(made[-1], is_pinned=True)]


@pytest.mark.parametrize(("count", "due"), [(50, False), (51, True)])
def test_old_snapshots_expire_once_there_are_enough(count: int, due: bool) -> None:
    snapshots = aged(*(2 * HOUR - n for n in range(count)))
    assert plan(snapshots) == ([ExpireSnapshots(tuple(range(count - 1)))] if due else [])


def test_age_is_counted_from_the_replacement() -> None:
    """Until then it was current, and a request may have been answered from it that is not announced yet."""
    assert plan(aged(9 * DAY, 30 * MINUTE), eager=True) == []
    assert plan(aged(9 * DAY, 61 * MINUTE), eager=True) == [ExpireSnapshots((0,))]
    assert plan(aged(9 * DAY), eager=True) == []


def test_above_a_number_those_expire_within_the_hour_whose_files_are_in_the_next() -> None:
    snapshots = aged(*(n * 2 * MINUTE for n in range(29, -1, -1)))
    assert plan(snapshots, eager=True) == []
    assert plan(snapshots, eager=True, max_snapshots=10) == [ExpireSnapshots(tuple(range(19)))]
    assert plan(snapshots, eager=True, max_snapshots=1) == [ExpireSnapshots(tuple(range(23)))], "not within ten minutes"
    snapshots[5] = replace(snapshots[5], is_append=False)
    assert plan(snapshots, eager=True, max_snapshots=10) == [ExpireSnapshots((0, 1, 2, 3, *range(5, 20)))]


def test_what_a_notification_names_gets_a_tag_before_others_expire() -> None:
    snapshots = aged(*(5 * HOUR - n for n in range(60)))
    named = {7: NOW - HOUR, 8: NOW - 8 * DAY, 1_000: NOW}
    tag, expire = plan(snapshots, named)
    assert tag == Tag({7: NOW - HOUR + 7 * DAY}, frozenset())
    assert expire == ExpireSnapshots(tuple(n for n in range(59) if n != 7))


def test_a_tag_moves_with_the_last_notification_and_ends() -> None:
    old = [replace(each, tagged_until_ns=NOW + each.id * HOUR) for each in aged(*(5 * DAY - n for n in range(60)))]
    assert plan(old[1:], {5: NOW - DAY}) == [], "all of them are named"
    tag, expire = plan(old[1:], {5: NOW - DAY}, max_named_snapshots=3)
    assert tag == Tag({5: NOW + 6 * DAY}, frozenset(range(1, 58)) - {5}), "the three that were named last"
    assert expire == ExpireSnapshots(tuple(n for n in range(1, 58) if n != 5))
    ended = [replace(each, tagged_until_ns=NOW) for each in old]
    assert plan(ended) == [Tag({}, frozenset(range(60))), ExpireSnapshots(tuple(range(59)))]


@st.composite
def histories(draw: st.DrawFn) -> list[SnapshotState]:
    gaps = draw(st.lists(st.sampled_from([1, MINUTE, 11 * MINUTE, 2 * HOUR]), min_size=1, max_size=60))
    ages = [sum(gaps[n:]) for n in range(len(gaps))]
    kinds = st.tuples(
        st.booleans(), st.sampled_from([False] * 5 + [True]), st.sampled_from([0, 0, 0, NOW - 1, NOW + 1])
    )
    return [
        replace(each, is_append=is_append, is_pinned=each.is_pinned or is_pinned, tagged_until_ns=until_ns)
        for each, (is_append, is_pinned, until_ns) in ((each, draw(kinds)) for each in aged(*ages))
    ]


@given(
    histories(),
    st.dictionaries(st.integers(0, 60), st.integers(NOW - 9 * DAY, NOW), max_size=9),
    st.one_of(st.none(), st.integers(NOW - 5 * HOUR, NOW)),
    st.integers(1, 20),
)
def test_nothing_expires_that_is_in_use(
    snapshots: list[SnapshotState], named: dict[int, int], needed_ns: int | None, most: int
) -> None:
    steps = plan(snapshots, named, needed_ns=needed_ns, eager=True, max_snapshots=most)
    expired = {each for step in steps if isinstance(step, ExpireSnapshots) for each in step.snapshot_ids}
    assert snapshots[-1].id not in expired
    for each, following in pairwise(snapshots):
        if each.id in expired:
            assert not each.is_pinned
            assert max(each.tagged_until_ns, named.get(each.id, 0) + 7 * DAY) <= NOW
            assert needed_ns is None or each.time_ns < needed_ns
            assert NOW - following.time_ns > 10 * MINUTE
            assert NOW - following.time_ns > HOUR or following.is_append, "its files may be nowhere else"
    assert len(steps) < 2 or isinstance(steps[0], Tag), "tags come first"
