"""Commits: acked ranges as text, metadata, and the start position."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.kafka.commits import (
    Range,
    StartPosition,
    commit_metadata,
    committed_ranges,
    decode_ranges,
    encode_ranges,
    metadata_to_commit,
    shown_metadata,
    sparse_text,
    start_position,
)

LITERAL: list[tuple[int, list[Range], str]] = [
    (0, [], ""),
    (0, [(1, 2), (3, 5)], "BBBC"),
    (1_000_000, [(1_000_001, 1_000_002), (1_000_003, 1_000_005)], "BBBC"),
    (7, [(7, 8)], "AB"),
    (0, [(31, 62)], "ff"),
    (0, [(32, 64)], "gBgB"),
    (0, [(1_000, 1_001)], "ofB"),
    (5, [(6, 6 + 2**40)], "BggggggggB"),
]


@pytest.mark.parametrize(("offset", "ranges", "text"), LITERAL)
def test_ranges_are_written_as_kafka_pixy_writes_them(offset: int, ranges: list[Range], text: str) -> None:
    assert encode_ranges(offset, ranges) == text
    assert decode_ranges(offset, text) == ranges


@pytest.mark.parametrize("text", ["B", "BBB", "g", "Bg", "BBg", "BA", "B.", "BB\0", "B B", "BB\u20ac", "g" * 14 + "BB"])
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'"):
        decode_ranges(0, text)


@st.composite
def ranges_above(draw: st.DrawFn) -> tuple[int, list[Range]]:
    offset = draw(st.integers(0, 2**62))
    edge, ranges = offset, []
    for gap, length in draw(st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 2**36)), max_size=40)):
        ranges.append((edge + gap, edge + gap + length))
        edge += gap + length
    return offset, ranges


@given(ranges_above())
def test_committed_ranges_are_read_back(case: tuple[int, list[Range]]) -> None:
    offset, ranges = case
    assert committed_ranges(offset, commit_metadata(offset, ranges), end=2**63) == ranges


@given(ranges_above(), st.text(max_size=8))
def test_foreign_bytes_after_the_checksum_change_nothing(case: tuple[int, list[Range]], garbage: str) -> None:
    offset, ranges = case
    metadata = commit_metadata(offset, ranges)
    if metadata:
        assert committed_ranges(offset, metadata + garbage, end=2**63) == ranges


@given(ranges_above(), st.integers(0, 100))
def test_text_is_limited_to_whole_pairs(case: tuple[int, list[Range]], limit: int) -> None:
    offset, ranges = case
    text = encode_ranges(offset, ranges, limit=limit)
    assert len(text) <= limit
    kept = decode_ranges(offset, text)
    assert kept == ranges[: len(kept)]


@pytest.mark.parametrize("metadata", ["BBBC", "BBBC9\x7f", "BBX\ufffdU", "NOT.OURS", "B.", "BB.", "BBBC.AAAA"])
def test_metadata_that_is_not_ours_is_refused(metadata: str) -> None:
    with pytest.raises(ValueError, match="our checksum is missing"):
        committed_ranges(0, metadata, end=100)


def test_foreign_memory_behind_metadata_of_others_is_no_ack() -> None:
    """Bytes of memory behind the text of another program, among them a full stop and our own earlier text."""
    for first, second in product(range(256), b".BC\0\xff"):
        behind = bytes([first, second, *b"BC.", 0]).decode(errors="replace")
        assert start_position(2, "BB" + behind).acked == ()
    ours = commit_metadata(2, [(3, 4)])
    assert start_position(2, ours).acked == ((3, 4),)
    assert start_position(3, ours).acked == (), "the checksum is of another offset"


def test_acks_beyond_the_logs_end_are_left_out() -> None:
    assert committed_ranges(0, commit_metadata(0, [(1, 3), (5, 9), (12, 13)]), end=7) == [(1, 3), (5, 7)]
    assert committed_ranges(0, "", end=7) == []


# ---- start position


@pytest.mark.parametrize(
    ("metadata", "acked"),
    [("", ()), (commit_metadata(5, [(6, 7)]), ((6, 7),)), ("BEBB.focZ", ((6, 10), (11, 12)))],
)
def test_start_is_the_commit(metadata: str, acked: tuple[Range, ...]) -> None:
    assert start_position(5, metadata) == StartPosition(5, acked, committed=True)


def test_metadata_of_others_is_not_used() -> None:
    found = start_position(5, "BBX\ufffd")
    assert (found.offset, found.acked, found.committed) == (5, (), False)
    assert "checksum is missing" in found.warning


# ---- metadata of GetOffsets and SetOffsets


def committed_at_zero(text: str) -> str:
    """Return what a gateway commits at offset 0 for ranges that this text denotes."""
    return commit_metadata(0, decode_ranges(0, text))


BBBC = committed_at_zero("BBBC")


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
def test_metadata_of_others_is_cut_at_the_first_control_character(metadata: str, shown: str) -> None:
    assert shown_metadata(7, metadata) == (shown, [])


@given(st.text(max_size=30))
def test_any_metadata_can_be_shown(metadata: str) -> None:
    text, ranges = shown_metadata(7, metadata)
    assert metadata.startswith(text)
    assert "\0" not in text
    assert all(start > 7 for start, _ in ranges)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("BBBC", BBBC),  # as Kafka-Pixy shows it
        (BBBC, BBBC),
        ("BBBC.", "BBBC."),
        ("my note", "my note"),
        ("reset.", "reset."),
        ("B", "B"),
        ("AB", "AB"),  # not a range: it begins at the offset itself
        ("BBAB", "BBAB"),  # nor two adjacent ones
        ("done", "done"),  # two numbers, but beyond the log's end
    ],
)
def test_metadata_of_a_caller_is_kept(text: str, kept: str) -> None:
    assert metadata_to_commit(0, text, end=5) == kept
    assert shown_metadata(0, kept)[0] == ("BBBC" if kept == BBBC else text)


@pytest.mark.parametrize(
    "text", [committed_at_zero("BB") + " or so", committed_at_zero("AB"), BBBC + "x", committed_at_zero("IB")]
)
def test_note_that_would_be_read_as_acks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="be read as acks"):
        metadata_to_commit(0, text, end=5)


@given(st.text(alphabet="ABCDghi.+ \u00e4", max_size=8), st.integers(0, 40))
def test_kept_metadata_skips_exactly_the_ranges_it_shows(text: str, end: int) -> None:
    try:
        kept = metadata_to_commit(3, text, end=end)
    except ValueError:
        return
    shown, ranges = shown_metadata(3, kept)
    assert shown == text
    try:
        used = committed_ranges(3, kept, end=end)
    except ValueError:
        used = []
    assert used == ranges


def test_sparse_acks_are_relative() -> None:
    assert sparse_text(100, []) == ""
    assert sparse_text(100, [(101, 102), (103, 105)]) == "1-2,3-5"
