"""The text of acked ranges: literal bytes, round trips, broken input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.kafkapixy.sparse_acks import (
    Range,
    commit_metadata,
    committed_ranges,
    decode_ranges,
    encode_ranges,
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
def test_what_is_committed_is_read_back(case: tuple[int, list[Range]]) -> None:
    offset, ranges = case
    assert committed_ranges(offset, commit_metadata(offset, ranges), end=2**63) == ranges


@given(ranges_above(), st.text(max_size=8))
def test_foreign_bytes_behind_the_full_stop_change_nothing(case: tuple[int, list[Range]], garbage: str) -> None:
    offset, ranges = case
    metadata = commit_metadata(offset, ranges)
    if metadata:
        assert committed_ranges(offset, metadata + garbage, end=2**63) == ranges


@given(ranges_above(), st.integers(0, 100))
def test_too_many_ranges_are_cut_between_pairs(case: tuple[int, list[Range]], most: int) -> None:
    offset, ranges = case
    text = encode_ranges(offset, ranges, most=most)
    assert len(text) <= most
    kept = decode_ranges(offset, text)
    assert kept == ranges[: len(kept)]


@pytest.mark.parametrize("metadata", ["BBBC", "BBBC9\x7f", "BBX\ufffdU", "NOT.OURS", "B."])
def test_metadata_that_is_not_ours_is_refused(metadata: str) -> None:
    with pytest.raises(ValueError, match=r"full stop|ends within|has"):
        committed_ranges(0, metadata, end=100)


def test_acks_of_records_that_are_not_there_are_left_out() -> None:
    assert committed_ranges(0, commit_metadata(0, [(1, 3), (5, 9), (12, 13)]), end=7) == [(1, 3), (5, 7)]
    assert committed_ranges(0, "", end=7) == []
