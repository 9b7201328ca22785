"""Frames: literal bytes, any division into pieces, and lengths that no memory is spent on."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import FrameSplitter, encode_varint, frame, unwrap, wrap


def read(splitter: FrameSplitter, data: bytes) -> list[bytes]:
    found = splitter.feed(data)
    splitter.check()
    return found


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32, "8080808010"),
        (2**64 - 1, "ffffffffffffffffff01"),
    ],
)
def test_varint_bytes(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded


@given(st.lists(st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=200)), max_size=6), st.data())
def test_frames_survive_any_division_into_pieces(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, bodies))
    splitter = FrameSplitter()
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += splitter.feed(stream[at : at + size])
        at += size
    assert found == bodies
    assert splitter.pending == b""


def test_a_large_frame_survives_single_bytes() -> None:
    body = bytes(range(256)) * 80
    splitter = FrameSplitter()
    found = [each for byte in frame(body) + b"\x00" for each in splitter.feed(bytes((byte,)))]
    assert found == [body, b""]


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("8080808080808001", "2^49 bytes"),
        ("ffffffffffffffffff02", "bytes, more than the limit"),
        ("80808080808080808080", "more than 64 bits"),
        ("8080808080808080808001", "more than 64 bits"),
        ("d10f", "2,001 bytes, more than the limit of 2,000"),
    ],
)
def test_a_wrong_length_is_an_error_and_takes_no_memory(stream: str, words: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as error:
            read(FrameSplitter(2000), bytes.fromhex(stream))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert words.replace("2^49", f"{2**49:,}") in str(error.value)


def test_the_limit_is_the_largest_size() -> None:
    assert FrameSplitter(2000).feed(b"\xd0\x0f" + bytes(2000)) == [bytes(2000)]
    with pytest.raises(ProtocolError):
        read(FrameSplitter(2000), b"\xd1\x0f" + bytes(2001))


def test_a_length_that_only_grows_is_refused_before_it_ends() -> None:
    splitter = FrameSplitter(2000)
    assert splitter.feed(b"\xff") == []
    with pytest.raises(ProtocolError, match="at least"):
        read(splitter, b"\xff\xff")


def test_printed_text_is_named_in_the_error() -> None:
    with pytest.raises(ProtocolError, match=r'"yes, hello\\n".*print to stderr'):
        read(FrameSplitter(100), b"yes, hello\n")


def test_a_message_that_can_not_begin_so_is_not_waited_for() -> None:
    splitter = FrameSplitter(100, first_bytes={0x0A})
    assert splitter.feed(b"\x02") == splitter.feed(b"\x0a") == []
    assert splitter.feed(b"\x00") == [b"\x0a\x00"]
    with pytest.raises(ProtocolError, match=r'"hello\\n".*looks like text'):
        read(splitter, b"hello\n")


def test_grpc_messages_are_a_repeated_field_of_the_same_frames() -> None:
    assert wrap([b"ab", b""]) == b"\x0a\x02ab\x0a\x00"
    assert unwrap(b"\x0a\x02ab\x0a\x00") == b"\x02ab\x00"
    for wrong in ("10", "0a", "0a05", "0a80", "0a" + "80" * 10, "1201"):
        with pytest.raises(ProtocolError):
            unwrap(bytes.fromhex(wrong))


@given(st.binary(max_size=200))
def test_random_bytes_are_frames_or_an_error(data: bytes) -> None:
    try:
        read(FrameSplitter(64), data)
        unwrap(data)
    except ProtocolError:
        pass


def test_messages_before_a_wrong_frame_are_returned() -> None:
    splitter = FrameSplitter(10)
    assert splitter.feed(b"\x01a\x01b\x0b") == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(ProtocolError):
            splitter.check()
    assert splitter.feed(b"\x01c") == []
