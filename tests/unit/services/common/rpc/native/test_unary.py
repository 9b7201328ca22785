"""The session's own reading of usual unary requests agrees with Python's, and leaves all others to it."""

from __future__ import annotations

from typing import Any

import pytest

from dexorder_common.rpc.native.framing import frame, only_message
from dexorder_common.rpc.native.metadata import parse_timeout
from tests.unit.services.common.rpc.native import NEEDS_MODULE
from tests.unit.services.common.rpc.native.rig import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    block,
    packed,
)

pytestmark = NEEDS_MODULE
LIMIT = 100


def event_of(body: bytes, *more: tuple[str, str], parts: int = 1, head: bytes = b"") -> tuple[Any, ...]:
    """Return the event of one request, with its body in DATA frames of equal size."""
    import dexorder_http2 as http2  # deferred: without the module its tests are skipped

    none = http2.Fields([])
    session = http2.Session(
        stream_window=65_535,
        connection_window=65_535,
        max_streams=10,
        max_header_bytes=16_384,
        max_unread_resets=10,
        max_message_bytes=LIMIT,
        answer_head=none,
        answer_end=none,
        is_unix=False,
    )
    size = -(-len(body) // parts) or 1
    pieces = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    data = [packed(DATA, END_STREAM if last else 0, 1, piece) for last, piece in zip_last(pieces)]
    start = packed(HEADERS, END_HEADERS, 1, head or block("/s/m", *more))
    events, _ = session.step(PREFACE + packed(SETTINGS, 0, 0) + start + b"".join(data))
    (event,) = events
    return event


def zip_last(pieces: list[bytes]) -> list[tuple[bool, bytes]]:
    return [(number == len(pieces) - 1, piece) for number, piece in enumerate(pieces)]


@pytest.mark.parametrize("timeout", ["0n", "1n", "20u", "99999999m", "7S", "0S", "3M", "99999999H", "00000012m"])
def test_a_timeout_is_the_same_number(timeout: str) -> None:
    kind, stream, head, message, seconds = event_of(frame(b"abc"), ("grpc-timeout", timeout))
    assert (kind, stream, message) == (5, 1, b"abc")
    assert seconds == parse_timeout(timeout.encode()) and head.path == "/s/m"


@pytest.mark.parametrize("timeout", ["", "5", "S", "-1S", "+1S", "1s", "1SS", " 1S", "123456789S", "1.5S", "\u0661S"])
def test_another_timeout_is_left_to_python(timeout: str) -> None:
    value = timeout.encode().decode("latin-1")
    if value.isascii():
        assert event_of(frame(b"abc"), ("grpc-timeout", value))[0] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0",
        b"\0\0\0\0\0",
        frame(b"x"),
        frame(b"x" * LIMIT),
        frame(b"x" * (LIMIT + 1)),
        b"\1" + frame(b"x")[1:],
        b"\2" + frame(b"x")[1:],
        frame(b"x")[:-1],
        frame(b"x") + b"y",
        frame(b"x") * 2,
        b"\0\xff\xff\xff\xffx",
    ],
)
def test_a_message_is_what_python_takes_as_one(body: bytes) -> None:
    event, expected = event_of(body), only_message(body, LIMIT)
    if expected is None:
        assert (event[0], event[3], event[4]) == (0, body, True)
    else:
        assert (event[0], event[3], event[4]) == (5, expected, None)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ([("grpc-encoding", "identity")], 5),
        ([("grpc-encoding", "gzip")], 0),
        ([("grpc-encoding", "Identity")], 0),
        ([("x-request-id", "7")], 5),
        ([("x-trace-bin", "AAA")], 0),
        ([("x-trace-bin", "?")], 0),
    ],
)
def test_other_fields_are_left_to_python(more: list[tuple[str, str]], kind: int) -> None:
    assert event_of(frame(b"x"), *more)[0] == kind


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [("application/grpc", 5), ("application/grpc+proto", 5), ("application/grpc;x", 5), ("application/grpcx", 0)],
)
def test_a_content_type_is_one_of_grpc(content_type: str, kind: int) -> None:
    whole = block("/s/m")
    name = b"\x0ccontent-type"
    start = whole.index(name) + len(name)
    other = (
        whole[:start]
        + bytes([len(content_type)])
        + content_type.encode()
        + whole[start + 1 + len("application/grpc") :]
    )
    assert event_of(frame(b"x"), head=other)[0] == kind


def test_a_body_of_several_frames_is_left_to_python() -> None:
    assert event_of(frame(b"x" * 20), parts=3)[0] == 0
