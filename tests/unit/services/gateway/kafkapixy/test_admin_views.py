"""What the administrative calls ask and answer, without a Kafka."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model.errors import InvalidRequest
from services.gateway.kafkapixy.admin_views import (
    GroupView,
    MemberView,
    OffsetsView,
    WantedOffset,
    assigned_partitions,
    check_wanted,
    commits_of,
    consumers_of,
    is_settled,
    kept_metadata,
    offsets_view,
    read_metadata,
    sparse_text,
)
from services.gateway.kafkapixy.sparse_acks import committed_ranges


@pytest.mark.parametrize(
    ("offset", "metadata", "earliest", "view"),
    [
        (-1001, "", False, OffsetsView(3, 10, 50, -1, 0)),
        (-1001, "", True, OffsetsView(3, 10, 50, -1, 40)),
        (-1, "", False, OffsetsView(3, 10, 50, -1, 0)),
        (20, "", False, OffsetsView(3, 10, 50, 20, 30)),
        (20, "BBBC.", False, OffsetsView(3, 10, 50, 20, 30, "BBBC", "1-2,3-5")),
        (20, "BBBC.\x05\x7f", False, OffsetsView(3, 10, 50, 20, 30, "BBBC", "1-2,3-5")),
        (20, "BBBC", False, OffsetsView(3, 10, 50, 20, 30, "BBBC")),  # not ours, so it counts for nothing
        (50, "", False, OffsetsView(3, 10, 50, 50, 0)),
        (5, "", False, OffsetsView(3, 10, 50, 5, 45)),
    ],
)
def test_offsets_of_a_partition(offset: int, metadata: str, earliest: bool, view: OffsetsView) -> None:
    assert offsets_view(3, (10, 50), offset, metadata, earliest=earliest) == view


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ("", ""),
        ("any text", "any text"),
        ("any text\x00\x11", "any text"),
        ("two\nlines\tand more", "two\nlines\tand more"),
        ("BBBC\x05\x7f", "BBBC"),
        ("BB\ufffd\x7f", "BB"),
        ("\ufffd\ufffd", ""),
        ("h\u00e4h\u20ac", "h\u00e4h\u20ac"),
        ("See: it ends. Here", "See: it ends. Here"),
        (".", "."),
    ],
)
def test_metadata_of_others_ends_where_the_text_does(metadata: str, shown: str) -> None:
    assert read_metadata(7, metadata) == (shown, [])


@given(st.text(max_size=30))
def test_no_metadata_is_too_odd_to_read(metadata: str) -> None:
    text, ranges = read_metadata(7, metadata)
    assert metadata.startswith(text)
    assert "\0" not in text
    assert all(start > 7 for start, _ in ranges)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("BBBC", "BBBC."),  # as Kafka-Pixy shows it
        ("BBBC.", "BBBC."),
        ("my note", "my note"),
        ("reset.", "reset."),
        ("B", "B"),
        ("AB", "AB"),  # a range that begins at the offset itself is none
        ("BBAB", "BBAB"),  # nor are two that touch
        ("done", "done"),  # two numbers, but beyond the log's end
    ],
)
def test_given_metadata_is_kept(text: str, kept: str) -> None:
    assert kept_metadata(0, text, end=5) == kept
    assert read_metadata(0, kept)[0] == (text.removesuffix(".") if kept == "BBBC." else text)


@pytest.mark.parametrize("text", ["BB. or so", "AB.", "BBBC.x", "IB."])
def test_metadata_that_would_skip_records_by_accident_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pass for acks"):
        kept_metadata(0, text, end=5)


@given(st.text(alphabet="ABCDghi.+ \u00e4", max_size=8), st.integers(0, 40))
def test_what_is_kept_skips_what_it_shows_and_nothing_else(text: str, end: int) -> None:
    try:
        kept = kept_metadata(3, text, end=end)
    except ValueError:
        return
    shown, ranges = read_metadata(3, kept)
    assert shown in (text, text.removesuffix("."))
    try:
        used = committed_ranges(3, kept, end=end)
    except ValueError:
        used = []
    assert used == ranges


def test_sparse_acks_are_relative() -> None:
    assert sparse_text(100, []) == ""
    assert sparse_text(100, [(101, 102), (103, 105)]) == "1-2,3-5"


FINE = WantedOffset(0, 5)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([WantedOffset(-1, 0)], r"offsets\[0\]\.partition -1 is negative"),
        ([FINE, WantedOffset(1, -1)], r"offsets\[1\]\.offset -1 is negative"),
        ([FINE, WantedOffset(0, 6)], r"offsets\[1\]\.partition 0 comes twice"),
        ([WantedOffset(0, 0, "a\0")], r"offsets\[0\]\.metadata 'a\\x00' has a NUL"),
        ([WantedOffset(0, 0, "\u20ac" * 1_334)], r"offsets\[0\]\.metadata has 4002 bytes; at most 4000"),
        ([FINE, WantedOffset(2, 0)], r"offsets\[1\]\.partition 2 is not one of the 2 of topic 't'"),
        ([WantedOffset(1, 21)], r"offsets\[0\]\.offset 21 is beyond the end 20 of partition 1"),
        ([WantedOffset(1, 0, "BB. x")], r"offsets\[0\]\.metadata 'BB\. x': .*pass for acks"),
    ],
)
def test_bad_offsets_are_refused_by_name(wanted: list[WantedOffset], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        check_wanted(wanted)
        commits_of(wanted, "t", {0: (0, 10), 1: (5, 20)})


def test_good_offsets_become_commits() -> None:
    wanted = [WantedOffset(1, 20), WantedOffset(0, 0, "BB"), WantedOffset(2, 0, "note")]
    check_wanted(wanted)
    assert commits_of(wanted, "t", {0: (0, 10), 1: (5, 20), 2: (3, 3)}) == {1: (20, ""), 0: (0, "BB."), 2: (0, "note")}


ASSIGNMENT = (
    b"\x00\x01"  # version
    b"\x00\x00\x00\x02"  # two topics
    b"\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03"  # a: 0 and 3
    b"\x00\x02bc\x00\x00\x00\x01\x00\x00\x00\x07"  # bc: 7
    b"\x00\x00\x00\x02xx"  # bytes for others
)


def test_assignment_is_read() -> None:
    assert assigned_partitions(ASSIGNMENT) == {"a": (0, 3), "bc": (7,)}
    assert assigned_partitions(b"") == {}


@pytest.mark.parametrize("end", range(1, len(ASSIGNMENT) - 6))
def test_cut_assignment_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match=f"{end} bytes"):
        assigned_partitions(ASSIGNMENT[:end])


@given(st.binary(max_size=40))
def test_no_assignment_is_too_odd_to_read(data: bytes) -> None:
    try:
        found = assigned_partitions(data)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in found)


def test_assignment_of_another_world_is_refused() -> None:
    with pytest.raises(ValueError, match="does not parse"):
        assigned_partitions(struct.pack(">hih", 0, 1, 2) + b"\xff\xff" + struct.pack(">i", 0))


def member(name: str, client: str = "c", **partitions: tuple[int, ...]) -> MemberView:
    return MemberView(name, client, "/10.0.0.1", partitions)


def test_consumers_go_by_client_id_where_that_tells_them_apart() -> None:
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


def test_holders_are_those_of_the_partitions() -> None:
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
    assert is_settled(state) is settled
