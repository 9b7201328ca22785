"""Rules of the administrative calls, without Kafka."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_gateway.kafkapixy.admin_views import (
    SETTLED_STATES,
    GroupView,
    MemberView,
    OffsetsView,
    RequestedOffset,
    assigned_partitions,
    check_requested,
    commits_of,
    consumers_of,
    offsets_view,
)


@pytest.mark.parametrize(
    ("offset", "metadata", "earliest", "view"),
    [
        (-1001, "", False, OffsetsView(3, 10, 50, -1, 0)),
        (-1001, "", True, OffsetsView(3, 10, 50, -1, 40)),
        (-1, "", False, OffsetsView(3, 10, 50, -1, 0)),
        (-2, "", False, OffsetsView(3, 10, 50, -2, 40)),  # set to the log's start by another program
        (20, "", False, OffsetsView(3, 10, 50, 20, 30)),
        (20, "BBBC.Zcrs", False, OffsetsView(3, 10, 50, 20, 30, "BBBC", "1-2,3-5")),
        (20, "BBBC.Zcrs\x05\x7f", False, OffsetsView(3, 10, 50, 20, 30, "BBBC", "1-2,3-5")),
        (20, "BBBC", False, OffsetsView(3, 10, 50, 20, 30, "BBBC")),  # not ours, so it has no effect
        (50, "", False, OffsetsView(3, 10, 50, 50, 0)),
        (5, "", False, OffsetsView(3, 10, 50, 5, 45)),
    ],
)
def test_offsets_of_a_partition(offset: int, metadata: str, earliest: bool, view: OffsetsView) -> None:
    assert offsets_view(3, (10, 50), offset, metadata, earliest=earliest) == view


FINE = RequestedOffset(0, 5)


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        ([RequestedOffset(-1, 0)], r"offsets\[0\]\.partition -1 is negative"),
        ([FINE, RequestedOffset(1, -1)], r"offsets\[1\]\.offset -1 is negative"),
        ([FINE, RequestedOffset(0, 6)], r"offsets\[1\]\.partition 0 is a duplicate"),
        ([RequestedOffset(0, 0, "a\0")], r"offsets\[0\]\.metadata 'a\\x00' has a NUL"),
        ([RequestedOffset(0, 0, "\u20ac" * 1_334)], r"offsets\[0\]\.metadata has 4002 bytes; at most 4000"),
        ([FINE, RequestedOffset(2, 0)], r"offsets\[1\]\.partition 2 is not one of the 2 of topic 't'"),
        ([RequestedOffset(1, 21)], r"offsets\[0\]\.offset 21 is beyond the end 20 of partition 1"),
        ([RequestedOffset(1, 0, "BB.mx2v x")], r"offsets\[0\]\.metadata 'BB\.mx2v x': .*be read as acks"),
    ],
)
def test_bad_offsets_are_refused_by_name(requested: list[RequestedOffset], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        check_requested(requested)
        commits_of(requested, "t", {0: (0, 10), 1: (5, 20)})


def test_good_offsets_become_commits() -> None:
    requested = [RequestedOffset(1, 20), RequestedOffset(0, 0, "BB"), RequestedOffset(2, 0, "note")]
    check_requested(requested)
    assert commits_of(requested, "t", {0: (0, 10), 1: (5, 20), 2: (3, 3)}) == {
        1: (20, ""),
        0: (0, "BB.mx2v"),
        2: (0, "note"),
    }


ASSIGNMENT = (
    b"\x00\x01"  # version
    b"\x00\x00\x00\x02"  # two topics
    b"\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03"  # a: 0 and 3
    b"\x00\x02bc\x00\x00\x00\x01\x00\x00\x00\x07"  # bc: 7
    b"\x00\x00\x00\x02xx"  # user data
)


def test_assignment_is_parsed() -> None:
    assert assigned_partitions(ASSIGNMENT) == {"a": (0, 3), "bc": (7,)}
    assert assigned_partitions(b"") == {}


@pytest.mark.parametrize("end", range(1, len(ASSIGNMENT) - 6))
def test_truncated_assignment_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match=f"{end} bytes"):
        assigned_partitions(ASSIGNMENT[:end])


@given(st.binary(max_size=40))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    try:
        found = assigned_partitions(data)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in found)


def test_assignment_of_another_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="does not parse"):
        assigned_partitions(struct.pack(">hih", 0, 1, 2) + b"\xff\xff" + struct.pack(">i", 0))


def member(name: str, client: str = "c", **partitions: tuple[int, ...]) -> MemberView:
    return MemberView(name, client, "/10.0.0.1", partitions)


def test_consumers_are_named_by_client_id_if_it_is_unique() -> None:
    group = GroupView(
        "g",
        settled=True,
        members=(
            member("m1", "one", t=(3, 1)),
            member("m2", "two", t=(0,)),
            member("m3", "two", t=(2,)),
            member("m4", "one", u=(0,)),
            member("m5", "five", t=()),
        ),
    )
    assert consumers_of(group, "t") == {"one": [1, 3], "m2": [0], "m3": [2]}
    assert consumers_of(group, "v") == {}


def test_holders_read_any_of_the_partitions() -> None:
    one, two = member("m1", t=(0, 1)), member("m2", t=(2,), u=(1,))
    group = GroupView("g", settled=True, members=(one, two))
    assert group.holders("t", [1, 2]) == [one, two]
    assert group.holders("u", [0, 1]) == [two]
    assert group.holders("u", [0]) == []
    assert str(one) == "c at 10.0.0.1"


@pytest.mark.parametrize(
    ("state", "settled"),
    [("Stable", True), ("Empty", True), ("Dead", True), ("PreparingRebalance", False), ("CompletingRebalance", False)],
)
def test_group_that_rebalances_is_not_settled(state: str, settled: bool) -> None:
    assert (state in SETTLED_STATES) is settled
