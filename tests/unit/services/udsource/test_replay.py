from __future__ import annotations

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_udsource.replay import (
    OffsetsGone,
    ReplayRange,
    check_range,
    format_offsets,
    is_range,
    is_replay,
    parse_range,
    replay_commits,
)

STARTS, ENDS = {0: 5, 1: 0}, {0: 17, 1: 20}


def metadata(**values: str) -> tuple[tuple[str, str], ...]:
    return (("user-agent", "x"), *((f"x-{name}", value) for name, value in values.items()))


def test_range_comes_from_three_values() -> None:
    given = metadata(partition="1", start="0", end="9223372036854775807")
    assert is_range(given)
    assert parse_range(given) == ReplayRange(1, 0, 2**63 - 1)
    assert parse_range((*given, ("x-epoch", "4"))) == ReplayRange(1, 0, 2**63 - 1, 4)
    assert not is_range(metadata(replay="1"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (metadata(partition="1"), "x-start is missing"),
        (metadata(start="1", end="2"), "x-partition is missing"),
        (metadata(partition="", start="1", end="2"), "x-partition ''"),
        (metadata(partition="0", start="+1", end="2"), "x-start '\\+1'"),
        (metadata(partition="0", start="1_0", end="20"), "x-start '1_0'"),
        (metadata(partition="0", start="1", end="9223372036854775808"), "x-end '9223372036854775808'"),
        (metadata(partition="0", start="1", end="٣"), "x-end"),
        (metadata(partition="0", start="3", end="2"), "x-end 2 is before x-start 3"),
        (metadata(partition="0", start="1", end="2", epoch="-1"), "x-epoch '-1'"),
    ],
)
def test_bad_range_names_its_value(given: tuple[tuple[str, str], ...], text: str) -> None:
    assert is_range(given)
    with pytest.raises(InvalidRequest, match=text):
        parse_range(given)


def test_only_the_value_one_is_a_replay() -> None:
    assert is_replay(metadata(replay="1"))
    assert not is_replay(metadata()) and not is_replay(None)
    with pytest.raises(InvalidRequest, match="x-replay 'true'"):
        is_replay(metadata(replay="true"))


@pytest.mark.parametrize("span", [(0, 5, 17), (0, 5, 5), (0, 17, 17), (0, 0, 0), (1, 3, 4)])
def test_ranges_inside_the_log_are_accepted(span: tuple[int, int, int]) -> None:
    check_range(ReplayRange(*span), STARTS, ENDS)


@pytest.mark.parametrize(
    ("span", "error", "text"),
    [
        ((2, 0, 0), InvalidRequest, "x-partition 2"),
        ((0, 5, 18), InvalidRequest, "x-end 18 is beyond the end 17 of partition 0"),
        ((0, 4, 17), OffsetsGone, "offset 4 of partition 0 is gone; the log starts at 5"),
    ],
)
def test_ranges_outside_the_log_are_refused(span: tuple[int, int, int], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_range(ReplayRange(*span), STARTS, ENDS)


@pytest.mark.parametrize(
    ("acks", "moves"),
    [
        ([], {}),
        ([(0, 9)], {0: 10}),
        ([(0, 12), (0, 9), (1, 19)], {0: 13, 1: 20}),
        ([(0, 7), (1, 2)], {1: 3}),  # 7 is below the commit
    ],
)
def test_replay_acks_move_commits_forward_only(acks: list[tuple[int, int]], moves: dict[int, int]) -> None:
    assert replay_commits(acks, {0: 8}, STARTS, ENDS) == moves


@pytest.mark.parametrize("bad", [(0, 17), (0, 99), (2, 0), (-1, 0)])
def test_replay_ack_outside_the_log_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match=f"partition {bad[0]}"):
        replay_commits([(0, 9), bad], {0: 8}, STARTS, ENDS)


def test_offsets_are_written_by_partition() -> None:
    assert format_offsets({1: 20, 0: 17, 10: 3}) == "0:17,1:20,10:3"
    assert format_offsets({}) == ""
