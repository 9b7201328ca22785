"""Checks 20-22 and the dangerous zeros: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.events.ingress.validation import MOST_ID_CHARACTERS, Refusal, payload_problem, read_event
from services.gateway.events.model import Channel, EventKey, Preference, Priority
from services.gen.dexorder.events.v1 import user_events_pb2 as pb
from tests.unit.services.gateway.events.samples import body, event, user_event

MOST = 65_536


def test_event_is_read_as_it_was_sent() -> None:
    sent = body(channels=[(0, False), (2, True)])
    read = read_event("c", sent)
    assert not isinstance(read, Refusal)
    assert (read.key, read.user_id, read.event_type, read.timestamp_ms) == (
        EventKey("c", "e1"),
        "alice",
        1,
        1_700_000_000_000,
    )
    assert (read.priority, read.payload, read.body) == (Priority.NORMAL, b'{"order_id": "o1"}', sent)
    assert read.channels == (Preference(Channel.ACTIVE_SESSION), Preference(Channel.TELEGRAM, True))


def test_what_is_unknown_is_kept_or_made_the_safer() -> None:
    assert event(event_type=99).event_type == 99
    assert event(priority=7).priority is Priority.CRITICAL and event(priority=-1).priority is Priority.CRITICAL
    assert event(channels=[(42, False), (3, False)]).channels == (Preference(Channel.EMAIL),)
    assert event(channels=[]).channels == ()
    twice = event(channels=[(2, False), (3, False), (2, True), (2, False), (3, False)]).channels
    assert twice == (Preference(Channel.TELEGRAM), Preference(Channel.EMAIL), Preference(Channel.TELEGRAM, True))


def without(field: str) -> bytes:
    message = user_event()
    message.ClearField(field)  # type: ignore[arg-type]
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("sent", "event_id", "reason"),
    [
        (b"", "", "event_id is missing"),
        (b"\xff\xff", "", "the event does not parse"),
        (b"\x0a\x02\xff\xfe", "", "the event does not parse"),
        (without("event_id"), "", "event_id is missing"),
        (without("user_id"), "e1", "user_id is missing"),
        (without("delivery"), "e1", "delivery is missing"),
        (body(user_id="a\x00b"), "e1", "user_id has a NUL"),
        (body("e\x00"), "e\x00", "event_id has a NUL"),
        (body("e" * 257), "e" * 256, "event_id is longer than 256 characters"),
        (body(user_id="u" * 257), "e1", "user_id is longer than 256 characters"),
        (body(channels=[(42, False), (7, True)]), "e1", "no usable channel"),
        (body(channels=[(2, False)] * 65), "e1", "more than 64 channels"),
    ],
)
def test_event_is_refused_with_its_id_and_the_reason(sent: bytes, event_id: str, reason: str) -> None:
    refused = read_event("c", sent)
    assert isinstance(refused, Refusal)
    assert (refused.event_id, refused.reason) == (event_id, reason)


def problem(payload: bytes) -> str:
    found = payload_problem(event(payload=payload), MOST)
    return found.reason if found else ""


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + ("1" if opening != "[" else "") + closing * depth).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b" {} ",
        b"null",
        b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}',
        '{"text": "ü: :"}'.encode(),
        b'{"a": "b:c:d"}',
        b'{"url": "https://x/", "urls": ["a:1", "a:2"]}',
        nested(32),
        nested(32, '{"a":', "}"),
        b'["' + b"[" * 100 + b'"]',
        b'{"n": 1e308, "m": -0.0}',
        b'"' + b"x" * (MOST - 2) + b'"',
    ],
)
def test_payload_that_is_plain_json_is_taken(payload: bytes) -> None:
    assert problem(payload) == ""


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"nope",
        b"\xff",
        b"{'a': 1}",
        b'{"a": 1,}',
        b"{} {}",
        b'{"a": NaN}',
        b"[Infinity]",
        b"-Infinity",
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "c": 2, "b": 3}}',
        b'[{"a": "x:y", "a": 2}]',
        b'{"a":1,"\\u0061":2}',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        nested(33),
        nested(33, '{"a":', "}"),
        nested(20_000),
        b"[" * 60_000,
        b"1e400",
        b'"a\nb"',
        b"\x00",
    ],
)
def test_payload_that_is_not_is_refused(payload: bytes) -> None:
    assert problem(payload) == "invalid payload"


def test_payload_size_is_exact() -> None:
    assert problem(b'"' + b"x" * (MOST - 1) + b'"') == "payload too large"
    assert problem(b"x" * (MOST + 1)) == "payload too large"


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.booleans())
def test_all_that_json_writes_is_taken(value: Any, ascii_only: bool) -> None:
    assert problem(json.dumps(value, ensure_ascii=ascii_only).encode()) == ""


@given(JSON, st.integers(0, 1000), st.integers(0, 255))
def test_a_changed_byte_is_taken_only_where_strict_json_still_reads_it(value: Any, place: int, byte: int) -> None:
    payload = bytearray(json.dumps(value).encode())
    payload[place % len(payload)] = byte
    if problem(bytes(payload)) == "":
        json.loads(payload.decode())


@given(st.binary(max_size=60))
def test_no_bytes_raise_and_what_is_taken_has_what_it_needs(sent: bytes) -> None:
    read = read_event("c", sent)
    if isinstance(read, Refusal):
        assert read.reason and len(read.event_id) <= MOST_ID_CHARACTERS
    else:
        given_event = pb.UserEvent.FromString(sent)
        assert read.key.event_id and read.user_id and given_event.HasField("delivery")
