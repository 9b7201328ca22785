"""Rules of ids and payloads that the gateway and the publisher share."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.user_events import id_problem, payload_problem


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("a", ""),
        ("é" * 256, ""),
        ("", "user_id is missing"),
        ("a b", ""),
        ("a\x00b", r"user_id has the unprintable character '\x00'"),
        ("a\n", r"user_id has the unprintable character '\n'"),
        ("\x1b[2J", r"user_id has the unprintable character '\x1b'"),
        ("a\u202eb", r"user_id has the unprintable character '\u202e'"),
        ("u" * 257, "user_id is longer than 256 characters"),
        ("\ud800", r"user_id has the unprintable character '\ud800'"),
    ],
)
def test_an_id_has_1_to_256_printable_characters(value: str, problem: str) -> None:
    assert id_problem("user_id", value) == problem


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + ("1" if opening != "[" else "") + closing * depth).encode()


@pytest.mark.parametrize(
    "payload",
    [
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
    ],
)
def test_plain_json_is_accepted(payload: bytes) -> None:
    assert payload_problem(payload) == ""


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"nope", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b'{"a": 1,}', "is not JSON"),
        (b"{} {}", "is not JSON"),
        (b'{"a": NaN}', "is not JSON"),
        (b"[Infinity]", "is not JSON"),
        (b"-Infinity", "is not JSON"),
        (b'{"a": 1, "a": 1}', "has a duplicate key in one object"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "has a duplicate key in one object"),
        (b'[{"a": "x:y", "a": 2}]', "has a duplicate key in one object"),
        (b'{"a":1,"\\u0061":2}', "has a duplicate key in one object"),
        (b'"\\ud800"', "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        ('{"a": 1}'.encode("utf-16"), "is not JSON"),
        (nested(33), "is nested deeper than 32 levels"),
        (nested(33, '{"a":', "}"), "is nested deeper than 32 levels"),
        (nested(20_000), "is not JSON: depth limit exceeded"),
        (b"[" * 60_000, "is not JSON"),
        (b"1e400", "is not JSON: number is infinity when parsed as double"),
        (b'"a\nb"', "is not JSON"),
        (b"\x00", "is not JSON"),
    ],
)
def test_other_payloads_are_refused_with_the_reason(payload: bytes, problem: str) -> None:
    assert payload_problem(payload).startswith(problem)


def test_the_reason_shows_nothing_of_the_payload() -> None:
    assert "hunter2" not in payload_problem(b'{"password": "hunter2"') + payload_problem(
        b'{"hunter2": 1, "hunter2": 2}'
    )


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.booleans())
def test_everything_that_json_writes_is_accepted(value: Any, ascii_only: bool) -> None:
    assert payload_problem(json.dumps(value, ensure_ascii=ascii_only).encode()) == ""


@given(JSON, st.integers(0, 1000), st.integers(0, 255))
def test_a_changed_byte_is_accepted_only_where_strict_json_still_reads_it(value: Any, place: int, byte: int) -> None:
    payload = bytearray(json.dumps(value).encode())
    payload[place % len(payload)] = byte
    if payload_problem(bytes(payload)) == "":
        json.loads(payload.decode())
