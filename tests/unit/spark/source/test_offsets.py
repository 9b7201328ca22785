from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.source.offsets import (
    OffsetRange,
    SourceState,
    begun_anew,
    cap,
    epochs_of,
    from_json,
    initial,
    parse_pairs,
    plan,
    resume,
    share,
    to_ack,
    to_compare,
    to_json,
)

offsets = st.dictionaries(st.integers(0, 5), st.integers(0, 1_000), max_size=6)
STATE = SourceState(starts={0: 5, 1: 0, 2: 9}, ends={0: 20, 1: 7, 2: 9}, committed={0: 12, 1: 0, 2: 4})


def test_pairs_are_read_and_nonsense_is_refused() -> None:
    assert parse_pairs("0:17,1:20") == {0: 17, 1: 20}
    assert parse_pairs("") == {}
    for text in ("0", "0:1:2", "a:1", "0=1"):
        with pytest.raises(InvalidRequest):
            parse_pairs(text)


@given(offsets)
def test_json_round_trip(some: dict[int, int]) -> None:
    assert from_json(to_json(some)) == some


@given(offsets, offsets, st.integers(1, 500))
def test_a_limited_batch_is_never_too_large_and_never_moves_backwards(
    start: dict[int, int], ends: dict[int, int], limit: int
) -> None:
    planned = cap(start, ends, limit)
    taken = {p: planned[p] - start.get(p, 0) for p in planned}
    lag = {p: max(0, ends.get(p, 0) - start.get(p, 0)) for p in planned}
    assert all(0 <= taken[p] <= lag[p] for p in planned)
    assert sum(taken.values()) == min(limit, sum(lag.values()))


def test_a_drained_batch_takes_all() -> None:
    assert cap({0: 1}, {0: 5_000, 1: 3}, None) == {0: 5_000, 1: 3}


@given(offsets, offsets, st.integers(1, 50))
def test_batches_after_each_other_cover_everything_once(
    start: dict[int, int], ends: dict[int, int], limit: int
) -> None:
    seen: list[tuple[int, int]] = []
    position = start
    while (planned := cap(position, ends, limit)) != {**dict.fromkeys(planned, 0), **position}:
        seen += [(r.partition, o) for r in plan(position, planned) for o in range(r.start, r.end)]
        position = planned
    wanted = [(p, o) for p, end in ends.items() for o in range(start.get(p, 0), end)]
    assert sorted(seen) == sorted(wanted)


def test_equal_ends_plan_nothing_and_reversed_ones_are_refused() -> None:
    assert plan({0: 3}, {0: 3}) == []
    assert plan({0: 3}, {0: 5, 1: 2}) == [OffsetRange(0, 3, 5), OffsetRange(1, 0, 2)]
    with pytest.raises(InvalidRequest, match="partition 0"):
        plan({0: 3}, {0: 2})


@given(offsets, st.integers(1, 8))
def test_cut_ranges_have_every_offset_once(ends: dict[int, int], min_ranges: int) -> None:
    parts = plan({}, ends, min_ranges)
    assert sorted((r.partition, o) for r in parts for o in range(r.start, r.end)) == [
        (p, o) for p, end in sorted(ends.items()) for o in range(end)
    ]
    assert all(part.start < part.end for part in parts)
    assert len(parts) <= max(min_ranges, len(ends)) + len(ends)


@given(offsets, st.integers(1, 9))
def test_shares_are_equal_and_have_every_offset_once_in_order(ends: dict[int, int], shares: int) -> None:
    ranges = plan({}, ends)
    found = share(ranges, shares)
    assert [(r.partition, o) for part in found for r in part for o in range(r.start, r.end)] == [
        (r.partition, o) for r in ranges for o in range(r.start, r.end)
    ]
    sizes = [sum(r.end - r.start for r in part) for part in found]
    assert len(sizes) == min(shares, sum(ends.values()))
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_a_reader_continues_at_its_own_offsets() -> None:
    state = SourceState({0: 0, 1: 3, 2: 0, 3: 0}, {0: 9, 1: 9, 2: 9, 3: 2}, {0: 8, 2: 4})
    assert resume({0: 5, 1: 1}, state) == {0: 5, 1: 3, 2: 4, 3: 0}
    assert begun_anew({0: 9, 1: 1}, state) == set()
    other = replace(state, topic_id="b")
    assert (
        begun_anew({0: 9}, other, "a") == {0} and begun_anew({0: 9}, other, "b") == begun_anew({0: 9}, other) == set()
    )
    assert begun_anew({0: 9, 1: 10}, state) == begun_anew({0: 1, 1: 1, 4: 1}, state) - {4} == {0, 1}
    assert begun_anew({0: 9, 1: 10}, other, "b") == {1}, "the topic is the same one, so a log of its own went back"


def test_logs_are_compared_where_the_leaders_have_another_epoch() -> None:
    state = replace(STATE, epochs={0: 3, 1: 2, 3: 1})
    assert to_compare({0: 17, 1: 4, 2: 9, 3: 1}, {0: 2, 1: 2, 2: 2}, state) == [OffsetRange(0, 17, 17, 2)]
    assert to_compare({0: 17}, {0: 4}, state) == [OffsetRange(0, 17, 17, 4)], "a restored cluster counts from below"
    assert to_compare({0: 17}, {0: 2}, STATE) == [], "the source tells none"


def test_ranges_have_the_epoch_of_their_batch() -> None:
    parts = plan({0: 10}, {0: 20, 1: 2}, 4, {0: 3})
    assert {(part.partition, part.epoch) for part in parts} == {(0, 3), (1, -1)}
    assert {(part.partition, part.epoch) for some in share(parts, 3) for part in some} == {(0, 3), (1, -1)}
    assert epochs_of(to_json({0: 1}, epochs={0: 3})) == {0: 3} and epochs_of(to_json({0: 1})) == {}


def test_one_partition_feeds_all_cores() -> None:
    assert plan({0: 10}, {0: 20}, 3) == [OffsetRange(0, 10, 13), OffsetRange(0, 13, 16), OffsetRange(0, 16, 20)]
    assert len(plan({}, {0: 12, 1: 12, 2: 12}, 4)) >= 4
    assert plan({0: 10}, {0: 11}, 3) == [OffsetRange(0, 10, 11)]
    assert plan({}, {0: 30, 1: 10}, 4) == [
        OffsetRange(0, 0, 10),
        OffsetRange(0, 10, 20),
        OffsetRange(0, 20, 30),
        OffsetRange(1, 0, 10),
    ]


def test_a_new_query_starts_at_the_commit_or_at_the_log_start() -> None:
    assert initial(STATE, "committed") == {0: 12, 1: 0, 2: 9}
    assert initial(STATE, "earliest") == STATE.starts
    assert initial(STATE, "latest") == STATE.ends
    assert initial(STATE, {0: 1, 1: 3, 2: 9}) == {0: 5, 1: 3, 2: 9}
    for given_offsets in ({0: 5}, {0: 21, 1: 0, 2: 9}):
        with pytest.raises(InvalidRequest, match="startingOffsets"):
            initial(STATE, given_offsets)


def test_only_progress_beyond_the_commit_is_acked() -> None:
    assert to_ack({0: 15, 1: 0, 2: 9}, STATE) == {0: 14}
    assert to_ack({0: 12, 1: 7}, STATE) == {1: 6}
    assert to_ack({0: 21}, STATE) == {}, "never issued"
