"""gRPC's messages on the wire, by literal bytes."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.errors import Exhausted, InvalidRequest, SuiteError
from dexorder_common.rpc.native.framing import (
    Deframer,
    Framed,
    UnknownEncoding,
    check_encoding,
    expanded,
    frame,
    frames,
    only_message,
)

LIMIT = 1_000


def taken_from(deframer: Deframer) -> list[Framed]:
    return list(iter(deframer.take, None))


def test_a_message_has_a_flag_and_four_bytes_of_length() -> None:
    assert frame(b"ab") == b"\0\0\0\0\x02ab"
    assert frame(b"") == b"\0\0\0\0\0"
    assert frames([b"a", b"", b"bc"]) == b"\0\0\0\0\x01a\0\0\0\0\0\0\0\0\0\x02bc"


def test_a_body_of_one_message_is_recognised() -> None:
    assert only_message(b"\0\0\0\0\x02ab", LIMIT) == b"ab"
    for other in (b"", b"\0\0\0\0", b"\x01\0\0\0\x02ab", b"\0\0\0\0\x02abc", b"\0\0\0\0\x03ab", b"\0\0\0\0\0" * 2):
        assert only_message(other, LIMIT) is None
    assert only_message(frame(b"x" * LIMIT), LIMIT) == b"x" * LIMIT
    assert only_message(frame(b"x" * (LIMIT + 1)), LIMIT) is None


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_messages_are_the_same_however_they_arrive(messages: list[bytes], data: st.DataObject) -> None:
    body, found = frames(messages), []
    deframer = Deframer(LIMIT)
    while body:
        size = data.draw(st.integers(1, len(body)))
        is_whole, waiting = deframer.feed(body[:size]), deframer.pending
        taken = taken_from(deframer)
        assert is_whole == bool(taken) and deframer.pending == waiting - sum(5 + len(each.data) for each in taken)
        found += taken
        body = body[size:]
        assert deframer.pending < 45
    deframer.finish()
    assert found == [Framed(False, message) for message in messages]


def test_the_end_inside_a_message_is_refused() -> None:
    deframer = Deframer(LIMIT)
    assert not deframer.feed(b"\0\0\0\0\x03ab") and deframer.take() is None
    with pytest.raises(InvalidRequest, match="after 7 bytes"):
        deframer.finish()


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"\0\0\0\x03\xe9", Exhausted), (b"\0\xff\xff\xff\xff", Exhausted), (b"\x02\0\0\0\0", InvalidRequest)],
)
def test_a_prefix_alone_is_enough_to_refuse(body: bytes, error: type[SuiteError]) -> None:
    with pytest.raises(error):
        Deframer(LIMIT).feed(body)


def test_an_invalid_message_behind_others_is_refused_in_its_turn() -> None:
    deframer = Deframer(LIMIT)
    assert deframer.feed(frame(b"a") + b"\x02\0\0\0\0") and deframer.take() == Framed(False, b"a")
    with pytest.raises(InvalidRequest, match="is 2, not 0 or 1"):
        deframer.take()


@pytest.mark.parametrize("piece", [b"\0" * 5 * 1_000, b"\0\0\0\0\x01x" * 1_000, b"xy", b""])
def test_bytes_that_wait_take_their_size_in_memory_whatever_they_are(piece: bytes) -> None:
    """Messages that nobody takes, the smallest ones too, and a long one that comes in the smallest pieces."""
    deframer = Deframer(limit=1 << 23)
    deframer.feed(b"\0\0\x7f\xff\xff" if piece == b"xy" else b"")
    tracemalloc.start()
    try:
        for _ in range(max(1, 500_000 // max(len(piece), 5))):
            deframer.feed(bytes(bytearray(piece)))  # a new object each time, as from a socket
        assert tracemalloc.get_traced_memory()[0] < 2 * deframer.pending + 1_000
    finally:
        tracemalloc.stop()


def test_compression() -> None:
    assert not check_encoding(None) and not check_encoding(b"identity") and check_encoding(b"gzip")
    with pytest.raises(UnknownEncoding, match="snappy"):
        check_encoding(b"snappy")
    message = Framed(True, gzip.compress(b"ab" * 400))
    assert expanded(message, LIMIT, is_gzip=True) == b"ab" * 400
    assert expanded(Framed(False, b"x"), LIMIT, is_gzip=True) == b"x"
    with pytest.raises(InvalidRequest, match="names no compression"):
        expanded(message, LIMIT, is_gzip=False)


def test_a_bomb_is_not_expanded() -> None:
    bomb = gzip.compress(b"\0" * 10_000_000, 1)
    with pytest.raises(Exhausted, match="1001 bytes or more; at most 1000"):
        expanded(Framed(True, bomb), LIMIT, is_gzip=True)


X = gzip.compress(b"x", mtime=0)


@pytest.mark.parametrize("data", [b"", b"x", zlib.compress(b"x"), X[:-1], X + b"y"])
def test_what_is_no_gzip_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="gzip"):
        expanded(Framed(True, data), LIMIT, is_gzip=True)
